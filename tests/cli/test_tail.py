"""`strandline tail` on a real broker, as a person and as other programs run it."""

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from cyclopts import CycloptsError

from strandline.cli import sinks
from strandline.cli.commands import app
from strandline.errors import UsageError
from strandline.stack import KafkaCluster, Stack
from strandline.wire.gather import SCHEMA
from tests.ordered.support import create_topic, produce
from tests.support import TIMEOUT, run_warm, wait_for

DAY = 1_767_225_600_000
TAIL = [sys.executable, "-m", "strandline", "tail"]
SUMMARY = re.compile(r"strandline: ([\d,]+(?: of [\d,]+)? records) in \d+\.\d s \([\d,]+ a second\)\n")
NOT_ALL = re.compile(SUMMARY.pattern.removesuffix(r"\n") + r"; stopped before the end\n")


@pytest.fixture(scope="module")
def tide(kafka: KafkaCluster) -> str:
    """A topic of two partitions with ten records, a second apart."""
    create_topic(kafka.address, "tide", 2)
    producer = Producer(kafka.settings())
    for n in range(10):
        value = json.dumps({"n": n, "level": n / 10})
        headers: list[tuple[str, str | bytes | None]] = [("side", b"odd" if n % 2 else b"even")]
        producer.produce("tide", value, f"k{n}", partition=n % 2, timestamp=DAY + n * 1000, headers=headers)
    assert producer.flush(TIMEOUT) == 0
    return "tide"


def tail(kafka: KafkaCluster, *arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return run_warm("tail", "--kafka", kafka.address, *arguments, **options)


def keys(result: subprocess.CompletedProcess[str]) -> list[str]:
    assert result.returncode == 0, result.stderr
    return [line.split("\t")[2] for line in result.stdout.splitlines()]


def all_keys(first: int = 0, end: int = 10) -> list[str]:
    return [f"k{n}" for n in range(first, end)]


def test_a_pipe_gets_one_line_a_record_in_order_and_stderr_the_summary(kafka: KafkaCluster, tide: str) -> None:
    result = tail(kafka, tide)
    assert result.returncode == 0
    assert result.stdout.splitlines()[:2] == [
        '2026-01-01T00:00:00.000Z\ttide/0@0\tk0\t{"n": 0, "level": 0.0}',
        '2026-01-01T00:00:01.000Z\ttide/1@0\tk1\t{"n": 1, "level": 0.1}',
    ]
    assert keys(result) == all_keys()
    told = SUMMARY.fullmatch(result.stderr)
    assert told is not None, result.stderr
    assert told[1] == "10 records"


@pytest.mark.parametrize(
    ("arguments", "first", "end"),
    [
        (["--from", "latest"], 10, 10),
        (["--from", "2026-01-01T00:00:04Z"], 4, 10),
        (["--from", "2026-01-01T00:00:04Z", "--until", "2026-01-01T01:00:07+01:00"], 4, 7),
        (["--until", "2026-01-01T00:00:00Z"], 0, 0),
        (["--until", "live"], 0, 10),
        (["--until", "now"], 0, 10),
        (["--until", "-1h"], 0, 10),
        (["--from", "-1h"], 10, 10),
        (["--from=-36500d"], 0, 10),
    ],
)
def test_it_begins_and_ends_where_it_is_told(
    kafka: KafkaCluster, tide: str, arguments: list[str], first: int, end: int
) -> None:
    assert keys(tail(kafka, tide, *arguments)) == all_keys(first, end)


@pytest.mark.parametrize(
    ("conditions", "kept"),
    [
        (["key=k3"], ["k3"]),
        (["value~level.: 0.[78]"], ["k7", "k8"]),
        (["header.side=odd", "key~[1-5]"], ["k1", "k3", "k5"]),
        (["partition=1", "value~n.: [0-4],"], ["k1", "k3"]),
    ],
)
def test_only_what_is_asked_for_is_shown(
    kafka: KafkaCluster, tide: str, conditions: list[str], kept: list[str]
) -> None:
    result = tail(kafka, tide, *(part for text in conditions for part in ("--where", text)))
    assert keys(result) == kept
    assert f"{len(kept)} of 10 records" in result.stderr


def test_jsonl_is_one_object_a_line(kafka: KafkaCluster, tide: str) -> None:
    result = tail(kafka, tide, "--format", "jsonl", "--where", "key=k1")
    assert json.loads(result.stdout) == {
        "time": "2026-01-01T00:00:01.000Z",
        "topic": "tide",
        "partition": 1,
        "offset": 0,
        "key": "k1",
        "value": '{"n": 1, "level": 0.1}',
        "headers": [{"key": "side", "value": "odd"}],
    }


def test_arrow_is_a_stream_of_batches_also_without_rows(kafka: KafkaCluster, tide: str) -> None:
    for arguments, rows in (([], 10), (["--from", "latest"], 0)):
        command = [*TAIL, "--kafka", kafka.address, tide, "--format", "arrow", *arguments]
        result = subprocess.run(command, capture_output=True, timeout=TIMEOUT, check=True)
        with pa.ipc.open_stream(result.stdout) as stream:
            table = stream.read_all()
        assert table.schema == SCHEMA
        assert table["key"].to_pylist() == [key.encode() for key in all_keys()][:rows]


def test_parquet_is_files_in_a_new_directory(kafka: KafkaCluster, tide: str, tmp_path: Path) -> None:
    for arguments, rows in (([], 10), (["--from", "latest"], 0)):
        directory = tmp_path / f"new-{rows}" / "tide"
        result = tail(kafka, tide, "--format", f"parquet:{directory}", *arguments)
        assert (result.returncode, result.stdout) == (0, "")
        assert [path.name for path in directory.iterdir()] == ["part-00000.parquet"]
        assert pq.read_table(directory)["key"].to_pylist() == [key.encode() for key in all_keys()][:rows]
        again = tail(kafka, tide, "--format", f"parquet:{directory}")
        assert again.returncode == 2
        assert again.stderr.startswith(f"strandline: {directory} is not an empty directory")


def test_parquet_files_are_bounded_and_settled_only_when_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "ARROW_ROWS", 10)
    monkeypatch.setattr(sinks, "FILE_ROWS", 30)
    row = {"topic": "t", "partition": 0, "offset": 0, "headers": []}
    batch = pa.RecordBatch.from_pylist([row] * 7, schema=SCHEMA)
    settled = []
    with sinks.ParquetFiles(tmp_path) as files:
        for _ in range(7):
            files.write(batch)
            settled.append(files.is_settled)
    assert settled == [False, False, True, False, False, True, False]
    assert [pq.read_metadata(path).num_rows for path in sorted(tmp_path.iterdir())] == [21, 21, 7]


