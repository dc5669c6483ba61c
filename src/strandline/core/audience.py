"""Who gets what is sent on a channel: those who asked for it by name, and those who asked for all that begin alike.

`BTC.*` stands for every channel that begins with `BTC.`, and `*` for all.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

ANY_END = "*"
# A channel's audience is remembered until somebody comes or goes; so many channels at most, and members in all of them.
REMEMBERED = 100_000
REMEMBERED_MEMBERS = 1_000_000

Member = TypeVar("Member", bound=Hashable)


class Wanted:
    """The channels that one client has asked for."""

    __slots__ = ("_exact", "_prefixes")

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self._exact: set[str] = set()
        self._prefixes: defaultdict[int, set[str]] = defaultdict(set)
        """By their lengths: however many there are, a channel is looked up once for each length."""
        for pattern in patterns:
            self.add(pattern)

    def __len__(self) -> int:
        return len(self._exact) + sum(map(len, self._prefixes.values()))

    def __iter__(self) -> Iterator[str]:
        yield from self._exact
        yield from (prefix + ANY_END for prefixes in self._prefixes.values() for prefix in prefixes)

    def __contains__(self, pattern: str) -> bool:
        if not pattern.endswith(ANY_END):
            return pattern in self._exact
        return pattern[:-1] in self._prefixes.get(len(pattern) - 1, ())

    def add(self, pattern: str) -> None:
        """Ask for one more."""
        if pattern.endswith(ANY_END):
            self._prefixes[len(pattern) - 1].add(pattern[:-1])
        else:
            self._exact.add(pattern)

    def remove(self, pattern: str) -> None:
        """Ask for one less."""
        if pattern in self and pattern.endswith(ANY_END):
            alike = self._prefixes[len(pattern) - 1]
            alike.remove(pattern[:-1])
            if not alike:
                del self._prefixes[len(pattern) - 1]
        else:
            self._exact.discard(pattern)

    def has(self, channel: str) -> bool:
        """Whether what is sent on the channel is for this client."""
        return channel in self._exact or self._has_beginning(channel)

    def covers(self, pattern: str) -> bool:
        """Whether all that a pattern names is for this client."""
        if not pattern.endswith(ANY_END):
            return self.has(pattern)
        return self._has_beginning(pattern[:-1])

    def _has_beginning(self, text: str) -> bool:
        size = len(text)
        # Written out, for it is asked for every record of a replay.
        for length, prefixes in self._prefixes.items():  # noqa: SIM110
            if length <= size and text[:length] in prefixes:
                return True
        return False


class Audience(Generic[Member]):
    """All subscriptions, by what they ask for."""

    def __init__(self) -> None:
        self._exact: dict[str, dict[Member, None]] = {}
        self._prefixes: dict[str, dict[Member, None]] = {}
        self._lengths: Counter[int] = Counter()
        """How many beginnings have so many letters."""
        self._remembered: dict[str, tuple[Member, ...]] = {}
        self._alike: dict[tuple[str, ...], tuple[Member, ...]] = {}
        """By beginnings: the audience of all channels that nobody named and these beginnings match."""
        self._held = 0
        """Members of all tuples that are remembered, and of some that are no more."""

    def add(self, member: Member, pattern: str) -> None:
        """Let a member hear what the pattern names."""
        if pattern.endswith(ANY_END):
            if pattern[:-1] not in self._prefixes:
                self._lengths[len(pattern) - 1] += 1
            self._prefixes.setdefault(pattern[:-1], {})[member] = None
            self._forget()
        else:
            self._exact.setdefault(pattern, {})[member] = None
            self._remembered.pop(pattern, None)

    def remove(self, member: Member, pattern: str) -> None:
        """Let it hear that no more."""
        is_prefix = pattern.endswith(ANY_END)
        place, name = (self._prefixes, pattern[:-1]) if is_prefix else (self._exact, pattern)
        members = place.get(name)
        if members is None:
            return
        members.pop(member, None)
        if not members:
            del place[name]
            if is_prefix:
                self._lengths[len(name)] -= 1
                if not self._lengths[len(name)]:
                    del self._lengths[len(name)]
        if is_prefix:
            self._forget()
        else:
            self._remembered.pop(pattern, None)

    def _forget(self) -> None:
        self._remembered.clear()
        self._alike.clear()
        self._held = 0

    def of(self, channel: str) -> tuple[Member, ...]:
        """Those who hear a channel, each once; the same tuple as long as nobody comes or goes."""
        found = self._remembered.get(channel)
        if found is None:
            if len(self._remembered) >= REMEMBERED or self._held >= REMEMBERED_MEMBERS:
                self._forget()
            beginnings = tuple(
                channel[:length]
                for length in sorted(self._lengths)
                if length <= len(channel) and channel[:length] in self._prefixes
            )
            found = None if channel in self._exact else self._alike.get(beginnings)
            if found is None:
                found = self._gathered(channel, beginnings)
            self._remembered[channel] = found
        return found

    def _gathered(self, channel: str, beginnings: tuple[str, ...]) -> tuple[Member, ...]:
        members = dict(self._exact.get(channel, ()))
        for beginning in beginnings:
            members.update(self._prefixes[beginning])
        found = tuple(members)
        self._held += len(found)
        if channel not in self._exact:
            self._alike[beginnings] = found
        return found
