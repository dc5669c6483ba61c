"""Laws of what waits: order is kept, and the end of a request leaves only when Kafka has it or it has waited enough."""

from hypothesis import given
from hypothesis import strategies as st

from strandline.capture.holding import Deliveries, EndOfRequests, Held, Waiting


@given(st.lists(st.booleans(), max_size=8), st.data())
def test_what_comes_out_is_what_was_put_in_and_nothing_passes_a_request_that_waits(
    kinds: list[bool], data: st.DataObject
) -> None:
    deliveries = Deliveries(lambda _: None)
    waiting = Waiting()
    put: list[bytes | Held | EndOfRequests] = []
    for is_held in kinds:
        deliveries.published += is_held
        put.append(Held(b"held", deliveries, deliveries.published, 0.0) if is_held else b"plain")
    put.append(EndOfRequests())
    for item in put:
        waiting.put(item)
    out: list[bytes | Held | EndOfRequests] = []
    while waiting:
        while (left := waiting.pop()) is not None:
            out.append(left)
            assert not (isinstance(left, Held) and left.must_wait)
        assert out == put[: len(out)]
        if (first := waiting.held) is not None:
            if data.draw(st.booleans()):
                deliveries.settle(is_acknowledged=True)
            else:
                first.is_timed_out = True
    assert out == put
    assert waiting.bytes == 0


def test_a_request_one_of_whose_records_was_lost_waits_until_it_has_waited_enough() -> None:
    deliveries = Deliveries(lambda _: None)
    held = Held(b"x", deliveries, 1, 0.0)
    deliveries.settle(is_acknowledged=False)
    deliveries.settle(is_acknowledged=True)
    assert held.must_wait
    held.is_timed_out = True
    assert not held.must_wait


def test_what_is_dropped_is_counted() -> None:
    waiting = Waiting()
    for item in (Held(b"x", Deliveries(lambda _: None), 1, 0.0), b"abc", EndOfRequests()):
        waiting.put(item)
    assert waiting.bytes == 4
    assert waiting.drop() == 1
    assert not waiting
    assert waiting.bytes == 0
