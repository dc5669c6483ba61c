"""`strandline replay` as people and programs run it: its errors, its plan, its status."""

import json
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from confluent_kafka import Consumer, TopicPartition
from cyclopts import CycloptsError
from prometheus_client import CollectorRegistry

from strandline.cli.commands import app
from strandline.cli.replay import OBSERVE_PORT, observed
from strandline.cli.status import head_line
from strandline.errors import BrokerUnreachable, StrandlineError, UsageError
from strandline.observe import Observed
from strandline.replay.beginning import From
from strandline.replay.health import WhenDown
from strandline.replay.plan import Until
from strandline.replay.replay import Replay
from strandline.replay.retries import DefaultRetry, UserRetry
from strandline.replay.status import PartitionStatus, Status, Unfinished
from strandline.replay.watch import Watch
from strandline.stack import KafkaCluster
from strandline.stack.certificates import Authority
from tests.ordered.support import create_topic
from tests.replay.support import Said, capture, committed, connection, get, plan, post, write
from tests.support import TIMEOUT, lines_of, run_warm

if TYPE_CHECKING:
    from strandline.replay.plan import Plan

TARGET = ["--target", "http://127.0.0.1:9"]
patient = DefaultRetry()


def run(*arguments: str) -> None:
    """A command in this process."""
    app(["replay", *arguments], exit_on_error=False, print_error=False, result_action="return_value")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "requires an argument"),
        (["--target", "nowhere"], "nowhere"),
        ([*TARGET, "--speedup", "fast"], "'fast' is no speed; write a number such as 2, 0.5 or 3/2, or max"),
        ([*TARGET, "--speedup", "0"], "a speed of 0 is not possible"),
        ([*TARGET, "--memory", "-1"], "--memory is to be at least 1 (MiB), not -1"),
        ([*TARGET, "--lookahead", "60"], "lookahead is to exceed packet_timeout"),
        ([*TARGET, "--start-at", "now"], "--start-at takes SOURCE@WALL"),
        ([*TARGET, "--lookahead", "1e9"], "--lookahead takes seconds, from 0 up to 31,622,400 (a year), not 1e+09"),
        ([*TARGET, "--packet-timeout", "1e300"], "--packet-timeout takes seconds"),
        ([*TARGET, "--answer-timeout", "inf"], "--answer-timeout. It takes a finite number"),
        ([*TARGET, "--quiescence", "-1"], "--quiescence takes seconds"),
        ([*TARGET, "--drain", "inf"], "--drain. It takes a finite number"),
        ([*TARGET, "--set", "session.timeout.ms=soon"], "'session.timeout.ms' takes a whole number of milliseconds"),
        ([*TARGET, "--group", ""], "a group needs a name; give one by --group"),
        ([*TARGET, "--topic", "a b"], "'a b' is not the name of a topic"),
        ([*TARGET, "--results-topic", "a b"], "'a b' is not the name of a topic"),
        ([*TARGET, "--topic", "t", "--results-topic", "t"], "need a topic each, not 't', 't', 't-dead-letters'"),
        ([*TARGET, "--topic", "t", "--dead-letter-topic", "t-results"], "need a topic each"),
        (
            [*TARGET, "--until", "tomorrow"],
            "'tomorrow' is no end; valid are -1h, 2026-01-01T00:00:00Z, latest, live, n",
        ),
        (["--target", "http://[::1"], "target 'http://[::1' is not like http://host:port"),
        (["--target", "http://host:0"], "target 'http://host:0' has no port that can be"),
        (["--target", "http://a\r\nb"], "is not like http://host:port"),
        ([*TARGET, "--from", "yesterday"], "'yesterday' is no start"),
        ([*TARGET, "--observe", "9464"], "--observe takes HOST:PORT, such as 127.0.0.1:9464, not '9464'"),
        ([*TARGET, "--observe", "127.0.0.1:99999"], "--observe takes HOST:PORT"),
        ([*TARGET, "--frozen-after", "9"], "--frozen-after is for a replay by a fleet; give --workers or --master too"),
        ([*TARGET, "--dry-rnu"], "Unknown option: --dry-rnu. Did you mean --dry-run?"),
        (["status", "--at", "ftp://x"], "--at takes an address such as http://127.0.0.1:9464, not 'ftp://x'"),
        (["status", "--format", "xml"], "Invalid value"),
    ],
)
def test_wrong_use_is_told(arguments: list[str], line: str) -> None:
    with pytest.raises((UsageError, CycloptsError)) as error:
        run(*arguments)
    assert line in " ".join(str(error.value).split())


