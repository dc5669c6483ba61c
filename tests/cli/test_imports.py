"""`strandline import` on a real broker, as a person runs it."""

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from cyclopts import CycloptsError

from strandline.cli import delivery
from strandline.cli.commands import app
from strandline.errors import (
    BrokerUnreachable,
    CannotImport,
    OptionError,
    StrandlineError,
    UnknownTopic,
    UsageError,
    WrongListener,
)
from strandline.kafka import librdkafka
from strandline.ordered import Earliest, OrderedConsumer, Topic
from strandline.stack import KafkaCluster
from strandline.units import Nanos
from strandline.wire.traffic import Recording, index_of, when
from strandline.wire.traffic_pb2 import TrafficStream
from tests.ordered.support import create_topic
from tests.support import TIMEOUT, lines_of, run_warm

NOON = 1_767_268_800_000_000_000
SEPARATOR = "\n🐵🙈🙉\n"


def command(*arguments: str | Path) -> None:
    """In this process: a new one takes seconds to start."""
    app(["import", *map(str, arguments)], exit_on_error=False, print_error=False, result_action="return_value")


def import_(kafka: KafkaCluster, *arguments: str | Path) -> None:
    command("--kafka", kafka.address, *arguments)


def rows(kafka: KafkaCluster, topic: str) -> list[dict[str, Any]]:
    with OrderedConsumer(kafka.settings(), [Topic(topic, Earliest())]) as consumer:
        return [row for batch in consumer.until_live() for row in batch.to_pylist()]


def by_connection(found: list[dict[str, Any]]) -> dict[str, list[TrafficStream]]:
    """The records by connection in the order of the log; each connection in one partition, under its name."""
    streams: dict[str, list[TrafficStream]] = {}
    places: dict[str, set[int]] = {}
    for row in found:
        stream = TrafficStream.FromString(row["value"])
        assert row["key"] == stream.connectionId.encode()
        streams.setdefault(stream.connectionId, []).append(stream)
        places.setdefault(stream.connectionId, set()).add(row["partition"])
    assert all(len(partitions) == 1 for partitions in places.values())
    return streams


def har(path: Path, *entries: object) -> Path:
    path.write_text(json.dumps({"log": {"version": "1.2", "creator": {"name": "t"}, "entries": entries}}))
    return path


def entry(second: int, path: str, **more: Any) -> dict[str, Any]:
    return {
        "startedDateTime": f"2026-01-01T12:00:{second:02}Z",
        "request": {"method": "GET", "url": f"http://shop.test{path}", "headers": []},
        "response": {"status": 200, "statusText": "OK", "headers": [], "content": {"size": 2, "text": "ok"}},
        "timings": {"send": 0, "wait": 100, "receive": 0},
        **more,
    }


def gor(count: int, first: int = 0) -> str:
    parts = []
    for n in range(first, first + count):
        parts += [
            f"1 {n:024x} {NOON + n * 10**9}\nGET /{n} HTTP/1.1\r\nHost: x\r\n\r\n{SEPARATOR}",
            f"2 {n:024x} {NOON + n * 10**9 + 5} 5\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok{SEPARATOR}",
        ]
    return "".join(parts)


def exported(connection: str, chunks: int) -> list[bytes]:
    recording = Recording("n", connection)
    values = []
    for number in range(chunks):
        at = Nanos(NOON + number)
        recording.read(at, b"GET /%d HTTP/1.1\r\n\r\n" % number)
        recording.end_of_request(at)
        values += recording.take(last=number == chunks - 1)
    return values


def test_files_of_every_kind_become_one_topic(kafka: KafkaCluster, tmp_path: Path) -> None:
    page = har(tmp_path / "page.har", entry(1, "/a"), entry(2, "/b"))
    traffic = tmp_path / "traffic.gor.gz"
    traffic.write_bytes(gzip.compress(gor(3).encode()))
    values = exported("ours", 3)
    lines = [b"ours|" + base64.b64encode(value) for value in reversed(values)]
    export = tmp_path / "export.proto.gz"
    export.write_bytes(gzip.compress(b"\n".join(lines)))
    options = ("--topic", "imported", "--partitions", "3", "--node-id", "me")
    result = run_warm("import", "--kafka", kafka.address, page, traffic, export, *options)
    assert result.returncode == 0, result.stderr
    size = sum(len(row["value"]) for row in rows(kafka, "imported"))
    (line,) = lines_of(result.stderr)
    assert line == (
        f"strandline: 5 connections, 8 requests, 11 records, {size:,} bytes to 'imported'; "
        "2026-01-01T12:00:00.000Z to 2026-01-01T12:00:02.100Z"
    )
    assert not result.stdout
    found = rows(kafka, "imported")
    streams = by_connection(found)
    assert [s.SerializeToString() for s in streams["ours"]] == values
    shop = streams["page.har-1-1"]
    assert [index_of(stream) for stream in shop] == [1, 2]
    assert {stream.nodeId for stream in shop} == {"me"}
    assert shop[0].subStream[1].read.data == b"GET /a HTTP/1.1\r\nHost: shop.test\r\n\r\n"
    assert when(shop[0].subStream[1]) == NOON + 10**9
    assert len(streams) == 5
    assert {row["partition"] for row in found} <= {0, 1, 2}


