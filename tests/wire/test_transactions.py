"""The laws of the accumulator: the same transactions however the log is cut, every record freed, nothing told twice."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.units import Nanos
from strandline.wire.accumulator import BEHIND, Accumulator, State
from strandline.wire.traffic import Recording
from strandline.wire.traffic_pb2 import TrafficObservation, TrafficStream
from strandline.wire.transactions import Cause, ConnectionKey, Record, Transaction
from tests.wire.messages import Message, pieces, requests, responses

EXPIRY = Nanos(1_000)
SHORT = 300
"""So long are records at most where long reads and writes lie in several of them."""


class Pieces:
    """All in memory."""

    def __init__(self) -> None:
        self.pieces: list[tuple[Nanos, bytes]] = []

    @property
    def size(self) -> int:
        return len(self.content)

    @property
    def content(self) -> bytes:
        return b"".join(data for _, data in self.pieces)

    def release(self) -> None:
        self.pieces.clear()

    def add(self, at: Nanos, data: bytes) -> None:
        self.pieces.append((at, data))


def sent(transaction: Transaction) -> bytes:
    assert isinstance(transaction.packets, Pieces)
    return transaction.packets.content


@dataclass
class Seen:
    """What the accumulator told."""

    requests: list[Transaction] = field(default_factory=list)
    answered: list[Transaction] = field(default_factory=list)
    unsent: list[tuple[Transaction, Cause]] = field(default_factory=list)
    closed: list[tuple[ConnectionKey, Cause]] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.accumulator = Accumulator(self, Pieces, expire_after=EXPIRY)
        self._offsets = count()

    def on_request(self, transaction: Transaction) -> None:
        self.requests.append(transaction)

    def on_answer(self, transaction: Transaction) -> None:
        assert transaction in self.requests
        self.answered.append(transaction)

    def on_unsent(self, transaction: Transaction, cause: Cause) -> None:
        self.unsent.append((transaction, cause))

    def on_close(self, key: ConnectionKey, partition: int, at: Nanos, cause: Cause) -> None:
        self.closed.append((key, cause))

    def take(self, records: list[bytes], generation: int = 1) -> None:
        for record in records:
            offset = next(self._offsets)
            held = Record(0, offset, generation, lambda freed: self.freed.append(freed.offset))
            self.accumulator.accept(held, TrafficStream.FromString(record))

    @property
    def told(self) -> list[tuple[bytes, int, bytes]]:
        """Every transaction: the request's bytes, the answer's status and body."""
        return [
            (sent(t), t.answer.status if t.answer else 0, t.answer.body if t.answer else b"") for t in self.requests
        ]


@dataclass(frozen=True)
class Exchange:
    request: Message
    answer: Message | None


@st.composite
def exchanges(draw: st.DrawFn) -> list[Exchange]:
    asked = draw(st.lists(requests(), max_size=4))
    return [Exchange(request, draw(responses(request.method))) for request in asked]


@st.composite
def logs(draw: st.DrawFn, happened: list[Exchange], *, marked: bool) -> list[bytes]:
    """What a capture may have written of these exchanges: cut anywhere, some of them pipelined."""
    recording = Recording("node", "connection", draw(st.sampled_from([SHORT, 5000])))
    records: list[bytes] = []
    clock = count()

    def maybe_cut() -> None:
        if draw(st.booleans()):
            records.extend(recording.take())

    groups: list[list[Exchange]] = []
    for exchange in happened:
        is_pipelined: bool = draw(st.booleans())
        if groups and is_pipelined:
            groups[-1].append(exchange)
        else:
            groups.append([exchange])
    for group in groups:
        for piece in draw(pieces(b"".join(exchange.request.wire for exchange in group))):
            recording.read(Nanos(next(clock)), piece)
            maybe_cut()
        if marked:
            recording.end_of_request(Nanos(next(clock)))
            maybe_cut()
        for piece in draw(pieces(b"".join(exchange.answer.wire for exchange in group if exchange.answer))):
            recording.write(Nanos(next(clock)), piece)
            maybe_cut()
    if draw(st.booleans()):
        recording.close(Nanos(next(clock)))
    return [draw(segmented(record)) for record in records + recording.take(last=True)]


@st.composite
def segmented(draw: st.DrawFn, record: bytes) -> bytes:
    """The record with some of its reads and writes cut into segments."""
    stream = TrafficStream.FromString(record)
    observations, segments = list(stream.subStream), []
    for observation in observations:
        kind = observation.WhichOneof("Capture")
        if kind not in {"read", "write"} or not draw(st.booleans()):
            segments.append(observation)
            continue
        for piece in draw(pieces(getattr(observation, kind).data)):
            segment = TrafficObservation(ts=observation.ts)
            getattr(segment, f"{kind}Segment").data = piece
            segments.append(segment)
        end = TrafficObservation(ts=observation.ts)
        end.segmentEnd.SetInParent()
        segments.append(end)
    del stream.subStream[:]
    stream.subStream.extend(segments)
    return stream.SerializeToString()


@given(exchanges(), st.booleans(), st.data())
def test_any_cut_of_the_log_gives_the_same_transactions(
    happened: list[Exchange], marked: bool, data: st.DataObject
) -> None:
    seen = Seen()
    records = data.draw(logs(happened, marked=marked))
    seen.take(records)
    assert seen.told == [(e.request.wire, e.answer.status, e.answer.body) for e in happened if e.answer]
    assert all(transaction.answer and transaction.answer.complete for transaction in seen.answered)
    assert seen.answered == seen.requests
    assert [cause for _, cause in seen.closed] == [Cause.CLOSED]
    assert not seen.unsent
    for transaction in data.draw(st.permutations(seen.requests)):
        transaction.release()
    assert sorted(seen.freed) == list(range(len(records)))


@given(exchanges(), st.data())
def test_reading_again_from_any_record_repeats_whole_transactions_with_the_same_ids(
    happened: list[Exchange], data: st.DataObject
) -> None:
    records = data.draw(logs(happened, marked=True))
    whole = Seen()
    whole.take(records)
    start = data.draw(st.integers(0, len(records) - 1))
    again = Seen()
    again._offsets = count(start)
    again.take(records[start:])
    wanted = [(t.id, sent(t)) for t in whole.requests if min(held.offset for held in t.anchors) >= start]
    found = [(t.id, sent(t)) for t in again.requests]
    assert [told for told in found if told in wanted] == wanted
    assert {told for told, _ in found} <= {t.id for t in whole.requests if t.record.offset >= start}
    assert not again.unsent


@given(exchanges(), st.data())
def test_an_unfinished_transaction_holds_every_record_that_has_a_byte_of_it(
    happened: list[Exchange], data: st.DataObject
) -> None:
    seen = Seen()
    records = data.draw(logs(happened, marked=True))
    seen.take(records)
    kept = data.draw(st.sets(st.sampled_from(seen.requests))) if seen.requests else set()
    for transaction in seen.requests:
        if transaction not in kept:
            transaction.release()
    held = {record.offset for transaction in kept for record in transaction.anchors}
    assert set(seen.freed) == set(range(len(records))) - held


def record_of(*act: Callable[[Recording], None], node: str = "n", connection: str = "c") -> Recording:
    recording = Recording(node, connection)
    for step in act:
        step(recording)
    return recording


GET = b"GET / HTTP/1.1\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def test_a_dropped_request_is_not_told_whether_it_was_complete_or_not() -> None:
    for read in (GET, GET[:5]):
        seen = Seen()
        recording = record_of()
        recording.read(Nanos(1), read)
        records = recording.take()
        recording.drop_request(Nanos(2))
        recording.read(Nanos(3), b"POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\nx")
        recording.end_of_request(Nanos(4))
        seen.take(records + recording.take())
        assert [t.method for t in seen.requests] == [b"POST"]
        assert [t.id for t in seen.requests] == ["0-1.0"]
        assert seen.freed == [0]


def test_what_is_not_http_goes_by_the_marks_of_the_capture() -> None:
    seen = Seen()
    recording = record_of()
    for number in range(2):
        recording.read(Nanos(number * 10), b"\x00\x01 garbage\n")
        recording.read(Nanos(number * 10 + 1), b"more")
        recording.end_of_request(Nanos(number * 10 + 2))
        recording.write(Nanos(number * 10 + 3), b"also ")
        recording.write(Nanos(number * 10 + 4), b"garbage")
    seen.take(recording.take(last=True))
    assert seen.told == [(b"\x00\x01 garbage\nmore", 0, b"also garbage")] * 2
    assert not any(t.answer and t.answer.complete for t in seen.requests)


def test_a_request_that_the_capture_marks_complete_too_early_ends_there() -> None:
    seen = Seen()
    recording = record_of()
    recording.read(Nanos(1), b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nx")
    recording.end_of_request(Nanos(2))
    recording.write(Nanos(3), OK)
    recording.read(Nanos(4), GET)
    recording.end_of_request(Nanos(5))
    seen.take(recording.take())
    assert [t.method for t in seen.requests] == [b"POST", b"GET"]
    assert [t.answer.status for t in seen.answered if t.answer] == [200]


def test_after_an_upgrade_nothing_more_is_told() -> None:
    seen = Seen()
    recording = record_of()
    recording.read(Nanos(1), b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n")
    recording.end_of_request(Nanos(2))
    recording.write(Nanos(3), b"HTTP/1.1 101 Yes\r\nUpgrade: websocket\r\n\r\n\x81\x01")
    recording.read(Nanos(4), GET)
    recording.write(Nanos(5), OK)
    seen.take(recording.take(last=True))
    assert seen.told == [(b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n", 101, b"")]


def test_an_answer_before_the_request_was_whole_is_told_with_it() -> None:
    seen = Seen()
    recording = record_of()
    recording.read(Nanos(1), b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nx")
    recording.write(Nanos(2), b"HTTP/1.1 413 No\r\nContent-Length: 0\r\n\r\n")
    seen.take(recording.take())
    assert not seen.requests
    recording.read(Nanos(3), b"y")
    recording.end_of_request(Nanos(4))
    seen.take(recording.take())
    assert [t.answer.status for t in seen.answered if t.answer] == [413]


@pytest.mark.parametrize("cut", range(1, len(OK)))
def test_a_response_that_never_ends_is_told_incomplete_when_the_connection_expires(cut: int) -> None:
    seen = Seen()
    recording = record_of()
    recording.read(Nanos(1), GET)
    recording.end_of_request(Nanos(2))
    recording.write(Nanos(3), OK[:cut])
    seen.take(recording.take())
    seen.accumulator.advance(0, Nanos(3 + EXPIRY))
    assert not seen.answered
    seen.accumulator.advance(0, Nanos(4 + EXPIRY))
    assert len(seen.answered) == 1
    answer = seen.answered[0].answer
    assert answer is None or not answer.complete
    assert seen.closed == [(ConnectionKey("n", "c"), Cause.EXPIRED)]


def test_a_connection_expires_by_the_time_of_its_own_node_which_may_write_later_than_others() -> None:
    seen = Seen()
    late, prompt = record_of(node="late"), record_of(node="prompt")
    late.read(Nanos(1), GET[:4])
    seen.take(late.take())
    prompt.read(Nanos(1 + 3 * EXPIRY), GET)
    seen.take(prompt.take())
    late.read(Nanos(2), GET[4:])
    late.end_of_request(Nanos(3))
    seen.take(late.take())
    assert [sent(t) for t in seen.requests] == [GET]
    assert not seen.closed
    other = record_of(node="late", connection="other")
    other.read(Nanos(4 + EXPIRY), GET)
    seen.take(other.take())
    assert seen.closed == [(ConnectionKey("late", "c"), Cause.EXPIRED)]


def test_connections_of_a_node_that_writes_nothing_more_expire_all_the_same() -> None:
    seen = Seen()
    gone, alive = record_of(node="gone"), record_of(node="alive")
    gone.read(Nanos(1), GET[:4])
    seen.take(gone.take())
    for number in range(1, BEHIND + 2):
        alive.read(Nanos(number * EXPIRY), GET)
        seen.take(alive.take())
        assert not seen.closed
    alive.read(Nanos((BEHIND + 2) * EXPIRY), GET)
    seen.take(alive.take())
    assert seen.closed == [(ConnectionKey("gone", "c"), Cause.EXPIRED)]
    assert [cause for _, cause in seen.unsent] == [Cause.EXPIRED]


def test_half_a_request_is_told_unsent_once_with_the_cause() -> None:
    for cause in (Cause.CLOSED, Cause.EXPIRED, Cause.BROKEN, Cause.REASSIGNED, Cause.END):
        seen = Seen()
        recording = record_of()
        recording.read(Nanos(1), GET[:4])
        seen.take(recording.take())
        assert seen.accumulator.states() == {State.READING: 1}
        recording.read(Nanos(2), b"x")
        match cause:
            case Cause.CLOSED:
                recording.close(Nanos(3))
                seen.take(recording.take(last=True))
            case Cause.EXPIRED:
                seen.accumulator.advance(0, Nanos(5 + EXPIRY))
            case Cause.BROKEN:
                recording.take()
                recording.read(Nanos(4), GET)
                seen.take(recording.take())
            case Cause.REASSIGNED:
                seen.take(recording.take(), generation=2)
            case Cause.END:
                seen.accumulator.drop(0, cause)
        assert [found for _, found in seen.unsent] == [cause]
        assert not seen.requests


def test_a_record_that_came_before_is_passed_over() -> None:
    seen = Seen()
    recording = record_of()
    recording.read(Nanos(1), GET)
    recording.end_of_request(Nanos(2))
    records = recording.take()
    seen.take(records + records)
    assert len(seen.requests) == 1
    assert seen.freed == [1]


def test_at_the_end_of_the_log_a_complete_request_counts_without_a_mark() -> None:
    seen = Seen()
    recording = record_of()
    recording.read(Nanos(1), GET)
    seen.take(recording.take())
    assert not seen.requests
    seen.accumulator.settle(0)
    assert len(seen.requests) == 1


def test_connections_of_one_name_on_two_nodes_are_two() -> None:
    seen = Seen()
    for node in "ab":
        recording = record_of(node=node)
        recording.read(Nanos(1), GET)
        recording.end_of_request(Nanos(2))
        seen.take(recording.take())
    assert [str(t.key) for t in seen.requests] == ["a/c", "b/c"]


def test_a_time_that_cannot_be_moves_nothing() -> None:
    first, latest = Nanos(10 * EXPIRY), Nanos(20 * EXPIRY)
    seen = Seen()
    seen.accumulator.bound(first, latest)

    def read(name: str, at: int) -> None:
        recording = Recording("node", name)
        recording.read(Nanos(at), b"GET / HTTP/1.1\r\n\r\n")
        recording.end_of_request(Nanos(at))
        seen.take(recording.take())

    read("stray", latest + 1)
    assert seen.accumulator.time(0) == first
    read("sound", first + 5)
    read("another stray", 1000 * latest)
    assert seen.accumulator.time(0) == first + 5
    assert [transaction.began for transaction in seen.requests] == [first, first + 5, first + 5]
    assert (seen.closed, seen.accumulator.strays) == ([], 4)
