"""However a log is cut into steps, with nothing but bytes between them, the table is that of one reading."""

import random
from typing import Any

import msgspec
import pytest

from strandline.units import Nanos
from strandline.wire.assembly import Capture
from strandline.wire.resuming import ResumableAssembly
from strandline.wire.traffic import Recording
from tests.wire import captures
from tests.wire.test_assembly import capture_of, table

NO_BOUND = 1 << 40


def in_steps(
    values: list[bytes], cuts: list[int], capture: Capture, state_bytes: int = NO_BOUND
) -> tuple[list[dict[str, Any]], int]:
    """The rows, and the largest state."""
    rows: list[dict[str, Any]] = []
    largest = 0
    assembly = ResumableAssembly(capture, 0, state_bytes)
    for low, high in zip([0, *cuts], [*cuts, len(values)], strict=True):
        for offset in range(low, high):
            assembly.take(0, offset, None, values[offset])
        rows += assembly.rows.take().to_pylist(maps_as_pydicts="strict")
        state = assembly.state()
        largest = max(largest, len(state))
        assembly = ResumableAssembly.resume(capture, 0, state_bytes, state)
        assert assembly.state() == state
    assembly.end()
    return rows + assembly.rows.take().to_pylist(maps_as_pydicts="strict"), largest


@pytest.mark.parametrize("seed", range(15))
def test_any_steps_give_the_rows_of_one_reading(seed: int) -> None:
    values = [value for _, value in captures.records(seed)]
    chance = random.Random(seed)
    cuts = sorted(chance.sample(range(len(values)), min(len(values), chance.choice([1, 5, len(values) // 2]))))
    rows, _ = in_steps(values, cuts, capture_of())
    assert [row["id"] for row in rows] == [row["id"] for row in table(values)]
    assert rows == table(values)


def test_a_state_without_the_times_of_nodes_is_gone_on_from() -> None:
    """As an earlier version has written it."""
    values = [value for _, value in captures.records(1)]
    before = ResumableAssembly(capture_of(), 0, NO_BOUND)
    for offset, value in enumerate(values[: len(values) // 2]):
        before.take(0, offset, None, value)
    time, connections, times = msgspec.msgpack.decode(before.state())
    after = ResumableAssembly.resume(capture_of(), 0, NO_BOUND, msgspec.msgpack.encode([time, connections]))
    assert set(times) >= {node for node, *_ in connections}
    again = msgspec.msgpack.decode(after.state())
    assert (again[0], sorted(again[1])) == (time, sorted(connections))
    assert set(again[2].values()) == {time}


def test_a_connection_with_nothing_unfinished_costs_a_few_bytes() -> None:
    recordings = [Recording("node", f"c{number}") for number in range(100)]
    values = []
    for recording in recordings:
        recording.read(Nanos(1), b"GET / HTTP/1.1\r\n\r\n")
        recording.end_of_request(Nanos(1))
        recording.write(Nanos(2), b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + bytes(5000))
        values += recording.take()
    rows, largest = in_steps(values, [], capture_of())
    assert len(rows) == 100
    assert largest < 100 * 30


def test_a_state_that_would_be_too_large_tells_its_largest_connection_as_it_is() -> None:
    long, short = Recording("node", "long"), Recording("node", "short")
    for recording in (long, short):
        recording.read(Nanos(1), b"GET / HTTP/1.1\r\n\r\n")
        recording.end_of_request(Nanos(1))
    values = [*long.take(), *short.take()]
    long.write(Nanos(2), b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    for number in range(100):
        long.write(Nanos(3 + number), bytes(1000))
        values += long.take()
    long.read(Nanos(200), b"GET /2 HTTP/1.1\r\n\r\n")
    short.write(Nanos(201), b"HTTP/1.1 204 No\r\n\r\n")
    values += [*long.take(), *short.take()]
    rows, largest = in_steps(values, list(range(0, len(values), 3)), capture_of(), 20_000)
    assert largest < 25_000
    assert [(row["connection"], row["completeness"]) for row in rows] == [
        ("long", "response_incomplete"),
        ("short", "complete"),
    ]
    assert 15_000 < rows[0]["response"]["body_bytes"] < 25_000
