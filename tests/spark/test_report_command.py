"""`strandline report` as it is run: its exit codes, its one-line errors, what it prints and what it writes."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from strandline import logs
from strandline.cli import commands
from strandline.cli import report as command
from strandline.errors import BrokerUnreachable, OptionError, StrandlineError, UnknownTopic
from strandline.report.summary import Summary
from strandline.spark import following
from strandline.spark import results as results_module
from strandline.stack import KafkaCluster
from tests.ordered.support import create_topic, produce
from tests.report.support import START_US, answer, result
from tests.support import run_warm, wait_for

# Spark starts anew here, which takes minutes of a machine that many use.
PATIENCE_S = 800
TABLE = re.compile(r"^\| `(\w+)` \| (.*) \|$", re.MULTILINE)


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
        # By a name that is a pattern too, and as `strandline.spark.replay` names them.
        (directory / ("0 [a]*.jsonl", "part-00001.json")[part]).write_bytes(b"\n".join(records) + b"\n")
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
    done = run_warm("report", *arguments)
    assert (done.returncode, done.stderr) == (2, f"strandline: {line}\n")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"start": "garbage"}, "'garbage' is no start; valid are"),
        ({"start": "committed"}, "--from takes no 'committed': a report is in no group"),
        ({"until": "garbage"}, "'garbage' is no end; valid are"),
        ({"settings": ("nonsense=1",)}, "option 'kafka.nonsense' is unknown"),
        ({"follow": True, "until": "now"}, "--follow goes on until Ctrl-C; leave out --until"),
        ({"follow": True, "results": "/"}, "--follow takes a topic for --results, and no --baseline"),
        ({"follow": True, "baseline": "x"}, "--follow takes a topic for --results, and no --baseline"),
        ({"results": "/", "start": "-1h"}, "--from and --until are for a topic, and / is a file or a directory"),
        ({"results": "no/such.jsonl"}, "no/such.jsonl: no such file or directory, and no name of a topic"),
        (
            {"results": "/dev/null", "out": Path("/proc/x")},
            "--out /proc/x cannot be written: No such file or directory",
        ),
        ({"results": "/dev/null", "out": Path("/dev/null")}, "--out /dev/null cannot be written: File exists"),
    ],
    ids=str,
)
def test_wrong_use_is_told_before_spark_starts(
    arguments: dict[str, Any], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_spark", lambda _: pytest.fail("Spark starts"))
    with pytest.raises(OptionError) as refused:
        command.report(**arguments)
    assert str(refused.value).startswith(line)
    assert not list(tmp_path.iterdir()), "and nothing is left"


def test_a_topic_and_a_cluster_that_are_not_there_are_told_before_spark_starts(
    kafka: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_spark", lambda _: pytest.fail("Spark starts"))
    with pytest.raises(UnknownTopic, match="has no topic 'no-such'"):
        command.report(results="no-such", kafka=kafka.address)
    monkeypatch.setattr(results_module, "ANSWER_WITHIN", timedelta(0))
    with pytest.raises(BrokerUnreachable):
        command.report(results="no-such", kafka="127.0.0.1:1")
    assert not list(tmp_path.iterdir())


def test_each_option_reaches_the_plan_of_a_report(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[dict[str, Any]] = []

    def take(**plan: Any) -> None:
        plans.append(plan)
        raise StrandlineError("enough")

    monkeypatch.setattr("strandline.spark.report.Plan", take)
    monkeypatch.setattr(command, "_results", lambda *what: what)
    (tmp_path / "rules.yaml").write_text("noise: {learn: false}")
    reach = shlex.split("--kafka k:1 --set client.id=c --from 2026-01-01T00:00:00Z --until 2026-01-02T00:00:00Z")
    kept = ["--out", f"{tmp_path}/out", "--rules", f"{tmp_path}/rules.yaml", "--baseline", str(results)]
    given = ["--results", "t", *reach, *kept, "--fail-on", "mismatch>1%", "--title", "Shop"]
    with pytest.raises(StrandlineError, match="enough"):
        commands.app(["report", *given], exit_on_error=False, print_error=False, result_action="return_value")
    (plan,) = plans
    kafka = {"bootstrap.servers": "k:1", "client.id": "c"}
    assert plan["results"] == ("t", kafka, "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z")
    assert plan["baseline"] == (str(results), kafka, "earliest", None)
    assert (plan["out"], plan["title"], plan["rules"].learns) == (tmp_path / "out", "Shop", False)
    assert len(plan["gates"]) == 1


def test_a_report_that_is_stopped_says_so_and_leaves_the_one_before(results: Path, tmp_path: Path) -> None:
    out, temporary = tmp_path / "out", tmp_path / "tmp"
    temporary.mkdir()
    (out / "tables").mkdir(parents=True)
    (out / "report.html").write_text("the one before")
    arguments = ["--results", results, "--out", out, "--master", "local[1]"]
    command_line = [sys.executable, "-m", "strandline", "report", *map(str, arguments)]
    env = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(command_line, stderr=subprocess.PIPE, text=True, env=env) as running:
        try:
            assert running.stderr is not None
            while not running.stderr.readline().startswith("strandline: comparing"):
                assert running.poll() is None
            running.send_signal(signal.SIGINT)
            told = running.communicate(timeout=PATIENCE_S)[1].splitlines()
        finally:
            running.kill()
    assert told[-1] == "strandline: stopped; there is no report"
    assert running.returncode == 1
    assert {file.name for file in out.iterdir()} == {"tables", "report.html"}
    assert not list(temporary.glob("strandline-spark-*"))


@pytest.mark.soak
def test_a_stop_amid_an_epoch_is_told_in_our_own_lines_alone(kafka: KafkaCluster, tmp_path: Path) -> None:
    same = answer(200, {"price": 2})
    records = [(0, START_US // 1000, result(same, same, number=number)) for number in range(500)]
    create_topic(kafka.address, "amid", 1)
    produce(kafka.address, "amid", records)
    out = tmp_path / "out"
    arguments = ["--results", "amid", "--kafka", kafka.address, "--out", out, "--follow", "--master", "local[1]"]
    command_line = [sys.executable, "-m", "strandline", "report", *map(str, arguments)]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command_line, **pipes) as running:
        try:
            wait_for((out / ".stream" / "results" / "epoch=0").exists, "an epoch that is being written", PATIENCE_S)
            running.send_signal(signal.SIGINT)
            told = running.communicate(timeout=PATIENCE_S)[1].splitlines()
        finally:
            running.kill()
    # By chance the epoch is whole, and there is a report.
    assert running.returncode in {0, 1}
    assert (running.returncode == 0) == (out / "report.html").exists()
    assert [line for line in told if not line.startswith("strandline: ")] == []


@pytest.fixture
def shared(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command has the session that is up; all else is as when it is run."""

    @contextmanager
    def opened(_: str) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(command, "_spark", opened)
    # These are for a process that has nothing else to do.
    monkeypatch.setattr(commands, "guard_output", lambda: None)
    monkeypatch.setattr(logs, "configure", lambda: None)