@pytest.mark.parametrize("target", ["http://ann:hunter2@host", "http://ann:hunter2@host:no", "http://ann:hunter2@[::1"])
def test_a_password_in_the_address_of_the_target_is_refused_and_not_repeated(target: str) -> None:
    with pytest.raises(UsageError, match="a target has no user in its address") as error:
        run("--target", target)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "group"),
    [([], "strandline-replay"), (["--set", "group.id=mine"], "mine"), (["--set", "group.id=a", "--group", "b"], "b")],
)
def test_the_group_may_be_among_the_settings_of_kafka(
    options: list[str], group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[Plan] = []
    monkeypatch.setattr("strandline.cli.dry_run.dry_run", lambda plan, start: plans.append(plan))
    run(*TARGET, "--dry-run", *options)
    assert [plan.kafka["group.id"] for plan in plans] == [group]


def test_each_option_reaches_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Plan] = []
    monkeypatch.setattr("strandline.cli.dry_run.dry_run", lambda plan, start: plans.append(plan))
    ca, kafka = tmp_path / "ca.pem", tmp_path / "kafka.properties"
    ca.write_text(Authority("somebody's").certificate)
    kafka.write_text("sasl.password=hidden\n")
    seconds = shlex.split("--lookahead 900 --packet-timeout 80 --answer-timeout 70 --quiescence 6 --drain 5")
    bounds = shlex.split(
        "--concurrency 4 --memory 3 --speedup 3/2 --no-marker --when-down fail --until live --from latest"
    )
    topics = shlex.split("--topic t --results-topic r --dead-letter-topic d --kafka k:1 --group g --set client.id=c")
    files = ["--results", "r.jsonl", "--tuples", "t.jsonl", "--target-ca", str(ca), "--kafka-config", str(kafka)]
    policy = ["--retry", f"{__name__}:patient", "--start-at", "2026-01-01T00:00:00Z@2026-01-02T09:00:00Z"]
    run("--target", "https://h", "--dry-run", *seconds, *bounds, *topics, *files, *policy)
    (plan,) = plans
    assert plan.topics == ("t", "r", "d")
    assert plan.kafka == {"bootstrap.servers": "k:1", "group.id": "g", "client.id": "c", "sasl.password": "hidden"}
    assert (plan.results, plan.tuples) == (Path("r.jsonl"), Path("t.jsonl"))
    assert (plan.start, plan.until, plan.speed) == (From.LATEST, Until.LIVE, Fraction(3, 2))
    spans = (plan.lookahead, plan.packet_timeout, plan.limits.answer_within, plan.limits.quiescence, plan.drain)
    assert [span.total_seconds() for span in spans] == [900, 80, 70, 6, 5]
    assert (plan.limits.concurrency, plan.limits.memory) == (4, 3 << 20)
    assert (plan.marks, plan.when_down) == (False, WhenDown.FAIL)
    assert isinstance(plan.policy, UserRetry)
    assert plan.reference is not None
    assert plan.reference.source == datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1e9
    assert plan.target._tls is not None
    assert [found["subject"] for found in plan.target._tls.get_ca_certs()] == [((("commonName", "somebody's"),),)]


def test_a_results_file_that_cannot_be_written_is_one_line_and_exit_code_1(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    arguments = [*TARGET, "--topic", topic, "--kafka", kafka.address, "--observe", "127.0.0.1:0"]
    result = run_warm("replay", *arguments, "--results", tmp_path)
    lines = [line for line in lines_of(result.stderr) if "status and metrics" not in line]
    assert (result.returncode, lines) == (1, [f"strandline: results cannot be written to {tmp_path}: Is a directory"])


def test_wrong_use_is_one_line_and_exit_code_2() -> None:
    result = run_warm("replay", *TARGET, "--speedup", "fast")
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)