def test_an_error_leaves_no_file_that_looks_complete(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pylist([], schema=SCHEMA)
    with pytest.raises(ZeroDivisionError), sinks.ParquetFiles(tmp_path) as files:
        files.write(batch)
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def test_a_record_can_neither_move_the_cursor_nor_pass_for_two(kafka: KafkaCluster) -> None:
    create_topic(kafka.address, "evil")
    producer = Producer(kafka.settings())
    producer.produce("evil", b"\x1b[2Jx\nforged\t\xff", b"\r\x07", timestamp=DAY)
    producer.produce("evil", None, None, timestamp=DAY)
    assert producer.flush(TIMEOUT) == 0
    assert tail(kafka, "evil").stdout.splitlines() == [
        "2026-01-01T00:00:00.000Z\tevil/0@0\t\\r\\x07\t\\x1b[2Jx\\nforged\\t\\xff",
        "2026-01-01T00:00:00.000Z\tevil/0@1\tNULL\tNULL",
    ]
    screen, code = on_a_terminal(kafka, "evil")
    assert code == 0
    assert b"\x1b[2J" not in screen
    assert b"\nforged" not in screen


def on_a_terminal(kafka: KafkaCluster, *arguments: str) -> tuple[bytes, int]:
    """What a person sees, standard error included."""
    leader, follower = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    command = [*TAIL, "--kafka", kafka.address, *arguments]
    with subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=env) as process:
        os.close(follower)
        seen = b""
        deadline = time.monotonic() + TIMEOUT
        while select.select([leader], [], [], max(0, deadline - time.monotonic()))[0]:
            try:
                seen += os.read(leader, 65_536)
            except OSError:  # the other side is closed
                break
        os.close(leader)
        return seen, process.wait(TIMEOUT)


