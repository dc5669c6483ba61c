"""The table has the transactions that a replay has, each once, with what was sent and answered."""

from collections import defaultdict
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import ScatteredCapture, UnreadableRecord
from strandline.replay.spool import Spool, Spools
from strandline.units import Nanos
from strandline.wire.accumulator import Accumulator
from strandline.wire.assembly import Assembly, Bounds, Capture
from strandline.wire.table import SCHEMA
from strandline.wire.traffic import Recording
from strandline.wire.traffic_pb2 import TrafficStream
from strandline.wire.transactions import Cause, ConnectionKey, Record, Transaction
from tests.wire import captures
from tests.wire.messages import Message
from tests.wire.test_transactions import Exchange, exchanges, logs

EXPIRE_AFTER = Nanos(captures.EXPIRY_MS * captures.MS)


def capture_of(**changes: Any) -> Capture:
    return Capture(**{"topic": "t", "is_spread": False, "expire_after": EXPIRE_AFTER, **changes})


def table(values: list[bytes], capture: Capture | None = None) -> list[dict[str, Any]]:
    """The rows of a log of one partition."""
    assembly = Assembly(capture or capture_of())
    for offset, value in enumerate(values):
        assembly.take(0, offset, None, value)
    assembly.end()
    rows: list[dict[str, Any]] = assembly.rows.take().to_pylist(maps_as_pydicts="strict")
    return rows


@dataclass
class Replayed:
    """A sink that has the bytes of requests where a replay has them."""

    told: dict[str, tuple[bytes, int | None, bytes, list[int]]] = field(default_factory=dict)

    def on_request(self, transaction: Transaction) -> None:
        pass

    def on_answer(self, transaction: Transaction) -> None:
        self._tell(transaction)

    def on_unsent(self, transaction: Transaction, cause: Cause) -> None:
        self._tell(transaction)

    def on_close(self, key: ConnectionKey, partition: int, at: Nanos, cause: Cause) -> None:
        pass

    def _tell(self, transaction: Transaction) -> None:
        assert transaction.id not in self.told
        assert isinstance(transaction.packets, Spool)
        answer = transaction.answer
        sent = b"".join(piece.load() for piece in transaction.packets.pieces)
        offsets = [record.offset for record in transaction.records]
        status, body = (answer.status or None, answer.head + answer.body) if answer else (None, b"")
        self.told[transaction.id] = (sent, status, body, offsets)


@pytest.mark.parametrize("seed", range(15))
def test_the_table_has_the_transactions_of_a_replay(seed: int) -> None:
    values = [value for _, value in captures.records(seed)]
    sink, spools = Replayed(), Spools(1 << 30)
    accumulator = Accumulator(sink, spools.make, expire_after=EXPIRE_AFTER)
    for offset, value in enumerate(values):
        accumulator.accept(Record(0, offset, 0, lambda _: None), TrafficStream.FromString(value))
    accumulator.settle(0)
    accumulator.drop(0, Cause.END)
    rows = table(values)
    assert [row["id"] for row in rows] == list(sink.told)
    for row in rows:
        sent, status, answered, offsets = sink.told[row["id"]]
        assert (row["status"], row["records"]) == (status, offsets)
        assert row["request"]["bytes"] == len(sent)
        assert (row["response"] or {"bytes": 0})["bytes"] == len(answered)
        method = row["request"]["method"]
        assert sent.startswith(row["request"]["body"] if method is None else f"{method} {target(row)} ".encode())
    by_connection = defaultdict(list)
    for row in rows:
        by_connection[row["connection"]].append(row["offset"])
    assert all(offsets == sorted(offsets) for offsets in by_connection.values())


def target(row: dict[str, Any]) -> Any:
    path, query = row["request"]["path"], row["request"]["query"]
    return path if query is None else f"{path}?{query}"


@given(exchanges(), st.booleans(), st.data())
def test_a_row_has_what_was_sent_and_answered_however_the_log_is_cut(
    happened: list[Exchange], marked: bool, data: st.DataObject
) -> None:
    rows = table(data.draw(logs(happened, marked=marked)), capture_of(expire_after=Nanos(10**9)))
    assert [row["index"] for row in rows] == list(range(len(happened)))
    for row, exchange in zip(rows, happened, strict=True):
        assert exchange.answer is not None
        assert row["completeness"] == "complete"
        assert row["request"]["method"].encode() == exchange.request.method
        assert row["status"] == row["response"]["status"] == exchange.answer.status
        for side, message in (("request", exchange.request), ("response", exchange.answer)):
            assert row[side]["headers"] == headers_of(message)
            assert row[side]["body_bytes"] == len(message.body)
            assert row[side]["bytes"] == len(message.head) + len(message.body)
            assert row[side]["first_byte"] <= row[side]["last_byte"]


