"""Which cluster owns a topic, a group or a transactional id: of a list of patterns, the first that matches decides.

A cluster may keep its topics under other names than clients see: with the prefix `eu.`, its topic `orders` is
`eu.orders` to them. Owners are decided on what clients see.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from functools import cached_property

Patterns = Sequence[tuple[str, str]]
"""Pattern and cluster; `*` stands for any characters, `?` for one."""


class Owners:
    """Finds the owner of a name, and remembers it for the names that come again."""

    REMEMBERED = 100_000
    LONGEST_REMEMBERED = 249

    def __init__(self, patterns: Patterns, otherwise: str) -> None:
        # To `translate`, characters in brackets are a choice; here a bracket is one.
        self._patterns = [(re.compile(translate(one.replace("[", "[[]"))), cluster) for one, cluster in patterns]
        self._starts = [(*_literal(one), cluster) for one, cluster in patterns]
        self._otherwise = otherwise
        self._known: dict[str, str] = {}

    def of(self, name: str) -> str:
        """The cluster that owns a name."""
        owner = self._known.get(name)
        if owner is None:
            found = (cluster for pattern, cluster in self._patterns if pattern.match(name))
            owner = next(found, self._otherwise)
            if len(self._known) < self.REMEMBERED and len(name) <= self.LONGEST_REMEMBERED:
                self._known[name] = owner
        return owner

    def possible(self, start: str) -> set[str]:
        """The clusters that may own a name which begins so."""
        found = set()
        for literal, rest, cluster in self._starts:
            # One without a star names itself alone, and nothing that is longer.
            if literal.startswith(start) or (rest and start.startswith(literal)):
                found.add(cluster)
            if rest == "*" and start.startswith(literal):
                return found
        return found | {self._otherwise}


def _literal(pattern: str) -> tuple[str, str]:
    """How everything begins that a pattern matches, and the rest of it, from the first star or question mark on."""
    literal = re.split(r"[*?]", pattern, maxsplit=1)[0]
    return literal, pattern[len(literal) :]


def literal_start(expression: str) -> str:
    """How everything begins that a regular expression matches from its start on; nothing where that is not certain."""
    if "|" in expression:
        return ""
    plain = re.match(r"\^?((?:[\w-]|\\[.\-])*)(.?)", expression)
    if plain is None:
        return ""
    # A character before a quantifier may be there or not.
    start = plain[1][:-1] if plain[2] in ("*", "?", "{") else plain[1]
    return start.removesuffix("\\").replace("\\", "")


@dataclass(frozen=True)
class Routes:
    """All that is decided by name."""

    primary: str
    topics: Patterns = ()
    groups: Patterns = ()
    transactional_ids: Patterns = ()
    prefixes: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def topic(self) -> Owners:
        """Whose a topic is, by the name that clients see."""
        return Owners(self.topics, self.primary)

    @cached_property
    def group(self) -> Owners:
        """Where a group is at home."""
        return Owners(self.groups, self.primary)

    @cached_property
    def transactional_id(self) -> Owners:
        """Where the transactions of a transactional id are."""
        return Owners(self.transactional_ids, self.primary)

    def among(self, clusters: Sequence[str]) -> "Routes":
        """The routes for a choice of clusters: what would go to another one goes on to the next that matches."""
        return Routes(
            primary=self.primary if self.primary in clusters else clusters[0],
            topics=[route for route in self.topics if route[1] in clusters],
            groups=[route for route in self.groups if route[1] in clusters],
            transactional_ids=[route for route in self.transactional_ids if route[1] in clusters],
            prefixes={name: prefix for name, prefix in self.prefixes.items() if name in clusters},
        )

    def renames(self, cluster: str) -> bool:
        """Whether topics of a cluster have other names there."""
        return bool(self.prefixes.get(cluster))

    def outside(self, cluster: str, name: str) -> str:
        """The name that clients see of a topic of a cluster."""
        return self.prefixes.get(cluster, "") + name

    def inside(self, cluster: str, name: str) -> str:
        """The name in its cluster of a topic that clients name. One without the cluster's prefix is none of its own."""
        return name.removeprefix(self.prefixes.get(cluster, ""))

    def can_have(self, cluster: str, name: str) -> bool:
        """Whether a topic of a cluster can be one that clients name so. Another would come back under another name."""
        return name.startswith(self.prefixes.get(cluster, ""))

    def shows(self, cluster: str, name: str) -> bool:
        """Whether clients see a topic that a cluster has by this name: only those of its owner, and internal ones.

        Two clusters can have a topic of one name; clients see the one that the routes choose.
        """
        return self.topic.of(self.outside(cluster, name)) == cluster