def test_a_person_sees_json_indented_in_colour_and_progress_that_vanishes(kafka: KafkaCluster, tide: str) -> None:
    screen, code = on_a_terminal(kafka, tide)
    assert code == 0
    text = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", screen).decode().replace("\r\n", "\n")
    assert '2026-01-01T00:00:03.000Z tide/1@1 k3\n  {\n    "n": 3,\n    "level": 0.3\n  }\n' in text
    assert b"\x1b[36m2026-01-01T00:00:03.000Z" in screen
    assert SUMMARY.search(text) is not None
    drawn, wiped = screen.count(b" to go"), screen.count(b"\r\x1b[2K")
    assert drawn == wiped


def test_follow_goes_on_until_ctrl_c_and_ends_in_good_order(kafka: KafkaCluster, tmp_path: Path) -> None:
    create_topic(kafka.address, "flow")
    produce(kafka.address, "flow", [(0, DAY, b"before")])
    for signal_ in (signal.SIGINT, signal.SIGTERM):
        out = tmp_path / f"{signal_}.txt"
        with out.open("w") as opened:
            command = [*TAIL, "--kafka", kafka.address, "flow", "--follow"]
            with subprocess.Popen(command, stdout=opened, stderr=subprocess.PIPE, text=True) as process:
                wait_for(lambda out=out: "before" in out.read_text(), "what was there is shown")  # type: ignore[misc]
                produce(kafka.address, "flow", [(0, DAY + 1, f"after {signal_}".encode())])
                wait_for(lambda out=out, s=signal_: f"after {s}" in out.read_text(), "what came is shown")  # type: ignore[misc]
                process.send_signal(signal_)
                _, told = process.communicate(timeout=TIMEOUT)
                assert process.returncode == 0
        assert SUMMARY.fullmatch(told)


@pytest.mark.server
def test_a_broker_that_is_gone_is_told_while_it_is_tried_again(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    with Stack(["kafka"]) as stack, out.open("w") as printed, err.open("w") as told:
        (kafka,) = stack.kafka
        create_topic(kafka.address, "gone")
        produce(kafka.address, "gone", [(0, DAY, b"before")])
        command = [*TAIL, "--kafka", kafka.address, "gone", "--follow"]
        with subprocess.Popen(command, stdout=printed, stderr=told) as process:
            wait_for(lambda: "before" in out.read_text(), "what was there is shown")
            kafka.brokers[0].stop(signal.SIGKILL, 0.0)
            wait_for(lambda: "; trying again" in err.read_text(), "that it is gone is told")
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT) == 0


def test_what_was_printed_is_committed_and_not_printed_again(kafka: KafkaCluster, tide: str, tmp_path: Path) -> None:
    group = ("--group", "tail-test", "--from", "committed", "--commit")
    assert keys(tail(kafka, tide, *group, "--until", "2026-01-01T00:00:04Z")) == all_keys(0, 4)
    parquet = tmp_path / "parquet"
    assert tail(kafka, tide, *group, "--format", f"parquet:{parquet}", "--where", "partition=0").returncode == 0
    assert pq.read_table(parquet)["key"].to_pylist() == [b"k4", b"k6", b"k8"]
    assert keys(tail(kafka, tide, *group)) == []


def test_what_the_broker_has_deleted_is_named(kafka: KafkaCluster) -> None:
    create_topic(kafka.address, "worn")
    produce(kafka.address, "worn", [(0, DAY + n, b"x") for n in range(9)])
    group = ("--group", "tail-worn", "--from", "committed", "--commit")
    until = datetime.fromtimestamp((DAY + 2) / 1000, UTC).isoformat()
    assert len(keys(tail(kafka, "worn", *group, "--until", until))) == 2
    admin = AdminClient({"bootstrap.servers": kafka.address})
    (done,) = admin.delete_records([TopicPartition("worn", 0, 5)]).values()
    done.result(TIMEOUT)
    result = tail(kafka, "worn", *group)
    assert len(keys(result)) == 4
    told = result.stderr.splitlines()
    assert told[0] == "strandline: offsets 2 to 4 of worn/0 are lost: the broker has deleted them"
    assert told[1].endswith("; ranges of offsets lost, named above: 1")
    assert len(told) == 2