def headers_of(message: Message) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in message.head.decode().split("\r\n")[1:-2]:
        name, _, value = line.partition(":")
        found.setdefault(name.lower(), []).append(value.strip())
    return found


def exchange_of(request: bytes, answer: bytes) -> list[bytes]:
    recording = Recording("n", "c")
    recording.read(Nanos(5_000), request)
    recording.end_of_request(Nanos(6_000))
    recording.write(Nanos(1_007_000), answer)
    return recording.take(last=True)


@pytest.mark.parametrize("room", [1 << 20, 100])
def test_a_body_too_long_is_cut_and_keeps_its_length_and_its_hash(room: int) -> None:
    body = bytes(range(256)) * 2_000
    head = b"POST /?a HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    capture = capture_of(bounds=Bounds(body=1_000, requests=room, answers=room))
    [row] = table(exchange_of(head + body, answer + body), capture)
    for side in ("request", "response"):
        assert row[side]["body"] == body[: min(room, 1_000) if side == "response" else 1_000 if room > 1_000 else 0]
        assert row[side]["body_bytes"] == len(body)
        assert row[side]["body_sha256"] == sha256(body).hexdigest()
    assert row["duration_ms"] == 1.002
    assert (row["request"]["path"], row["request"]["query"]) == ("/", "a")


def test_chunks_are_undone_also_where_the_body_is_cut() -> None:
    head = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n"
    body = b"4\r\nabcd\r\n3;x=y\r\nefg\r\n0\r\n\r\n"
    [row] = table(exchange_of(head + body, answer + body))
    assert row["request"]["body"] == row["response"]["body"] == b"abcdefg"
    [row] = table(exchange_of(head + body, answer + body), capture_of(bounds=Bounds(body=17)))
    assert row["request"]["body"] == row["response"]["body"] == b"abcde"
    assert row["request"]["body_sha256"] == sha256(body).hexdigest()


def test_what_is_incomplete_is_told_as_such() -> None:
    recording = Recording("n", "c")
    recording.read(Nanos(1_000), b"GET /1 HTTP/1.1\r\n\r\n")
    recording.end_of_request(Nanos(1_000))
    recording.write(Nanos(2_000), b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
    half_answer = recording.take()
    recording.read(Nanos(3_000), b"POST /2 HTTP/1.1\r\nContent-Length: 9\r\n\r\nhalf")
    half_request = recording.take()
    assert [(row["completeness"], row["status"]) for row in table(half_answer)] == [("response_incomplete", 200)]
    [row] = table(half_answer[:0] + half_request)
    assert (row["completeness"], row["response"], row["request"]["body"]) == ("request_incomplete", None, b"half")
    assert row["request"]["path"] == "/2"
    assert row["index"] == 1
    garbage = table(exchange_of(b"\x00 garbage", b"\x00 more"))
    assert [(row["request"]["method"], row["request"]["body"], row["status"]) for row in garbage] == [
        (None, b"\x00 garbage", None)
    ]


def test_a_capture_that_is_scattered_and_a_record_that_is_none_are_refused() -> None:
    [value] = exchange_of(b"GET / HTTP/1.1\r\n\r\n", b"")
    spread = Assembly(capture_of(is_spread=True))
    spread.take(0, 0, b"c", value)
    with pytest.raises(ScatteredCapture, match="offset 1 of t/0"):
        spread.take(0, 1, b"c.1", value)
    with pytest.raises(UnreadableRecord, match="offset 0 of t/0 is no TrafficStream"):
        table([b"\xff"])
    assert len(table([b"\xff", b"", value], capture_of(skip_unreadable=True))) == 1


def test_no_transactions_are_no_rows_of_the_same_columns() -> None:
    batch = Assembly(capture_of()).rows.take()
    assert (batch.num_rows, batch.schema) == (0, SCHEMA)
