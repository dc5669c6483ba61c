"""Who hears a channel: the same as asking each member, whoever came and went before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core import audience as module
from strandline.core.audience import Audience, Wanted

NAMES = st.text("ab.", min_size=1, max_size=4)
PATTERNS = NAMES | NAMES.map(lambda name: name + "*") | st.just("*")
STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 3), PATTERNS), max_size=40)


@given(STEPS, NAMES)
def test_an_audience_is_who_wants_the_channel_each_once(steps: list[tuple[bool, int, str]], channel: str) -> None:
    audience: Audience[int] = Audience()
    wanted = {member: Wanted() for member in range(4)}
    for adds, member, pattern in steps:
        audience.of(channel)  # so that what is remembered would show
        if adds:
            audience.add(member, pattern)
            wanted[member].add(pattern)
        else:
            audience.remove(member, pattern)
            wanted[member].remove(pattern)
    heard = audience.of(channel)
    assert sorted(heard) == [member for member, names in wanted.items() if names.has(channel)]


@given(st.lists(PATTERNS), NAMES)
def test_who_wants_a_pattern_wants_every_channel_that_it_names(patterns: list[str], channel: str) -> None:
    wanted = Wanted(patterns)
    by_hand = any(
        channel.startswith(pattern[:-1]) if pattern.endswith("*") else channel == pattern for pattern in patterns
    )
    assert wanted.has(channel) == by_hand
    assert set(wanted) == set(patterns)


@given(st.lists(PATTERNS), PATTERNS, NAMES)
def test_what_is_covered_lets_nobody_hear_more_than_is_allowed(patterns: list[str], asked: str, channel: str) -> None:
    allowed = Wanted(patterns)
    if allowed.covers(asked) and Wanted([asked]).has(channel):
        assert allowed.has(channel)


def test_channels_that_the_same_members_hear_by_their_beginnings_share_what_is_remembered_of_them() -> None:
    audience: Audience[int] = Audience()
    for member in range(50):
        audience.add(member, "*")
    audience.add(7, "b.*")
    assert len({id(audience.of(f"a.{n}")) for n in range(100)}) == 1
    assert len({id(audience.of(f"b.{n}")) for n in range(100)}) == 1


def test_no_more_members_are_remembered_than_there_is_a_bound_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED_MEMBERS", 100)
    audience: Audience[int] = Audience()
    for channel in range(60):
        for member in range(10):
            audience.add(member, str(channel))
    for channel in range(60):
        assert audience.of(str(channel)) == tuple(range(10))
        assert sum(map(len, audience._remembered.values())) <= 110