def test_a_damaged_batch_is_an_error_or_named_and_passed_over(kafka: KafkaCluster) -> None:
    create_topic(kafka.address, "tail-damaged")
    for number in range(3):
        produce(kafka.address, "tail-damaged", [(0, DAY + number, f"value-{number}".encode())])
    (segment,) = Path(kafka.directory, "broker-1", "tail-damaged-0").glob("*.log")
    segment.write_bytes(segment.read_bytes().replace(b"value-1", b"value-!"))
    refused = tail(kafka, "tail-damaged")
    assert refused.returncode == 1
    summary, error = refused.stderr.splitlines(keepends=True)
    assert NOT_ALL.fullmatch(summary)
    assert error == "strandline: the record batch at offset 1 of tail-damaged/0: its checksum differs\n"
    skipped = tail(kafka, "tail-damaged", "--on-corrupt", "skip")
    assert [line.split("\t")[3] for line in skipped.stdout.splitlines()] == ["value-0", "value-2"]
    loss, summary = skipped.stderr.splitlines()
    assert loss.startswith("strandline: offsets 1 to 1 of tail-damaged/0 are lost: the batch is corrupt")
    assert summary.endswith("; ranges of offsets lost, named above: 1")


def test_the_address_may_come_from_the_environment_or_a_file(kafka: KafkaCluster, tide: str, tmp_path: Path) -> None:
    env = {**os.environ, "STRANDLINE_KAFKA": kafka.address}
    assert keys(run_warm("tail", tide, env=env)) == all_keys()
    file = tmp_path / "kafka.properties"
    file.write_text(f"bootstrap.servers={kafka.address}\n")
    assert keys(run_warm("tail", tide, "--kafka-config", file)) == all_keys()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "no topic to read: strandline tail TOPIC"),
        (["t", "t"], "topic 't' is named twice"),
        (["t", "--from", "erliest"], "'erliest' is no start; did you mean 'earliest'?"),
        (["t", "--from", "2026-01-01"], "'2026-01-01' has no time zone"),
        (["t", "--until", "never"], "'never' is no end"),
        (["t", "--until", ""], "'' is no end"),
        (["t", "--until", "live", "--follow"], "--follow goes on until Ctrl-C; leave out --until"),
        (["t", "--where", "kye=1"], "'kye=1': field 'kye' is unknown; did you mean 'key'?"),
        (["t", "--where", "value=\udcff"], r"'value=\udcff' is no condition: it is not UTF-8"),
        (["t", "--where", "partition=²"], "'partition=²': a partition is a number"),
        (["t", "--set", "sasl.username=mo"], "a user is given, and security.protocol is not"),
        (["t", "--format", "json"], "format 'json' is unknown; did you mean 'jsonl'?"),
        (["t", "--format", "parquet"], "--format parquet needs a directory: parquet:DIR"),
        (["t", "--commit"], "--commit needs --group"),
        (["t", "--from", "committed"], "--from committed needs --group"),
        (["t", "--group", "g"], "--group is of no use without --from committed or --commit"),
        (["t", "--set", "sasl.passwrod=hunter2"], "sasl.passwrod is not supported; did you mean 'sasl.password'?"),
        (["t", "--set", "hunter2"], "--set takes name=value"),
        (["t", "--kafka", "nowhere:port"], "'bootstrap.servers': 'nowhere:port' is not host:port"),
        (["t", "--kafka-config", "/nowhere"], "/nowhere: cannot be read: No such file or directory"),
        (["t", "--on-corrupt", "ignore"], 'Invalid value "ignore" for --on-corrupt. Choose from: "error", "skip".'),
        (["t", "--folow"], "Unknown option: --folow. Did you mean --follow?"),
    ],
)
def test_wrong_use_is_refused_before_anything_is_read(arguments: list[str], line: str) -> None:
    with pytest.raises((UsageError, CycloptsError)) as caught:
        app(["tail", *arguments], exit_on_error=False, print_error=False, result_action="return_value")
    assert " ".join(str(caught.value).split()).startswith(line)
    assert "hunter2" not in str(caught.value)


def test_wrong_use_is_one_line_and_exit_code_2() -> None:
    result = run_warm("tail", "t", "--set", "sasl.passwrod=hunter2")
    line = "strandline: sasl.passwrod is not supported; did you mean 'sasl.password'?\n"
    assert (result.returncode, result.stdout, result.stderr) == (2, "", line)


