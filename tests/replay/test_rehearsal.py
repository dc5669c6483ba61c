"""What a rehearsal finds in a capture, without sending anything."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import ScatteredCapture
from strandline.kafka.partition import Partition
from strandline.replay import rehearsal as module
from strandline.replay.changes import TransformConfig
from strandline.replay.overlap import Intervals
from strandline.replay.rehearsal import OTHERS, Rehearsal
from strandline.replay.steps import JsonConfig, StepConfig
from strandline.replay.transforms import Transform
from strandline.units import Nanos
from strandline.wire.traffic import Recording
from strandline.wire.transactions import Cause
from tests.replay.support import BEGIN, MS, OK, Said, connection, get, post

PLACE = Partition("traffic", 0)
spans = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=30)


@given(spans, st.integers(1, 12))
def test_peaks_are_those_of_counting_at_every_moment(found: list[tuple[int, int]], width: int) -> None:
    intervals = Intervals()
    for start, length in found:
        intervals.add(Nanos(start), Nanos(start + length))
    ends = [(start, start + max(1, length)) for start, length in found]
    assert intervals.most_at_once() == max(sum(a <= now < b for a, b in ends) for now in range(41))
    busiest = max(sum(now <= a < now + width for a, _ in ends) for now in range(41))
    assert intervals.busiest(Nanos(width)) == busiest
    intervals.close()


def make(transform: TransformConfig | None = None, partitions: int = 1, until: datetime | None = None) -> Rehearsal:
    host = Transform("target:80", transform)
    return Rehearsal(host, expire_after=Nanos(10**11), partitions=partitions, until=until)


def feed(found: Rehearsal, *connections: list[bytes], end: bool = True) -> None:
    for offset, value in enumerate(value for records in connections for value in records):
        found.take(PLACE, offset, b"c", value)
    if end:
        found.end()


def test_requests_connections_bytes_and_times_are_those_of_the_capture(made: Rehearsal) -> None:
    said = [Said(0, get("/a?x=1")), Said(1000, post("/b", b"hello")), Said(1500, get("/a"))]
    feed(made, connection("c", said, close_at=2000), connection("d", [Said(1400, get("/a"))], close_at=1600))
    assert (made.records, made.connections, made.requests) == (6, 2, 4)
    assert made.request_bytes == sum(len(one.request) for one in said) + len(get("/a"))
    assert made.answer_bytes == 4 * len(OK)
    assert (made.first, made.last) == (BEGIN, BEGIN + 1500 * MS)
    assert made.methods == {"GET": 3, "POST": 1}
    assert made.paths == {"/a": 3, "/b": 1}
    assert made.exchanges.busiest(Nanos(1000 * MS)) == 3
    assert (made.exchanges.most_at_once(), made.openings.most_at_once()) == (1, 2)


def test_what_would_not_be_sent_is_counted_by_its_cause(made: Rehearsal) -> None:
    never = Recording("node", "never")
    never.read(Nanos(BEGIN), get("/")[:-1])
    never.close(Nanos(BEGIN + 1))
    at_end = Recording("node", "end")
    at_end.read(Nanos(BEGIN), get("/")[:-1])
    feed(made, never.take(last=True), [b"\xff"], at_end.take())
    assert made.unsent == {Cause.CLOSED: 1, Cause.END: 1}
    assert (made.requests, made.connections, made.unreadable) == (0, 0, 1)
    assert made.first_unreadable.startswith("traffic/0@1 is no TrafficStream")


def test_a_request_that_is_whole_at_the_end_counts_though_nothing_follows_it(made: Rehearsal) -> None:
    recording = Recording("node", "c")
    recording.read(Nanos(BEGIN), get("/"))
    feed(made, recording.take())
    assert made.requests == 1


def test_a_partition_ends_at_the_time_that_was_asked_for() -> None:
    until = datetime.fromtimestamp((BEGIN + 500 * MS) / 1e9, UTC)
    made = make(until=until)
    feed(made, connection("c", [Said(0, get("/")), Said(600, get("/")), Said(700, get("/"))]))
    assert (made.requests, made.over) == (1, {PLACE})
    made.close()


def test_connections_that_are_scattered_over_partitions_are_refused() -> None:
    made = make(partitions=2)
    with pytest.raises(ScatteredCapture, match="--rekey traffic"):
        made.take(PLACE, 7, b"c.1", connection("c", [Said(0, get("/"))])[0])
    made.close()


def test_the_sample_is_rewritten_as_a_request_would_be(made: Rehearsal) -> None:
    feed(made, connection("c", [Said(0, get("/a"))]))
    assert made.sample is not None
    assert made.sample.sent == b"GET /a HTTP/1.1\r\nHost: target:80\r\nX-Strandline-Request: 0-0.0\r\n\r\n"


def test_a_sample_whose_body_must_be_seen_is_a_short_one_and_may_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAMPLE_BYTES", 200)
    kind = "Content-Type: application/json"
    long, short = post("/long", b" " * 200, kind), post("/short", b'{"a": 1}', kind)
    config = TransformConfig(transforms=[StepConfig(json=JsonConfig(set={"b": "longer"}))])
    made = make(config)
    feed(made, connection("c", [Said(0, long), Said(1, short)]))
    assert made.sample is not None
    assert made.sample.captured.startswith(b"POST /short")
    assert b"Content-Length: 20" in (made.sample.sent or b"")
    made.close()
    failed = make(config)
    feed(failed, connection("c", [Said(0, post("/", b"{", kind))]))
    assert failed.sample is not None
    assert failed.sample.sent is None
    assert "no JSON" in failed.sample.problem
    failed.close()


def test_however_many_paths_there_are_only_so_many_are_held(made: Rehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_NAMES", 3)
    feed(made, connection("c", [Said(n, get(f"/{n % 6}")) for n in range(12)]))
    assert made.paths == {"/0": 2, "/1": 2, "/2": 2, OTHERS: 6}


@pytest.fixture
def made() -> Iterator[Rehearsal]:
    rehearsal = make()
    yield rehearsal
    rehearsal.close()