def test_times_can_be_shifted(kafka: KafkaCluster, tmp_path: Path) -> None:
    page = har(tmp_path / "page.har", entry(1, "/a"), entry(2, "/b"))
    import_(kafka, page, "--topic", "shifted", "--at", "2026-02-01T00:00:00Z")
    (shop,) = by_connection(rows(kafka, "shifted")).values()
    assert [when(stream.subStream[0]) for stream in shop] == [1_769_904_000 * 10**9, 1_769_904_001 * 10**9]


def test_a_topic_that_would_delete_what_is_old_is_refused(kafka: KafkaCluster, tmp_path: Path) -> None:
    create_topic(kafka.address, "week", retention_ms="604800000")
    page = har(tmp_path / "page.har", entry(1, "/a", startedDateTime="2020-01-01T00:00:00Z"))
    with pytest.raises(StrandlineError, match=r"^topic 'week' keeps records for 7 days, and these are older"):
        import_(kafka, page, "--topic", "week")
    import_(kafka, page, "--topic", "week", "--at", "now")
    assert len(rows(kafka, "week")) == 1


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("a.har", b'{"log": {"entries": [{"startedDateTime": 7}]}}', "a.har, entry 1: is not an entry of a HAR: "),
        ("b.har", b'{"log": ', "b.har: is not a HAR: "),
        (
            "c.gor",
            gor(1).encode() + b"nonsense",
            "c.gor, block 3: does not begin with a line such as '1 ID TIME' (2 rec",
        ),
        ("d.txt", base64.b64encode(exported("c", 1)[0]) + b"\nQUJD\n", "d.txt, line 2: is not a TrafficStream; "),
        ("e.gz", gzip.compress(gor(1).encode())[:-9], "e.gz: the file is cut off: its gzip stream has no end"),
    ],
)
def test_a_broken_file_is_an_error_with_its_place(
    kafka: KafkaCluster, tmp_path: Path, name: str, content: bytes, place: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CannotImport) as error:
        import_(kafka, tmp_path / name, "--topic", "broken")
    assert str(error.value).startswith(f"{tmp_path}/{place}")
    assert str(error.value).endswith("; --on-error skip goes on without it")


def test_an_error_is_one_line_and_exit_code_1(kafka: KafkaCluster, tmp_path: Path) -> None:
    (tmp_path / "a.har").write_text("{")
    result = run_warm("import", "--kafka", kafka.address, tmp_path / "a.har", "--topic", "broken")
    assert (result.returncode, result.stdout) == (1, "")
    (line,) = lines_of(result.stderr)
    assert line.startswith(f"strandline: {tmp_path}/a.har: is not a HAR: ")


