"""What is drawn anew for each answer is noise; what the target changes is not, however often the place moves."""

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.report.differences import Change
from strandline.report.noise import BY_OTHERS, BY_SOURCE, BY_TWO_RUNS, Evidence, Place, _tails, learn
from strandline.report.summary import Kind

PLACE = Place("GET /a", Kind.BODY, "$.a", Change.VALUE)
Answers = Sequence[tuple[object, object]]


def two_runs(source: Sequence[object], first: Sequence[object], second: Sequence[object]) -> Evidence:
    """What is seen of three answers to each request, as the Spark job counts it."""
    triples = [t for t in zip(source, first, second, strict=True) if len(set(t)) > 1]
    differ = [(s, a) for s, a, _ in triples if s != a]
    return Evidence(
        differ=len(differ),
        values=len({s for s, _ in differ}),
        pairs=len(set(differ)),
        scattered=sum(s != a != b != s for s, a, b in triples),
        odd_source=sum(a == b for _, a, b in triples),
        odd_target=sum(s in {a, b} for s, a, b in triples),
    )


def asked_twice(one: Answers, other: Answers) -> Evidence:
    """What is seen of pairs of (source, target) of the same request."""
    differ = [pair for pair in (*one, *other) if pair[0] != pair[1]]
    both = [(s, t, u, v) for (s, t), (u, v) in zip(one, other, strict=True) if s != t and u != v]
    return Evidence(
        differ=len(differ),
        values=len({s for s, _ in differ}),
        pairs=len(set(differ)),
        moved=sum(s != u for s, _, u, _ in both),
        stood=sum(s == u for s, _, u, _ in both),
        agreed=sum((s == t) != (u == v) for (s, t), (u, v) in zip(one, other, strict=True)),
    )


def is_noise(evidence: Evidence) -> bool:
    return PLACE in learn({PLACE: evidence})


DRAWN: dict[str, Callable[[random.Random], object]] = {
    "random": lambda chance: chance.random(),
    "one of ten": lambda chance: chance.randrange(10),
}


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
@settings(derandomize=True)
@given(seed=st.integers(), count=st.integers(20, 200))
def test_what_is_drawn_anew_is_noise_by_two_runs(
    draw: Callable[[random.Random], object], seed: int, count: int
) -> None:
    chance = random.Random(seed)
    source, first, second = ([draw(chance) for _ in range(count)] for _ in range(3))
    assert learn({PLACE: two_runs(source, first, second)}) == {PLACE: BY_TWO_RUNS}


@given(seed=st.integers(), count=st.integers(1, 100))
def test_what_is_drawn_anew_is_noise_by_requests_asked_twice(seed: int, count: int) -> None:
    chance = random.Random(seed)
    one, other = ([(chance.random(), chance.random()) for _ in range(count)] for _ in range(2))
    assert learn({PLACE: asked_twice(one, other)}) == {PLACE: BY_SOURCE}


@given(seed=st.integers(), count=st.integers(1, 200), share=st.floats(0.01, 1))
def test_a_target_that_differs_in_the_same_requests_each_time_is_not_noise(seed: int, count: int, share: float) -> None:
    chance = random.Random(seed)
    source = [chance.randrange(1000) for _ in range(count)]
    target = [-value - 1 if chance.random() < share else value for value in source]
    assert not is_noise(two_runs(source, target, target))
    pairs = list(zip(source, target, strict=True))
    assert not is_noise(asked_twice(pairs, pairs))


# Chance can make anything look like anything, so these are the same trials each time.
@settings(derandomize=True)
@given(seed=st.integers(), count=st.integers(1, 300), share=st.floats(0.01, 0.1))
def test_a_fickle_target_is_not_noise(seed: int, count: int, share: float) -> None:
    chance = random.Random(seed)
    source = list(range(count))
    first, second = ([-1 if chance.random() < share else value for value in source] for _ in range(2))
    assert not is_noise(two_runs(source, first, second))
    one, other = (list(zip(source, run, strict=True)) for run in (first, second))
    assert not is_noise(asked_twice(one, other))


@settings(derandomize=True)
@given(seed=st.integers(), count=st.integers(40, 300), states=st.integers(2, 8))
def test_a_state_that_moves_and_is_told_wrong_is_not_noise(seed: int, count: int, states: int) -> None:
    chance = random.Random(seed)
    one, other = ([chance.randrange(states) for _ in range(count)] for _ in range(2))
    told = [[(value, f"wrong {value}") for value in run] for run in (one, other)]
    assert not is_noise(asked_twice(*told))
    now_and_then = [[(value, "wrong" if chance.random() < 0.1 else value) for value in run] for run in (one, other)]
    assert not is_noise(asked_twice(*now_and_then))


def test_a_coin_that_is_thrown_often_enough_is_noise_by_two_runs() -> None:
    chance = random.Random(4)
    source, first, second = ([chance.random() < 0.3 for _ in range(500)] for _ in range(3))
    assert is_noise(two_runs(source, first, second))
    assert not is_noise(two_runs(source[:10], first[:10], second[:10]))


def test_a_constant_in_the_place_of_what_is_drawn_is_not_noise() -> None:
    chance = random.Random(4)
    source = [chance.random() for _ in range(50)]
    assert not is_noise(two_runs(source, ["x"] * 50, ["x"] * 50))


def test_a_status_is_never_noise() -> None:
    place = Place("GET /a", Kind.STATUS, "", Change.VALUE)
    seen = Evidence(differ=100, values=100, pairs=100, scattered=50, moved=100)
    assert not learn({place: seen})


def test_another_way_to_differ_is_not_hidden_by_noise() -> None:
    renamed = PLACE._replace(change=Change.PRESENCE)
    seen = Evidence(differ=9, values=9, pairs=9, moved=9)
    assert set(learn({PLACE: seen, renamed: Evidence(differ=9, values=1, pairs=1, stood=9)})) == {PLACE}


def test_a_header_is_learned_where_it_can_be_and_known_everywhere() -> None:
    here, there = (Place(f"GET /{name}", Kind.HEADER, "x-id", Change.VALUE) for name in "ab")
    noisy, silent = Evidence(differ=5, values=5, pairs=5, moved=5), Evidence(differ=3, values=3, pairs=3)
    assert learn({here: noisy, there: silent}) == {here: BY_SOURCE, there: BY_OTHERS}
    assert set(learn({here: noisy, there: Evidence(differ=3, values=1, pairs=1, stood=3)})) == {here}
    body = there._replace(kind=Kind.BODY)
    assert set(learn({here._replace(kind=Kind.BODY): noisy, body: silent})) == {here._replace(kind=Kind.BODY)}


@given(st.integers(1, 300), st.data())
def test_tails_are_those_of_the_binomial_distribution(count: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, count))
    at_most, at_least = _tails(count, hits)
    assert 0 <= at_most <= 1 + 1e-9
    assert at_most + at_least == pytest.approx(1 + (at_most - (_tails(count, hits - 1)[0] if hits else 0)))
    large = _tails(30_000, 10_000)
    assert large[0] == pytest.approx(0.5, abs=0.01)
    assert large[1] == pytest.approx(0.5, abs=0.01)
