"""The command line: one line for every error, the exit codes, the nearest name."""

import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import cyclopts
import pytest

from strandline.cli.commands import app
from strandline.cli.up import _lines
from strandline.errors import StrandlineError
from strandline.stack.kafka import KafkaCluster
from tests.support import TIMEOUT, Up, run_strandline, run_warm, wait_for


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["up", "--onyl", "kafka"], "strandline: Unknown option: --onyl. Did you mean --only?"),
        (["up", "--only", "kafak"], "strandline: server 'kafak' is unknown; did you mean 'kafka'?"),
        (["dmeo"], 'strandline: Unknown command "dmeo". Did you mean "demo"?'),
        (["up", "--kafka-clusters", "two"], "strandline: Invalid value for --kafka-clusters"),
        (["up", "--kafka-clusters", "0"], "strandline: a stack has 1 to 16 Kafka clusters (--kafka-clusters), not 0"),
        (
            ["up", "--kafka-brokers", "100000"],
            "strandline: a cluster has 1 to 16 brokers (--kafka-brokers), not 100000",
        ),
        (
            ["up", "--only", "kinesis", "--kafka-brokers", "3"],
            "strandline: --kafka-clusters and --kafka-brokers are of",
        ),
        (["up", "--data", ""], "strandline: --data takes a directory, and its name is empty"),
        (["up", "--data", "/etc/passwd"], "strandline: --data takes a directory, and /etc/passwd is a file\n"),
        (["up", "extra"], "strandline: unexpected argument 'extra'"),
        (["replay", "stauts"], "strandline: unexpected argument 'stauts'; did you mean 'status'?"),
        (["demo", "x"], "strandline: unexpected argument 'x'; strandline demo takes cdc, gateway, proxy, or none"),
        (["report", "--results", "absent.jsonl"], "strandline: absent.jsonl: no such file or directory, and no name"),
        (["up", "--observe-port", "99999"], "strandline: --observe-port takes 0 to 65535, not 99999"),
        (
            ["gateway", "verify", "--url", "ws://127.0.0.1:1", "--topic", "t", "--seconds", "nan"],
            'strandline: Invalid value "nan" for --seconds. It takes a finite number.\n',
        ),
        (["replay"], "strandline: --target is missing; see: strandline replay --help\n"),
        (["replay", "--target"], "strandline: --target takes a value; see: strandline replay --help\n"),
        (["replay", "--targte", "x"], 'strandline: Command "replay" parameter --target requires an argument. Did you'),
        (["gateway", "verify"], "strandline: --url is missing; see: strandline gateway verify --help\n"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(arguments: list[str], line: str) -> None:
    result = run_warm(*arguments)
    assert result.returncode == 2
    assert result.stderr.startswith(line)
    assert result.stderr.count("\n") == 1
    assert not result.stdout


@pytest.mark.parametrize(
    ("command", "text", "problem"),
    [
        ("gateway", "listen: here\ntopics: {t: {}}\nauth: {anonymous: true}\n", "listen takes HOST:PORT, not 'here'"),
        (
            "proxy",
            "clusters: {e: {bootstrap: 'h:1'}}\nroutes: {topics: [{match: '*', cluster: w}]}\n",
            "routes.topics: cluster 'w' is none of e",
        ),
    ],
)
def test_what_is_wrong_with_the_values_of_a_file_is_told_with_its_name(
    command: str, text: str, problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(text)
    result = run_warm(command, "--config", file)
    assert (result.returncode, result.stderr) == (2, f"strandline: {file}: {problem}\n")


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["gateway", "verify", "--url", "ws://127.0.0.1:1", "--topic", "t", "--seconds"],
        ["capture", "--release-after"],
        ["capture", "--sample"],
        ["replay", "--target", "http://127.0.0.1:1", "--drain"],
        ["replay", "--target", "http://127.0.0.1:1", "--frozen-after"],
        ["demo", "--seconds"],
        ["demo", "cdc", "--seconds"],
        ["demo", "gateway", "--seconds"],
        ["demo", "proxy", "--seconds"],
    ],
)
def test_what_is_no_finite_number_is_refused_by_every_option(arguments: list[str], number: str) -> None:
    given = [*arguments[:-1], f"{arguments[-1]}={number}"]
    with pytest.raises(cyclopts.ValidationError) as error:
        app(given, exit_on_error=False, print_error=False, result_action="return_value")
    problem = f'Invalid value "{number}" for {arguments[-1]}. It takes a finite number.'
    assert " ".join(str(error.value).split()) == problem