def test_what_is_skipped_is_named_and_counted(
    kafka: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.gor"
    file.write_text(gor(1) + "nonsense" + SEPARATOR + gor(1, first=1) + f"3 00 {NOON}\nx{SEPARATOR}")
    import_(kafka, file, "--topic", "skipped", "--on-error", "skip")
    first, second, *rest = capsys.readouterr().err.splitlines()
    assert first == f"strandline: skipped: {file}, block 3: does not begin with a line such as '1 ID TIME'"
    assert second.startswith("strandline: 2 connections, 2 requests, 4 records, ")
    assert rest == ["strandline: left out: response to a replay: 1", "strandline: skipped, named above: 1"]


def test_a_scattered_topic_is_mended(kafka: KafkaCluster, capsys: pytest.CaptureFixture[str]) -> None:
    create_topic(kafka.address, "scattered", 4)
    producer = Producer(kafka.settings())
    sent = {name: exported(name, 12) for name in ("a", "b", "c")}
    for name, values in sent.items():
        for index, value in enumerate(values, start=1):
            if (name, index) in {("b", 5), ("c", 1), ("c", 2)}:
                continue
            # Of one time, so that nothing but the numbers tells the order; and one comes twice.
            for _ in range(1 + ((name, index) == ("a", 3))):
                producer.produce(
                    "scattered",
                    value,
                    f"{name}.{index}",
                    partition=-index % 4,
                    timestamp=NOON // 10**6,
                    headers={"h": b"v"},
                )
    assert producer.flush(TIMEOUT) == 0
    import_(kafka, "--rekey", "scattered", "--topic", "mended")
    lines = capsys.readouterr().err.splitlines()
    assert sorted(lines[:2]) == [
        "strandline: connection 'b': record 5 is missing",
        "strandline: connection 'c': records 1 to 2 are missing",
    ]
    assert lines[2].startswith("strandline: 3 connections, 33 requests, 33 records, ")
    assert lines[3:] == ["strandline: left out: repeated record: 1"]
    found = rows(kafka, "mended")
    streams = by_connection(found)
    assert [s.SerializeToString() for s in streams["a"]] == sent["a"]
    assert [index_of(s) for s in streams["b"]] == [n for n in range(1, 13) if n != 5]
    assert [index_of(s) for s in streams["c"]] == list(range(3, 13))
    assert all(row["headers"] == [{"key": "h", "value": b"v"}] for row in found)


def test_where_the_topic_to_read_is_missing_the_new_one_is_not_made(kafka: KafkaCluster) -> None:
    with pytest.raises(UnknownTopic, match="no topic 'nowhere'"):
        import_(kafka, "--rekey", "nowhere", "--topic", "never-made")
    admin = AdminClient({"bootstrap.servers": kafka.address})
    assert "never-made" not in admin.list_topics(timeout=TIMEOUT).topics


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "name the files to import, or a topic by --rekey, and not both"),
        (["--rekey", "t", "--topic", "t"], "--rekey writes to another topic"),
        (["pyproject.toml", "--topic", "a b"], "'a b' is not the name of a topic"),
        (["--rekey", "t", "--format", "har"], "--format and --node-id are about files"),
        (["nowhere.har"], "nowhere.har: cannot be read: No such file or directory"),
        (["."], ".: is not a file"),
        (["pyproject.toml"], "pyproject.toml: is neither a HAR nor a .gor file nor lines of base64"),
        (["src/strandline/py.typed"], "src/strandline/py.typed: is empty"),
        (["pyproject.toml", "--partitions", "0"], "--partitions takes 1 to 10,000, not 0"),
        (["pyproject.toml", "--at", "latest"], "'latest' is no time; valid are -1h, 2026-01-01T00:00:00Z, now"),
        (["pyproject.toml", "pyproject.toml"], "a file is named twice"),
        (["pyproject.toml", "--format", "pcap"], "Invalid value"),
    ],
)
def test_wrong_use_is_refused_before_anything_is_written(arguments: list[str], line: str) -> None:
    with pytest.raises((UsageError, CycloptsError)) as error:
        command(*arguments)
    assert str(error.value).startswith(line)


def test_a_setting_of_kafka_that_does_not_fit_is_told_without_its_value(tmp_path: Path) -> None:
    page = har(tmp_path / "page.har", entry(1, "/a"))
    with pytest.raises(OptionError, match=r"security\.protocol") as error:
        command(page, "--set", "security.protocol=hunter2", "--kafka", "127.0.0.1:1")
    assert "hunter2" not in str(error.value)


def test_a_broker_that_is_not_there_is_told_with_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # Time for a first attempt, of which the reason is known then.
    monkeypatch.setattr(delivery, "ANSWER_WITHIN", 5.0)
    monkeypatch.setattr(librdkafka, "PATIENCE_S", TIMEOUT)
    page = har(tmp_path / "page.har", entry(1, "/a"))
    with pytest.raises(BrokerUnreachable, match=r"^Kafka at 127\.0\.0\.1:1: .*Connection refused"):
        command(page, "--kafka", "127.0.0.1:1")
    assert capfd.readouterr().err == ""


def test_tls_to_a_broker_without_it_is_told(
    kafka: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "ANSWER_WITHIN", 1.0)
    page = har(tmp_path / "page.har", entry(1, "/a"))
    with pytest.raises(WrongListener, match=f"^Kafka at {kafka.address}: this listener does not speak TLS; "):
        import_(kafka, page, "--set", "security.protocol=ssl")
