"""The demo, whole: what was planted is found, and nothing else; where nothing was, nothing is."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from strandline.report.summary import Kind, Summary, Verdict
from strandline.stack import KafkaCluster
from tests.support import TIMEOUT, run_strandline, wait_for

CAPTURING = """
import asyncio, sys
from strandline.cli.demo import _command

async def main():
    to = ("--listen", "127.0.0.1:0", "--to", "http://127.0.0.1:9", "--kafka", sys.argv[1])
    async with _command("capture", *to, "--topic", "leashed", stdout=asyncio.subprocess.PIPE) as process:
        assert await process.stdout.readline()
        print(process.pid, flush=True)
        await process.wait()

asyncio.run(main())
"""


def shown(out: Path, *arguments: str) -> Summary:
    result = run_strandline("demo", "--out", str(out), *arguments, timeout=5 * TIMEOUT)
    sys.stdout.write(result.stdout + result.stderr)
    assert result.returncode == 0
    assert f"The report: {(out / 'report.html').resolve()}" in result.stdout
    assert (out / "report.html").stat().st_size > 0
    return msgspec.json.decode((out / "summary.json").read_bytes(), type=Summary)


def test_the_three_changes_are_found_and_nothing_else(tmp_path: Path) -> None:
    summary = shown(tmp_path / "report", "--seconds", "10")
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
def test_without_the_changes_nothing_is_found(tmp_path: Path) -> None:
    summary = shown(tmp_path / "report", "--no-changes", "--seconds", "8", "--seed", "2")
    assert not summary.differences
    assert not [each.name for each in summary.endpoints if each.regressed]
    assert set(summary.verdicts) <= {Verdict.SAME, Verdict.SLOWER}


def test_a_demo_that_is_killed_takes_its_commands_with_it(kafka: KafkaCluster) -> None:
    demo = subprocess.Popen([sys.executable, "-c", CAPTURING, kafka.address], stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    with demo, demo.stdout as told:
        lines = [told.readline() for _ in range(3)]
        capture = int(lines[-1])
        assert is_running(capture)
        demo.kill()
        wait_for(lambda: not is_running(capture), "the capture has ended")


def is_running(process: int) -> bool:
    """Whether it has not ended; one that nobody has waited for yet has no command line any more."""
    try:
        return bool(Path(f"/proc/{process}/cmdline").read_bytes())
    except OSError:
        return False