def test_failure_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "somebody's").touch()
    result = run_warm("up", "--only", "kinesis", "--data", tmp_path)
    assert result.returncode == 1
    assert result.stderr.startswith(f"strandline: {tmp_path}: is not empty and was not made by strandline")
    assert result.stderr.count("\n") == 1


def test_a_port_that_is_taken_is_told_with_its_option() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        result = run_warm("up", "--only", "kinesis", "--observe-port", str(port))
    assert result.returncode == 1
    problem = f"cannot listen on 127.0.0.1:{port}: Address already in use"
    assert result.stderr == f"strandline: --observe-port: {problem}; 0 takes any free port\n"


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    env = {**os.environ, "STRANDLINE_CACHE": str(tmp_path / "file" / "below")}
    result = run_warm("up", "--only", "kafka", env=env)
    assert result.returncode == 1
    assert result.stderr.startswith("strandline: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [[], ["--help"], ["up", "--help"], ["demo", "--help"], ["tail", "--help"], ["import", "--help"], ["--version"]],
)
def test_help_needs_nothing_and_exits_0(arguments: list[str]) -> None:
    result = run_warm(*arguments)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout


def test_the_commands_are_listed_with_what_they_do() -> None:
    lines = run_warm("--help").stdout.splitlines()
    assert any("│ up " in line and "Start real Kafka, Postgres and Kinesis servers" in line for line in lines)
    assert any("│ demo " in line and "Capture a shop's traffic" in line for line in lines)
    assert "The first run fetches Kafka (45 MB)" in run_warm("up", "--help").stdout


