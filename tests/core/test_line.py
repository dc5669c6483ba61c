"""The line: never more inside than may be, whoever has the better rank first, nobody forgotten."""

import hypothesis.strategies as st
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from strandline.core.line import Line


class Doings(RuleBasedStateMachine):
    """People come, go in, leave; a plain list says who must be where."""

    def __init__(self) -> None:
        super().__init__()
        self.line: Line[int] = Line(at_once=2, most_waiting=3)
        self.count = 0
        self.waiting: list[tuple[int, int]] = []
        self.inside: set[int] = set()

    @rule(rank=st.integers(0, 2))
    def come(self, rank: int) -> None:
        name, self.count = self.count, self.count + 1
        self.waiting.append((rank, name))
        sent_away = self.line.come(name, rank)
        if len(self.waiting) > 3 and len(self.waiting) + len(self.inside) > self.line.at_once:
            last = max(self.waiting)
            assert sent_away == last[1]
            self.waiting.remove(last)
        else:
            assert sent_away is None

    @rule()
    def admit(self) -> None:
        room = max(0, self.line.at_once - len(self.inside))
        first = sorted(self.waiting)[:room]
        assert self.line.admit() == [name for _, name in first]
        self.inside |= {name for _, name in first}
        self.waiting = [one for one in self.waiting if one not in first]

    @rule(which=st.integers(0, 10))
    def leave(self, which: int) -> None:
        everybody = [*self.inside, *(name for _, name in self.waiting)]
        if everybody:
            name = everybody[which % len(everybody)]
            self.line.leave(name)
            self.inside.discard(name)
            self.waiting = [one for one in self.waiting if one[1] != name]

    @rule(at_once=st.integers(1, 4))
    def allow(self, at_once: int) -> None:
        self.line.at_once = at_once

    @invariant()
    def all_are_counted(self) -> None:
        assert (self.line.inside, self.line.waiting) == (len(self.inside), len(self.waiting))


TestTheLineIsWhatAPlainListSays = Doings.TestCase


@given(st.lists(st.integers(0, 3), max_size=30), st.integers(1, 5))
def test_everybody_who_is_not_sent_away_goes_in_at_last(ranks: list[int], at_once: int) -> None:
    line: Line[int] = Line(at_once=at_once, most_waiting=10)
    sent_away = {name for name in (line.come(name, rank) for name, rank in enumerate(ranks)) if name is not None}
    went: list[int] = []
    while some := line.admit():
        assert len(some) <= at_once
        went += some
        for name in some:
            line.leave(name)
    assert set(went) | sent_away == set(range(len(ranks)))
    assert len(went) + len(sent_away) == len(ranks)
    assert [ranks[name] for name in went] == sorted(ranks[name] for name in went)
