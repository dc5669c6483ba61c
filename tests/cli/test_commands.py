"""The command line: one line for every error, the exit codes, the nearest name."""

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.support import Up, run_strandline, wait_for


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["up", "--onyl", "kafka"], "strandline: Unknown option: --onyl. Did you mean --only?"),
        (["up", "--only", "kafak"], "strandline: server 'kafak' is unknown; did you mean 'kafka'?"),
        (["dmeo"], 'strandline: Unknown command "dmeo". Did you mean "demo"?'),
        (["up", "--kafka-clusters", "two"], "strandline: Invalid value for --kafka-clusters"),
        (["up", "--kafka-clusters", "0"], "strandline: a stack has 1 to 16 Kafka clusters"),
        (["up", "--observe-port", "99999"], "strandline: --observe-port takes 0 to 65535, not 99999"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(arguments: list[str], line: str) -> None:
    result = run_strandline(*arguments)
    assert result.returncode == 2
    assert result.stderr.startswith(line)
    assert result.stderr.count("\n") == 1
    assert not result.stdout


def test_failure_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "somebody's").touch()
    result = run_strandline("up", "--only", "kinesis", "--data", tmp_path)
    assert result.returncode == 1
    assert result.stderr.startswith(f"strandline: {tmp_path}: is not empty and was not made by strandline")
    assert result.stderr.count("\n") == 1


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    env = {**os.environ, "STRANDLINE_CACHE": str(tmp_path / "file" / "below")}
    result = run_strandline("up", "--only", "kafka", env=env)
    assert result.returncode == 1
    assert result.stderr.startswith("strandline: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["--help"], ["up", "--help"], ["demo", "--help"], ["--version"]])
def test_help_needs_nothing_and_exits_0(arguments: list[str]) -> None:
    result = run_strandline(*arguments)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout


def test_readiness_is_told_over_http_from_the_first_moment() -> None:
    with Up("--only", "kinesis", "--observe-port", "0") as up:
        up.wait_for_message("strandline: http://127.0.0.1:")
        page = up.messages[-1].split()[1]

        def status() -> int:
            try:
                return int(urllib.request.urlopen(page, timeout=5).status)
            except urllib.error.HTTPError as error:
                return error.code

        assert status() in {200, 503}
        wait_for(lambda: status() == 200, "it is ready")
        metrics = urllib.request.urlopen(page.replace("readyz", "metrics"), timeout=5).read().decode()
        assert "strandline_stack_ready 1.0" in metrics
        assert up.end(signal.SIGTERM) == 0


def test_a_person_gets_a_table_and_lines_to_paste() -> None:
    command = [sys.executable, "-m", "strandline", "up", "--only", "kinesis,postgres"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as up:
        assert up.stdout is not None
        lines: list[str] = []
        while not lines or not lines[-1].startswith("Ready."):
            lines.append(up.stdout.readline())
            assert lines[-1], "it ended before it was ready"
        up.send_signal(signal.SIGINT)
        assert up.wait(30) == 0
    text = "".join(lines)
    assert "export AWS_ENDPOINT_URL_KINESIS=http://127.0.0.1:" in text
    assert "export DATABASE_URL=postgresql://postgres:" in text
    assert "│ kinesis " in text


def test_output_that_nobody_reads_is_one_line() -> None:
    command = [sys.executable, "-m", "strandline", "up", "--only", "kinesis", "--format", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as up:
        assert up.stdout is not None
        assert up.stderr is not None
        up.stdout.close()
        assert up.wait(60) == 1
        lines = up.stderr.read().splitlines()
    assert lines[-1] == "strandline: nobody reads the output any more"
    assert not any("Traceback" in line for line in lines)


def test_the_demo_loses_nothing() -> None:
    result = run_strandline("demo")
    assert result.returncode == 0, result.stderr
    assert "Finished in all: 20,000 of 20,000.  Lost: 0." in result.stdout
