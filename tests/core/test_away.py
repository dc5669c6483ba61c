"""Who is not there is asked for less and less often; nobody else waits for that."""

import hypothesis.strategies as st
from hypothesis import given

from strandline.core.away import Away

ROUNDS = st.lists(st.tuples(st.floats(0, 3), st.sets(st.sampled_from("abc"))), max_size=30)


@given(ROUNDS)
def test_who_was_there_is_always_asked_for_and_who_was_not_after_a_wait_that_has_a_bound(
    rounds: list[tuple[float, set[str]]],
) -> None:
    away: Away[str] = Away(first_s=0.1, most_s=1.0)
    now, since = 0.0, dict[str, float]()
    for passed, missing in rounds:
        now += passed
        due = away.due("abc", now)
        assert due
        for name in "abc":
            if name not in since or now >= since[name] + 1.0:
                assert name in due
            elif len(due) < 3 and name in due:
                assert now >= since[name] + 0.1
        away.asked(due, missing, now)
        for name in due:
            since.pop(name, None)
            if name in missing:
                since[name] = now
        assert bool(away) == bool(since)


def test_each_wait_is_twice_the_one_before_it_until_it_was_there() -> None:
    away: Away[str] = Away(first_s=0.1, most_s=1.0)
    waits = []
    for is_missing in (True, True, True, True, True, False, True):
        away.asked("a", "a" if is_missing else "", 0.0)
        waits.append(next((n for n in range(1, 200) if "a" in away.due("ab", n / 100)), 0) / 100)
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.0, 0.01, 0.1]
    away.keep("b")
    assert not away
