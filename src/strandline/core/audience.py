"""Who gets what is sent on a channel: those who asked for it by name, and those who asked for all that begin alike.

`BTC.*` stands for every channel that begins with `BTC.`, and `*` for all.
"""

from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

ANY_END = "*"
# A channel's audience is remembered until somebody comes or goes; so many channels at most.
REMEMBERED = 100_000

Member = TypeVar("Member", bound=Hashable)


class Wanted:
    """The channels that one client has asked for."""

    __slots__ = ("_exact", "_prefixes")

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self._exact: set[str] = set()
        self._prefixes: set[str] = set()
        for pattern in patterns:
            self.add(pattern)

    def __len__(self) -> int:
        return len(self._exact) + len(self._prefixes)

    def __iter__(self) -> Iterator[str]:
        yield from self._exact
        yield from (prefix + ANY_END for prefix in self._prefixes)

    def __contains__(self, pattern: str) -> bool:
        return pattern[:-1] in self._prefixes if pattern.endswith(ANY_END) else pattern in self._exact

    def add(self, pattern: str) -> None:
        """Ask for one more."""
        if pattern.endswith(ANY_END):
            self._prefixes.add(pattern[:-1])
        else:
            self._exact.add(pattern)

    def remove(self, pattern: str) -> None:
        """Ask for one less."""
        if pattern.endswith(ANY_END):
            self._prefixes.discard(pattern[:-1])
        else:
            self._exact.discard(pattern)

    def has(self, channel: str) -> bool:
        """Whether what is sent on the channel is for this client."""
        return channel in self._exact or any(channel.startswith(prefix) for prefix in self._prefixes)

    def covers(self, pattern: str) -> bool:
        """Whether all that a pattern names is for this client."""
        if not pattern.endswith(ANY_END):
            return self.has(pattern)
        return any(pattern[:-1].startswith(prefix) for prefix in self._prefixes)


class Audience(Generic[Member]):
    """All subscriptions, by what they ask for."""

    def __init__(self) -> None:
        self._exact: dict[str, dict[Member, None]] = {}
        self._prefixes: dict[str, dict[Member, None]] = {}
        self._lengths: list[int] = []
        self._remembered: dict[str, tuple[Member, ...]] = {}

    def add(self, member: Member, pattern: str) -> None:
        """Let a member hear what the pattern names."""
        if pattern.endswith(ANY_END):
            self._prefixes.setdefault(pattern[:-1], {})[member] = None
            self._prefixes_changed()
        else:
            self._exact.setdefault(pattern, {})[member] = None
            self._remembered.pop(pattern, None)

    def remove(self, member: Member, pattern: str) -> None:
        """Let it hear that no more."""
        is_prefix = pattern.endswith(ANY_END)
        place, name = (self._prefixes, pattern[:-1]) if is_prefix else (self._exact, pattern)
        members = place.get(name, {})
        members.pop(member, None)
        if not members:
            place.pop(name, None)
        if is_prefix:
            self._prefixes_changed()
        else:
            self._remembered.pop(pattern, None)

    def of(self, channel: str) -> tuple[Member, ...]:
        """Those who hear a channel, each once; the same tuple as long as nobody comes or goes."""
        found = self._remembered.get(channel)
        if found is None:
            members = dict(self._exact.get(channel, ()))
            for length in self._lengths:
                members.update(self._prefixes.get(channel[:length], ()) if length <= len(channel) else ())
            if len(self._remembered) >= REMEMBERED:
                self._remembered.clear()
            found = self._remembered[channel] = tuple(members)
        return found

    def _prefixes_changed(self) -> None:
        self._lengths = sorted({len(prefix) for prefix in self._prefixes})
        self._remembered.clear()