def test_help_tells_of_the_plan_and_the_status(capsys: pytest.CaptureFixture[str]) -> None:
    run("--help")
    told = capsys.readouterr().out
    assert "--dry-run" in told
    assert "--observe" in told
    assert "status" in told


def test_a_port_that_is_asked_for_and_taken_is_an_error(stranger: int) -> None:
    watch = Watch(replay_of_nothing())
    with pytest.raises(StrandlineError, match=f"--observe: cannot listen on 127.0.0.1:{stranger}: Address already"):
        observed(watch.pages, f"127.0.0.1:{stranger}")


def test_where_the_usual_port_is_taken_another_is_and_it_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with ExitStack() as held:
        with suppress(OSError):  # where somebody else has it, all the better
            held.enter_context(socket.create_server(("127.0.0.1", OBSERVE_PORT)))
        pages = held.enter_context(observed(Watch(replay_of_nothing()).pages, None))
        told = capsys.readouterr().err
        assert told == f"strandline: port {OBSERVE_PORT} is taken; status and metrics are at {pages.address}\n"


def replay_of_nothing() -> Replay:
    return Replay(plan("127.0.0.1:9", "none", "http://127.0.0.1:9"))


@pytest.fixture
def stranger() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


OLDEST = Unfinished(
    offset=1041, age_s=12.34, id="0-1040.2", connection="node/\x1b[2Jc", waits_for="its time", due_in_s=3.21
)
FOUND = Status(
    clock="runs",
    requests=1500,
    sent=1200,
    per_second=99.7,
    source_time=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    late_p50_ms=0.31,
    late_p99_ms=1.9,
    on_their_way=7,
    waiting=300,
    unsafe=2,
    partitions=[
        PartitionStatus(topic="t", partition=0, frontier=1041, end=2000, lag=959, in_flight=12, oldest=OLDEST),
        PartitionStatus(topic="t", partition=1, frontier=None, end=None, lag=None, in_flight=0, oldest=None),
    ],
)


@contextmanager
def showing(page: bytes) -> Iterator[str]:
    with Observed("127.0.0.1", 0, CollectorRegistry(), list, {"/status": lambda: page}) as pages:
        yield pages.address


def test_a_status_is_one_line_and_a_table_without_lines_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with showing(msgspec.json.encode(FOUND)) as at:
        run("status", "--at", at)
    head, columns, first, second = capsys.readouterr().out.splitlines()
    assert head == (
        "1,200 of 1,500 sent (100 a second)   7 on their way   at 2026-01-02T03:04:05Z   late by 0.3 ms, p99 1.9 ms"
        "   2 results not safe yet   the clock runs"
    )
    assert re.split(r"\s{2,}", columns.strip())[:3] == ["partition", "frontier", "end"]
    cells = re.split(r"\s{2,}", first.strip())
    assert cells == [
        "t/0", "1,041", "2,000", "959", "12", "1,041", "0-1040.2", r"node/\x1b[2Jc", "12.3 s", "its time, in 3.2 s",
    ]  # fmt: skip
    assert second.split() == ["t/1", "?", "?", "?", "0", "-", "-", "-", "-", "-"]


def test_a_status_without_a_partition_says_that_the_group_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    with showing(msgspec.json.encode(Status(clock="has not begun"))) as at:
        run("status", "--at", at)
    head, rest = capsys.readouterr().out.splitlines()
    assert head == "0 of 0 sent   0 on their way   the clock has not begun"
    assert rest.startswith("no partition is assigned; the replay waits for its group: a member that was killed keeps")


def test_of_one_thing_it_is_told_as_of_one() -> None:
    assert "   1 result not safe yet   " in head_line(msgspec.structs.replace(FOUND, unsafe=1))


def test_a_status_as_json_is_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    page = msgspec.json.encode(FOUND)
    with showing(page) as at:
        run("status", "--at", at.removeprefix("http://"), "--format", "json")
    assert msgspec.json.decode(capsys.readouterr().out, type=Status) == FOUND


