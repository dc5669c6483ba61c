"""The demo, whole: what was planted is found, and nothing else; where nothing was, nothing is."""

import sys
from pathlib import Path

import msgspec
import pytest

from strandline.report.summary import Kind, Summary, Verdict
from tests.support import TIMEOUT, run_strandline


def shown(out: Path, *arguments: str) -> Summary:
    result = run_strandline("demo", "--out", str(out), *arguments, timeout=5 * TIMEOUT)
    sys.stdout.write(result.stdout + result.stderr)
    assert result.returncode == 0
    assert f"The report: {(out / 'report.html').resolve()}" in result.stdout
    assert (out / "report.html").stat().st_size > 0
    return msgspec.json.decode((out / "summary.json").read_bytes(), type=Summary)


@pytest.mark.timeout(6 * TIMEOUT)
def test_the_three_changes_are_found_and_nothing_else(tmp_path: Path) -> None:
    summary = shown(tmp_path / "report")
    found = {(each.endpoint, each.kind, each.path) for each in summary.differences}
    product = "GET /products/{n}"
    assert found == {
        (product, Kind.BODY, "$.price"),
        (product, Kind.BODY, "$.price_cents"),
        ("POST /orders", Kind.STATUS, ""),
    }
    assert [each.name for each in summary.endpoints if each.regressed] == ["GET /search"]
    assert Verdict.FAILED not in summary.verdicts
    assert Verdict.NO_SOURCE not in summary.verdicts
    assert summary.fidelity.order_violations == 0


@pytest.mark.soak
@pytest.mark.timeout(6 * TIMEOUT)
def test_without_the_changes_nothing_is_found(tmp_path: Path) -> None:
    summary = shown(tmp_path / "report", "--no-changes", "--seconds", "8", "--seed", "2")
    assert not summary.differences
    assert not [each.name for each in summary.endpoints if each.regressed]
    assert set(summary.verdicts) <= {Verdict.SAME, Verdict.SLOWER}
