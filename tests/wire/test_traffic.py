"""The laws of recording: no record is too large, and together they hold every byte in order."""

from hypothesis import given
from hypothesis import strategies as st

from strandline.units import Nanos
from strandline.wire.traffic import Recording, index_of, when
from strandline.wire.traffic_pb2 import TrafficStream

SMALL = 6000


def parse(records: list[bytes]) -> list[TrafficStream]:
    return [TrafficStream.FromString(record) for record in records]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20_000), st.booleans()), max_size=20))
def test_records_are_bounded_numbered_and_hold_every_byte(seen: list[tuple[bool, int, bool]]) -> None:
    recording = Recording("node", "connection", SMALL)
    records = []
    wanted: dict[bool, bytes] = {True: b"", False: b""}
    for number, (is_read, size, take) in enumerate(seen):
        data = bytes([number % 256]) * size
        (recording.read if is_read else recording.write)(Nanos(number), data)
        wanted[is_read] += data
        if take:
            records += recording.take()
    recording.close(Nanos(99))
    records += recording.take(last=True)
    assert max(map(len, records)) <= SMALL
    streams = parse(records)
    assert [index_of(stream) for stream in streams] == list(range(1, len(streams) + 1))
    assert [stream.WhichOneof("index") for stream in streams][-1] == "numberOfThisLastChunk"
    got = {True: b"", False: b""}
    for stream in streams:
        for observation in stream.subStream:
            got[True] += observation.read.data + observation.readSegment.data
            got[False] += observation.write.data + observation.writeSegment.data
    assert got == wanted


def test_a_later_record_says_what_came_before_it() -> None:
    recording = Recording("n", "c")
    recording.connect(Nanos(1))
    recording.read(Nanos(2_000_000_003), b"GET / HTTP/1.1\r\n")
    first = recording.take()
    recording.read(Nanos(4), b"\r\n")
    recording.end_of_request(Nanos(5), first_line=16, headers=2)
    second = recording.take()
    recording.read(Nanos(6), b"x")
    recording.drop_request(Nanos(7))
    third = recording.take(last=True)
    streams = parse(first + second + third)
    assert [when(observation) for observation in streams[0].subStream] == [1, 2_000_000_003]
    assert [(stream.priorRequestsReceived, stream.lastObservationWasUnterminatedRead) for stream in streams] == [
        (0, False),
        (0, True),
        (1, False),
    ]


def test_records_that_go_on_with_a_read_say_that_it_was_not_at_its_end() -> None:
    recording = Recording("n", "c", SMALL)
    recording.write(Nanos(1), b"w" * (SMALL - 500))
    recording.read(Nanos(2), b"a" * 3 * SMALL)
    recording.end_of_request(Nanos(3))
    streams = parse(recording.take())
    assert not streams[1].subStream[0].write.data
    assert [stream.lastObservationWasUnterminatedRead for stream in streams] == [False, False, True, True, True]


def test_segments_are_closed_where_a_read_was_cut() -> None:
    recording = Recording("n", "c", SMALL)
    recording.read(Nanos(1), b"a" * 3 * SMALL)
    kinds = [o.WhichOneof("Capture") for stream in parse(recording.take()) for o in stream.subStream]
    assert kinds[-1] == "segmentEnd"
    assert set(kinds[:-1]) == {"readSegment"}