def test_a_topic_that_is_not_there_is_one_line(kafka: KafkaCluster) -> None:
    result = tail(kafka, "nowhere")
    assert result.returncode == 1
    assert result.stderr == (
        f"strandline: Kafka at {kafka.address} has no topic 'nowhere', or does not show it to us\n"
    )


@pytest.mark.server
def test_a_broker_that_is_not_there_is_one_line_before_long() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        result = run_warm("tail", "t", "--kafka", address)
    assert result.returncode == 1
    assert result.stderr.startswith(f"strandline: Kafka at {address}: no broker answers")
    assert result.stderr.count("\n") == 1


@pytest.mark.server
def test_ctrl_c_is_heard_while_a_broker_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with subprocess.Popen([*TAIL, "t", "--kafka", address], stderr=subprocess.PIPE, text=True) as process:
            connection, _ = silent.accept()
            with connection:
                process.send_signal(signal.SIGINT)
                _, told = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, told) == (1, "strandline: interrupted before anything was read\n")


def test_arrow_is_not_for_a_terminal(kafka: KafkaCluster, tide: str) -> None:
    screen, code = on_a_terminal(kafka, tide, "--format", "arrow")
    assert code == 2
    assert b"not for a terminal" in screen


@pytest.mark.parametrize("format_", ["text", "jsonl", "arrow"])
def test_whoever_stops_to_read_the_output_has_seen_enough(kafka: KafkaCluster, tide: str, format_: str) -> None:
    command = [*TAIL, "--kafka", kafka.address, tide, "--format", format_]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        told = process.stderr.read()
    assert (process.returncode, told) == (0, "")


def test_after_an_error_the_summary_tells_how_much_was_read(kafka: KafkaCluster, tide: str) -> None:
    with Path("/dev/full").open("w") as full:
        command = [*TAIL, "--kafka", kafka.address, tide]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT, check=False)
    assert result.returncode == 1
    summary, error = result.stderr.splitlines(keepends=True)
    assert NOT_ALL.fullmatch(summary)
    assert error == "strandline: cannot write to standard output: No space left on device\n"


def test_a_partition_that_is_not_there_is_told(kafka: KafkaCluster, tide: str) -> None:
    result = tail(kafka, tide, "--where", "partition=99")
    line = "strandline: --where partition=99: there is no such partition; the highest is 1\n"
    assert (result.returncode, result.stdout, result.stderr) == (2, "", line)


def test_what_is_stopped_before_its_end_says_so_and_fails(kafka: KafkaCluster) -> None:
    create_topic(kafka.address, "long")
    produce(kafka.address, "long", [(0, DAY, b"x" * 1000)] * 20_000)
    command = [*TAIL, "--kafka", kafka.address, "long"]
    for signal_ in (signal.SIGINT, signal.SIGTERM):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.read(1) == "2"  # and it waits for us to read on
            process.send_signal(signal_)
            _, told = process.communicate(timeout=TIMEOUT)
        assert process.returncode == 1
        assert told.count("\n") == 1
        assert told.endswith("a second); stopped before the end\n")


def test_without_standard_output_it_fails_in_one_line_and_without_standard_error_it_works(
    kafka: KafkaCluster, tide: str
) -> None:
    def run(closed: str) -> subprocess.CompletedProcess[str]:
        command = ["sh", "-c", f'exec "$@" {closed}', "sh", *TAIL, "--kafka", kafka.address, tide]
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)

    silent = run(">&-")
    line = "strandline: standard output is closed; --format parquet:DIR needs none\n"
    assert (silent.returncode, silent.stderr) == (1, line)
    assert keys(run("2>&-")) == all_keys()


def test_a_second_ctrl_c_does_not_wait_for_who_does_not_read(kafka: KafkaCluster) -> None:
    create_topic(kafka.address, "broad")
    produce(kafka.address, "broad", [(0, DAY, b"x" * 1000)] * 1000)
    command = [*TAIL, "--kafka", kafka.address, "broad"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1) == "2"
        told = False
        while not told:
            process.send_signal(signal.SIGINT)
            told = bool(select.select([process.stderr], [], [], 0.5)[0])
        summary, interrupted = process.stderr.read().splitlines(keepends=True)
        assert NOT_ALL.fullmatch(summary)
        assert interrupted == "strandline: interrupted\n"
    assert process.returncode == 1