def test_a_status_that_cannot_be_had_is_one_clear_line(stranger: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    result = run_warm("replay", "status", "--at", f"http://127.0.0.1:{port}")
    told = f"strandline: no replay answers at http://127.0.0.1:{port}: Connection refused; say where with --at\n"
    assert (result.returncode, result.stderr) == (1, told)
    with showing(b"[1]") as at, pytest.raises(StrandlineError, match="is no replay"):
        run("status", "--at", at)
    with (
        Observed("127.0.0.1", 0, CollectorRegistry(), list) as other,
        pytest.raises(StrandlineError, match=r"is no replay: it has no page /status \(404\)"),
    ):
        run("status", "--at", other.address)


@pytest.fixture(scope="module")
def topic(kafka: KafkaCluster) -> str:
    """Two connections, four requests in three seconds, a record that cannot be read."""
    secret = "Authorization: Bearer s3cret"
    first = [Said(0, get("/a?token=s3cret&n=1", secret)), Said(1000, post("/b", b"hello")), Said(1500, get("/a"))]
    said = {
        "a": connection("a", first, close_at=2000),
        "b": connection("b", [Said(1400, get("/a")), Said(3000, get("/c"))], close_at=3000),
    }
    capture(kafka.address, "dry", said)
    write(kafka.address, "dry", [("bad", b"\xff\xff")])
    return "dry"


def test_a_dry_run_prints_the_plan_and_commits_nothing(
    kafka: KafkaCluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("transforms: [{set_header: {X-Key: t0psecret}}]\nauth: {header: {name: X-Auth, value: hidd3n}}\n")
    options = ["--topic", topic, "--speedup", "2", "--config", str(config)]
    run("--dry-run", *TARGET, *options, "--kafka", kafka.address, "--group", "dry-group")
    told = capsys.readouterr().out
    unreadable = re.search(r"^unreadable .*\n", told, re.MULTILINE)
    assert unreadable is not None
    assert "1 record, to the dead letters; the first: dry/0@7 is no TrafficStream" in unreadable[0]
    requests = [get("/a?token=s3cret&n=1", "Authorization: Bearer s3cret"), post("/b", b"hello"), get("/a")]
    size = sum(map(len, [*requests, get("/a"), get("/c")]))
    assert told.replace(unreadable[0], "") == (
        "capture      dry, 8 records\n"
        "target       http://127.0.0.1:9\n"
        "connections  2\n"
        f"requests     5, {size:,} bytes; answers 200 bytes\n"
        "source time  2026-05-28T20:26:40.000Z to 2026-05-28T20:26:43.000Z: 3.0 s\n"
        "would take   1.5 s at speed 2\n"
        "peak rate    4 requests in the busiest second (3 at the source)\n"
        "peak load    1 request and 2 connections at once, by the times of the source\n"
        "methods      GET 4, POST 1\n"
        "paths        /a 3, /b 1, /c 1\n"
        "rewritten    set host 127.0.0.1:9\n"
        "             set header X-Key\n"
        "             set header X-Auth\n"
        "example      0-0.0\n"
        "    GET /a?token=***&n=*** HTTP/1.1\n"
        "  - Host: source.example\n"
        "  + Host: 127.0.0.1:9\n"
        "    Authorization: ***\n"
        "  + X-Key: ***\n"
        "  + X-Auth: ***\n"
        "  + X-Strandline-Request: 0-0.0\n"
    )
    assert committed(kafka.address, topic, group="dry-group") == [-1001]


def test_a_dry_run_begins_and_ends_where_it_is_told(
    kafka: KafkaCluster, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    until = "2026-05-28T20:26:41Z"
    run("--dry-run", *TARGET, "--topic", topic, "--from", "earliest", "--until", until, "--kafka", kafka.address)
    told = capsys.readouterr().out
    assert re.search(r"^requests +1, ", told, re.MULTILINE)
    run("--dry-run", *TARGET, "--topic", topic, "--from", "latest", "--speedup", "max", "--kafka", kafka.address)
    assert re.search(r"^requests +none$", capsys.readouterr().out, re.MULTILINE)


def test_a_dry_run_with_nothing_to_read_says_why(kafka: KafkaCluster, capsys: pytest.CaptureFixture[str]) -> None:
    create_topic(kafka.address, "dry-done")
    asked = ["--dry-run", *TARGET, "--topic", "dry-done", "--kafka", kafka.address, "--group", "done"]
    run(*asked)
    assert "requests     none; 'dry-done' is empty\n" in capsys.readouterr().out
    write(kafka.address, "dry-done", (("a", record) for record in connection("a", [Said(0, get("/"))])))
    member = Consumer({"bootstrap.servers": kafka.address, "group.id": "done"})
    member.commit(offsets=[TopicPartition("dry-done", 0, 1)], asynchronous=False)
    member.close()
    run(*asked)
    left = "nothing is left for the group 'done' in 'dry-done'"
    assert f"requests     none; {left}; --from earliest begins anew\n" in capsys.readouterr().out
    run(*asked, "--from", "earliest", "--until", "2020-01-01T00:00:00Z")
    assert "requests     none\n" in capsys.readouterr().out


def test_a_dry_run_that_is_stopped_prints_what_it_has(
    kafka: KafkaCluster, topic: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def at_once(act: Callable[[], object]) -> Iterator[None]:
        act()
        yield

    monkeypatch.setattr("strandline.cli.dry_run.on_stop_request", at_once)
    run("--dry-run", *TARGET, "--topic", topic, "--kafka", kafka.address)
    assert capsys.readouterr().out.startswith(
        "stopped half-way; of what was read until then:\ncapture      dry, 0 records"
    )


def test_a_dry_run_refuses_a_scattered_capture(kafka: KafkaCluster) -> None:
    records = connection("a", [Said(0, get("/"))])
    capture(kafka.address, "dry-scattered", {"a.1": records}, partitions=2)
    with pytest.raises(StrandlineError, match="strandline import --rekey dry-scattered --topic NEW"):
        run("--dry-run", *TARGET, "--topic", "dry-scattered", "--kafka", kafka.address)


def test_a_dry_run_gives_up_on_a_kafka_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.cli.dry_run.START_WITHIN", timedelta(seconds=0.2))
    with pytest.raises(BrokerUnreachable, match=r"^Kafka at 127\.0\.0\.1:1"):
        run("--dry-run", *TARGET, "--from", "earliest", "--kafka", "127.0.0.1:1")


def test_a_replay_of_which_no_request_is_answered_has_exit_code_1_and_tells_no_lateness(kafka: KafkaCluster) -> None:
    capture(kafka.address, "unanswered", {"a": connection("a", [Said(0, get("/"))])})
    place = ["--topic", "unanswered", "--kafka", kafka.address, "--observe", "127.0.0.1:0"]
    result = run_warm("replay", *TARGET, *place, "--until", "live", "--when-down", "fail")
    *_, summary, last = result.stderr.splitlines()
    assert summary == "0 of 1 requests sent; results: 1 no target; 1 failed"
    assert last == "strandline: http://127.0.0.1:9: no request got an answer, and 1 failed; the results say why"
    assert result.returncode == 1


def test_a_running_replay_tells_its_status(kafka: KafkaCluster) -> None:
    capture(kafka.address, "told", {"a": connection("a", [Said(0, get("/"))])})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "strandline", "replay", "--target", target, "--topic", "told"]
        options = ["--kafka", kafka.address, "--observe", "127.0.0.1:0", "--drain", "0.1"]
        running = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
        assert running.stderr is not None
        try:
            said = next(line for line in running.stderr if lines_of(line))
            found = re.search(r"status and metrics are at (http://127\.0\.0\.1:\d+)", said)
            assert found is not None, said
            oldest = wait_for_oldest(found[1])
            result = run_warm("replay", "status", "--at", found[1])
            assert result.returncode == 0, result.stderr
            assert re.search(r"told/0 .* 0-0\.0 +node/a .* the target's answer", result.stdout)
            assert oldest["id"] == "0-0.0"
            running.terminate()
            assert running.wait(TIMEOUT) == 0
        finally:
            running.kill()
            running.wait()
            running.stderr.close()


def wait_for_oldest(at: str) -> dict[str, Any]:
    """Ask until a request is with the target."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"{at}/status", timeout=TIMEOUT) as answer:
            for partition in json.load(answer)["partitions"]:
                if partition["oldest"] and partition["oldest"]["waits_for"] == "the target's answer":
                    return dict(partition["oldest"])
        time.sleep(0.02)
    raise AssertionError("no request came to the target")
