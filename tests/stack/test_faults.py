"""Faults: the same seed strikes the same requests, as often as was asked and no more."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.stack.endpoint.faults import (
    SPARED,
    Chance,
    FailRecords,
    Fate,
    Fault,
    Orders,
    Refuse,
    Shuffle,
    Slow,
    TimeOut,
)

shares = st.floats(0, 1)
times = st.none() | st.integers(0, 20)
faults: st.SearchStrategy[Fault] = st.one_of(
    st.builds(FailRecords, share=shares, times=times),
    st.builds(Shuffle, times=times),
    st.builds(Refuse, code=st.just("AccessDeniedException"), share=shares, times=times),
    st.builds(TimeOut, accepts=st.booleans(), share=shares, times=times),
    st.builds(Slow, seconds=st.floats(0, 5), share=shares, times=times),
)
lists = st.lists(faults, max_size=5)


def draws(chance: Chance, count: int) -> list[tuple[Fate, str | None]]:
    found = []
    for _ in range(count):
        fate = chance.next()
        found.append((fate, chance.fails(fate.failing)))
    return found


@given(lists, st.integers())
def test_the_same_seed_strikes_the_same_requests_and_records(faults: list[Fault], seed: int) -> None:
    assert draws(Chance(faults, seed=seed), 30) == draws(Chance(faults, seed=seed), 30)


@given(st.integers(0, 20))
def test_a_fault_strikes_as_often_as_was_asked_and_no_more(times: int) -> None:
    chance = Chance([Refuse(code="InternalFailure", times=times)], seed=0)
    assert [chance.next().refuse is not None for _ in range(30)] == [number < times for number in range(30)]


@given(lists, st.integers())
def test_a_request_is_refused_or_not_answered_but_never_both(faults: list[Fault], seed: int) -> None:
    for fate, _ in draws(Chance(faults, seed=seed), 30):
        assert fate.refuse is None or fate.time_out is None


@given(st.integers())
def test_a_share_of_none_strikes_never_and_of_all_always(seed: int) -> None:
    none = Chance([FailRecords(share=0), Slow(seconds=1, share=0)], seed=seed)
    assert all(code is None and not fate.delay_s for fate, code in draws(none, 30))
    every = Chance([FailRecords(share=1), Slow(seconds=1, share=1)], seed=seed)
    assert all(code == "InternalFailure" and fate.delay_s == 1 for fate, code in draws(every, 30))


def test_without_faults_every_request_is_spared() -> None:
    assert Chance([], seed=1).next() is SPARED


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (Refuse(code="AccessDeniedException"), 400),
        (Refuse(code="InternalFailure"), 500),
        (Refuse(code="ServiceUnavailable"), 503),
        (Refuse(code=""), 500),
        (Refuse(code="", status=503), 503),
        (Refuse(code="KMSDisabledException", status=403), 403),
    ],
)
def test_an_error_is_answered_with_the_status_of_its_code_unless_told(fault: Refuse, status: int) -> None:
    assert fault.answered == status


@given(st.builds(Orders, stream=st.text(min_size=1, max_size=128), faults=lists, seed=st.integers(-(2**63), 2**63 - 1)))
def test_orders_are_read_as_they_were_written(orders: Orders) -> None:
    assert msgspec.json.decode(msgspec.json.encode(orders), type=Orders) == orders


@pytest.mark.parametrize(
    "orders",
    [
        b'{"stream":"s","faults":[{"fault":"fail_records","share":1.5}]}',
        b'{"stream":"s","faults":[{"fault":"fail_records","share":1,"code":"Other"}]}',
        b'{"stream":"s","faults":[{"fault":"burn"}]}',
        b'{"stream":"s","faults":[{"fault":"slow","seconds":1,"second":2}]}',
        b'{"stream":"s","faults":[{"fault":"slow","seconds":-1}]}',
        b'{"stream":"","faults":[]}',
    ],
)
def test_orders_that_make_no_sense_are_refused(orders: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(orders, type=Orders)
