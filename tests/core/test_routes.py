"""Who owns a name: the first pattern that matches decides, and each name that clients see has one owner."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strandline.core.routes import Owners, Routes, literal_start

CLUSTERS = ("east", "west", "north")
NAMES = st.text("aeu.-_[]*?!1\n名", max_size=8)
PATTERNS = st.lists(st.tuples(NAMES, st.sampled_from(CLUSTERS)), max_size=5)
PREFIXES = st.dictionaries(st.sampled_from(CLUSTERS), st.sampled_from(["", "eu.", "eu.eu.", "w-"]))


def fits(pattern: str, name: str) -> bool:
    """Whether a name matches, found the long way: `*` takes none or one more, `?` takes one."""
    if not pattern:
        return not name
    if pattern[0] == "*":
        return fits(pattern[1:], name) or (bool(name) and fits(pattern, name[1:]))
    return bool(name) and pattern[0] in {"?", name[0]} and fits(pattern[1:], name[1:])


@given(PATTERNS, NAMES)
@example([("a[1]", "west")], "a1")
@example([("a[1]", "west")], "a[1]")
@example([("[!a]", "west")], "e")
@example([("a", "west")], "a\n")
def test_the_first_pattern_that_matches_decides(patterns: list[tuple[str, str]], name: str) -> None:
    owner = next((cluster for pattern, cluster in patterns if fits(pattern, name)), "east")
    owners = Owners(patterns, "east")
    assert owners.of(name) == owner
    assert owners.of(name) == owner


@given(PATTERNS, st.lists(NAMES, max_size=20))
def test_what_is_remembered_changes_no_answer(patterns: list[tuple[str, str]], names: list[str]) -> None:
    remembers = Owners(patterns, "east")
    forgets = Owners(patterns, "east")
    forgets.REMEMBERED = 0
    assert [remembers.of(name) for name in names * 2] == [forgets.of(name) for name in names * 2]


def test_what_is_remembered_has_a_bound() -> None:
    owners = Owners([("a*", "west")], "east")
    owners.REMEMBERED = 10
    assert {owners.of("a" * size) for size in range(1, 9000, 100)} == {"west"}
    assert {owners.of(f"a{number}") for number in range(30)} == {"west"}
    assert len(owners._known) == 10
    assert max(map(len, owners._known)) <= Owners.LONGEST_REMEMBERED


@given(PATTERNS, PREFIXES, st.sampled_from(CLUSTERS), NAMES)
def test_a_name_comes_back_from_outside(
    patterns: list[tuple[str, str]], prefixes: dict[str, str], cluster: str, name: str
) -> None:
    routes = Routes("east", topics=patterns, prefixes=prefixes)
    outside = routes.outside(cluster, name)
    assert routes.inside(cluster, outside) == name
    assert outside == prefixes.get(cluster, "") + name
    assert routes.can_have(cluster, outside)


@given(PREFIXES, st.sampled_from(CLUSTERS), NAMES)
def test_a_cluster_can_have_what_comes_back_under_the_name_that_was_asked_for(
    prefixes: dict[str, str], cluster: str, name: str
) -> None:
    routes = Routes("east", prefixes=prefixes)
    comes_back = routes.outside(cluster, routes.inside(cluster, name)) == name
    assert routes.can_have(cluster, name) == comes_back
    assert routes.renames(cluster) == (routes.outside(cluster, "x") != "x")


@given(PATTERNS, PREFIXES, NAMES)
def test_clients_see_a_name_in_one_cluster_at_most(
    patterns: list[tuple[str, str]], prefixes: dict[str, str], seen: str
) -> None:
    routes = Routes("east", topics=patterns, prefixes=prefixes)
    showing = [
        cluster
        for cluster in CLUSTERS
        if seen.startswith(prefixes.get(cluster, "")) and routes.shows(cluster, routes.inside(cluster, seen))
    ]
    assert showing in ([], [routes.topic.of(seen)])
    assert showing or not seen.startswith(prefixes.get(routes.topic.of(seen), ""))


@given(PATTERNS, st.lists(st.sampled_from(CLUSTERS), min_size=1, unique=True), NAMES)
def test_among_some_clusters_every_owner_is_one_of_them_and_who_was_one_stays(
    patterns: list[tuple[str, str]], chosen: list[str], name: str
) -> None:
    routes = Routes("east", topics=patterns, groups=patterns, transactional_ids=patterns)
    some = routes.among(chosen)
    for of in (some.topic, some.group, some.transactional_id):
        assert of.of(name) in chosen
        if routes.topic.of(name) in chosen:
            assert of.of(name) == routes.topic.of(name)


@pytest.mark.parametrize("kind", ["topics", "groups", "transactional_ids"])
def test_topics_groups_and_transactional_ids_have_patterns_of_their_own(kind: str) -> None:
    patterns = {kind: [("eu-*", "west")]}
    routes = Routes("east", **patterns)  # type: ignore[arg-type]
    owners = [of.of("eu-1") for of in (routes.topic, routes.group, routes.transactional_id)]
    assert sorted(owners) == ["east", "east", "west"]
    assert owners[["topics", "groups", "transactional_ids"].index(kind)] == "west"


@given(PATTERNS, NAMES, NAMES)
@example([("eu.*", "west")], "eu.", "x")
@example([("e*", "west"), ("eu.*", "north")], "eu.", "x")
def test_whoever_may_own_a_name_is_known_by_how_it_begins(
    patterns: list[tuple[str, str]], start: str, rest: str
) -> None:
    owners = Owners(patterns, "east")
    assert owners.of(start + rest) in owners.possible(start)


def test_one_may_own_all_that_begins_as_its_pattern_does() -> None:
    owners = Owners([("eu.*", "west"), ("*", "north")], "east")
    assert owners.possible("eu.") == owners.possible("eu.orders") == {"west"}
    assert owners.possible("eu") == owners.possible("") == {"west", "north"}
    assert owners.possible("us") == {"north"}


def test_a_pattern_without_a_star_names_itself_alone() -> None:
    owners = Owners([("orders", "west")], "north")
    assert owners.possible("orders-eu") == {"north"}
    assert owners.possible("orders") == owners.possible("ord") == {"west", "north"}


@pytest.mark.parametrize(
    ("expression", "start"),
    [
        ("eu\\.orders.*", "eu.orders"),
        ("^eu-.*$", "eu-"),
        ("eu.*", "eu"),
        ("eu\\.*", "eu"),
        ("eux?y", "eu"),
        ("eux{0,1}", "eu"),
        ("eux+", "eux"),
        ("eu\\.|us.*", ""),
        ("(?i)eu.*", ""),
        ("[e]u", ""),
        ("\\Qeu.\\E.*", ""),
        ("eu\\d", "eu"),
        ("", ""),
    ],
)
def test_how_all_begins_that_an_expression_matches(expression: str, start: str) -> None:
    assert literal_start(expression) == start