def test_the_list_of_commands_imports_none_of_them() -> None:
    code = "import sys; from strandline.cli.commands import main; main(['--help']); print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    modules = result.stdout.split()
    assert "strandline.cli.commands" in modules
    assert not {"strandline.cli.up", "strandline.cli.demo", "strandline.stack"} & set(modules)


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("module", ["cyclopts", "prometheus_client"])
def test_a_signal_while_modules_are_imported_is_one_line(module: str, number: str, tmp_path: Path) -> None:
    # In place of a module of the command itself, and of one of `up`: the signal at just that moment.
    (tmp_path / f"{module}.py").write_text(f"import signal\nsignal.raise_signal(signal.{number})\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    result = run_strandline("up", env={**os.environ, "PYTHONPATH": path})
    assert (result.returncode, result.stdout, result.stderr) == (1, "", "strandline: interrupted\n")


def test_each_option_of_up_and_of_a_trial_of_the_gateway_reaches_what_it_is_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def take(*servers: object, **given: Any) -> None:
        asked.append({"servers": servers, **given})
        raise StrandlineError("enough")

    monkeypatch.setattr("strandline.cli.up.Stack", take)
    monkeypatch.setattr("strandline.cli.gateway.Trial", take)
    (tmp_path / "token").write_text("a.b.c\n")
    up = f"up --only kafka,kinesis --kafka-clusters 2 --kafka-brokers 3 --data {tmp_path}"
    trial = (
        "gateway verify --url ws://h:1 --topic t --kafka k:1 --clients 3 --seconds 4 --rate 5 --deletes --recreates 6"
    )
    for line in (up, f"{trial} --seed 7 --token-file {tmp_path}/token"):
        with pytest.raises(StrandlineError, match="enough"):
            app(line.split(), exit_on_error=False, print_error=False, result_action="return_value")
    servers = {"servers": (["kafka", "kinesis"],), "kafka_clusters": 2, "kafka_brokers": 3, "data": tmp_path}
    counts = {"clients": 3, "seconds": 4.0, "rate": 5, "deletes": True, "recreates": 6, "seed": 7}
    assert asked[0] == servers
    assert asked[1].pop("token").reveal() == "a.b.c"
    assert asked[1] == {"servers": (), "url": "ws://h:1", "topic": "t", "kafka": {"bootstrap.servers": "k:1"}, **counts}


def test_up_exports_the_address_of_the_first_cluster_for_the_other_commands(kafka: KafkaCluster) -> None:
    name, address = "bootstrap.servers", kafka.settings()["bootstrap.servers"]
    assert list(_lines(kafka.settings(), is_first=True)) == [f"{name}={address}", f"export STRANDLINE_KAFKA={address}"]
    assert list(_lines(kafka.settings(), is_first=False)) == [f"{name}={address}"]
    assert list(_lines({"A_KEY": "a b"}, is_first=False)) == ["export A_KEY='a b'"]


@pytest.mark.server
def test_readiness_is_told_over_http_from_the_first_moment() -> None:
    with Up("--only", "kinesis", "--observe-port", "0") as up:
        up.wait_for_message("strandline: http://127.0.0.1:")
        page = up.messages[-1].split()[1]

        def status() -> int:
            try:
                return int(urllib.request.urlopen(page, timeout=TIMEOUT).status)
            except urllib.error.HTTPError as error:
                return error.code

        assert status() in {200, 503}
        wait_for(lambda: status() == 200, "it is ready")
        metrics = urllib.request.urlopen(page.replace("readyz", "metrics"), timeout=TIMEOUT).read().decode()
        assert "strandline_stack_ready 1.0" in metrics
        assert up.end(signal.SIGTERM) == 0


@pytest.mark.server
def test_a_person_gets_a_table_and_lines_to_paste() -> None:
    command = [sys.executable, "-m", "strandline", "up", "--only", "kinesis,postgres"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as up:
        assert up.stdout is not None
        lines: list[str] = []
        while not lines or not lines[-1].startswith("Ready."):
            lines.append(up.stdout.readline())
            assert lines[-1], "it ended before it was ready"
        up.send_signal(signal.SIGINT)
        assert up.wait(TIMEOUT) == 0
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
        assert up.wait(TIMEOUT) == 1
        lines = up.stderr.read().splitlines()
    assert lines[-1] == "strandline: nobody reads the output any more"
    assert not any("Traceback" in line for line in lines)


@pytest.mark.parametrize(
    "arguments", [["up", "--only", "kinesis"], ["up", "--only", "kinesis", "--format", "json"], ["--help"]]
)
def test_output_on_a_full_disk_is_one_line(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "strandline", *arguments]
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert result.returncode == 1
    lines = [line for line in result.stderr.splitlines() if not line.startswith("{")]
    assert lines == ["strandline: cannot write to standard output: No space left on device"]


def test_what_is_still_buffered_at_the_end_counts_as_output() -> None:
    code = "import sys, strandline.cli.commands as c; c.app.default(lambda: print('x')); sys.exit(c.main([]))"
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert result.returncode == 1
    assert result.stderr == "strandline: cannot write to standard output: No space left on device\n"


def test_a_fault_of_another_file_is_not_taken_for_one_of_the_output() -> None:
    code = (
        "import pathlib, strandline.cli.commands as c\n"
        "c.app.default(lambda: pathlib.Path('/dev/full').write_text('x'))\n"
        "c.main([])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert result.stderr.endswith("OSError: [Errno 28] No space left on device\n")
    assert "standard output" not in result.stderr


def test_a_signal_while_python_itself_ends_changes_nothing() -> None:
    program = (
        "import atexit, os, signal, sys, strandline.cli\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "sys.argv = ['strandline', '--version']\n"
        "strandline.cli.run()"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=TIMEOUT, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")


TRY_AGAIN = "the machine may be overloaded: try again, and report it if it comes back"
WAITING = """
import asyncio, sys
from strandline.cli import commands

def wait():
    {body}

wait.__globals__["__name__"] = "strandline.cli.waiting"
commands.app.command(wait, name="wait")
sys.exit(commands.main(["wait"]))
"""


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (
            "asyncio.run(asyncio.wait_for(asyncio.sleep(600), 0.01))",
            f"a wait in strandline.cli.waiting.wait timed out; {TRY_AGAIN}",
        ),
        ("raise KeyboardInterrupt", "interrupted"),
    ],
)
def test_a_wait_that_ends_unforeseen_is_one_line_and_exit_code_1(body: str, line: str) -> None:
    program = WAITING.format(body=body)
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert (result.returncode, result.stderr) == (1, f"strandline: {line}\n")
