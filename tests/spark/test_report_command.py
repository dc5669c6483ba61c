"""`strandline report` as it is run: its exit codes, its one-line errors, what it prints and what it writes."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from strandline.cli import report as command
from strandline.errors import OptionError
from strandline.report.summary import Summary
from tests.report.support import answer, result
from tests.support import run_strandline

# Spark starts anew here, which takes minutes of a machine that many use.
pytestmark = pytest.mark.timeout(900)
PATIENCE_S = 800


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A directory of results: a renamed field in one of three."""
    directory = tmp_path / "results"
    directory.mkdir()
    for part in range(2):
        records = []
        for number in range(part * 30, part * 30 + 30):
            body = {"cost": 2} if number % 3 == 0 else {"price": 2}
            target = answer(200, body)
            records.append(result(answer(200, {"price": 2}), target, request=f"GET /items/{number}", number=number))
        (directory / f"{part}.jsonl").write_bytes(b"\n".join(records) + b"\n")
    return directory


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--fail-on", "mismach>1%"], "gate 'mismach>1%': 'mismach' is unknown; did you mean 'mismatch'?"),
        (["--rules", "no-such.yaml"], "no-such.yaml: cannot be read: No such file or directory"),
        (["--onut", "x"], "Unknown option: --onut. Did you mean --out?"),
        (["--set", "a"], "--set takes name=value, such as --set security.protocol=ssl"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(arguments: list[str], line: str) -> None:
    done = run_strandline("report", *arguments)
    assert (done.returncode, done.stderr) == (2, f"strandline: {line}\n")


def test_a_gate_that_fails_is_exit_code_1_and_the_report_is_there(results: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    gates = "mismatch>10%,lateness.p99>20ms"
    arguments = ["--results", results, "--out", out, "--fail-on", gates, "--master", "local[2]"]
    command_line = [sys.executable, "-m", "strandline", "report", *map(str, arguments)]
    done = subprocess.run(command_line, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1] == "strandline: the report fails: mismatch>10% (found 33.33%)"
    assert "60 exchanges of" in done.stdout
    assert "40 same" in done.stdout
    assert "$.price" in done.stdout
    assert "passed  lateness.p99>20ms  found 0.50 ms" in done.stdout
    summary = msgspec.json.decode((out / "summary.json").read_bytes(), type=Summary)
    assert [gate.passed for gate in summary.gates] == [False, True]
    assert {path.name for path in (out / "tables").iterdir()} == {
        "exchanges", "differences", "endpoints", "timeline", "fidelity",
    }  # fmt: skip


def test_gates_that_pass_are_no_error(
    spark: SparkSession, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def shared(_: str) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(command, "_spark", shared)
    rules = tmp_path / "rules.yaml"
    rules.write_text("body: {ignore: ['$.price', '$.cost']}")
    out = tmp_path / "out"
    command.report(results=str(results / "0.jsonl"), out=out, rules=rules, fail_on="mismatch>0", title="Shop")
    summary = msgspec.json.decode((out / "summary.json").read_bytes(), type=Summary)
    assert (summary.title, summary.exchanges, len(summary.differences)) == ("Shop", 30, 0)
    assert {(each.path, each.count, each.reason) for each in summary.noise} == {
        ("$.price", 10, "rule"),
        ("$.cost", 10, "rule"),
    }
    with pytest.raises(OptionError) as refused:
        command.report(results=str(rules.parent), out=out)
    assert str(refused.value) == f"{tmp_path} holds no file *.jsonl"