@pytest.mark.usefixtures("shared")
def test_a_gate_that_fails_is_exit_code_1_and_the_report_is_there(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    gates = "mismatch>10%,lateness.p99>20ms"
    assert commands.main(["report", "--results", str(results), "--out", str(out), "--fail-on", gates]) == 1
    done = capsys.readouterr()
    assert done.err.splitlines()[-1] == "strandline: the report fails: mismatch>10% (found 33.33%)"
    assert "60 exchanges of" in done.out
    assert "40 same" in done.out
    assert "$.price" in done.out
    assert "passed  lateness.p99>20ms  found 0.50 ms" in done.out
    summary = msgspec.json.decode((out / "summary.json").read_bytes(), type=Summary)
    assert [gate.passed for gate in summary.gates] == [False, True]
    page = (Path(__file__).parents[2] / "docs" / "report.md").read_text().partition("## Tables")[2]
    told = {name: set(re.findall(r"`(\w+)`", re.sub(r"\(.*?\)", "", columns))) for name, columns in TABLE.findall(page)}
    assert told.keys() == {"exchanges", "differences", "endpoints", "timeline", "fidelity"}
    assert {path.name: set(pq.ParquetDataset(path).schema.names) for path in (out / "tables").iterdir()} == told


@pytest.mark.usefixtures("shared")
def test_a_report_that_follows_is_current_while_nothing_more_comes_and_ends_with_0_when_it_is_stopped(
    kafka: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    same = answer(200, {"price": 2})
    create_topic(kafka.address, "resting", 1)
    produce(kafka.address, "resting", [(0, START_US // 1000, result(same, same, number=n)) for n in range(20)])
    made = tmp_path / "out" / "summary.json"

    @contextmanager
    def stopping(act: Callable[[], object]) -> Iterator[None]:
        """Ctrl-C, once there is a report."""
        waiting = Thread(target=lambda: (wait_for(made.exists, "a report", PATIENCE_S), act()))
        waiting.start()
        yield
        waiting.join()

    monkeypatch.setattr(command, "on_stop_request", stopping)
    monkeypatch.setattr(following, "follow", partial(following.follow, every=timedelta(seconds=1)))
    asked = ["--results", "resting", "--kafka", kafka.address, "--out", str(made.parent), "--follow"]
    assert commands.main(["report", *asked]) == 0
    assert msgspec.json.decode(made.read_bytes(), type=Summary).exchanges == 20


@pytest.mark.usefixtures("shared")
def test_gates_that_pass_are_no_error(results: Path, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("body: {ignore: ['$.price', '$.cost']}")
    out = tmp_path / "out"
    command.report(results=str(results / "0 [a]*.jsonl"), out=out, rules=rules, fail_on="mismatch>0", title="Shop")
    summary = msgspec.json.decode((out / "summary.json").read_bytes(), type=Summary)
    assert (summary.title, summary.exchanges, len(summary.differences)) == ("Shop", 30, 0)
    assert {(each.path, each.count, each.reason) for each in summary.noise} == {
        ("$.price", 10, "rule"),
        ("$.cost", 10, "rule"),
    }
    with pytest.raises(OptionError) as refused:
        command.report(results=str(rules.parent), out=out)
    assert str(refused.value) == f"{tmp_path} holds no file *.jsonl or part-*.json"
