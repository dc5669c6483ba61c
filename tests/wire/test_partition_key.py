"""One row has one partition key as long as its key stays; two rows have two; Kinesis takes them all."""

import re
import string

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from strandline.errors import MalformedChange, OptionError
from strandline.wire.partition_key import KeyRule
from strandline.wire.pgoutput import UNCHANGED, Column, Relation, ReplicaIdentity, Row

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=63)
TEXTS = st.binary(max_size=12) | st.sampled_from(
    [b",", b"\\", b"\\,", b"", b"a,b", b"x" * 300, b"x" * 301, b"\xff" * 3]
)


def relation(
    keys: int,
    others: int = 1,
    identity: ReplicaIdentity = ReplicaIdentity.DEFAULT,
    schema: str = "public",
    table: str = "t",
) -> Relation:
    """A table with columns k0, k1, ... in its key, and v0, v1, ... beside them."""
    all_key = identity is ReplicaIdentity.FULL
    columns = [Column(f"k{at}", 25, -1, True) for at in range(keys)]
    columns += [Column(f"v{at}", 25, -1, all_key) for at in range(others)]
    return Relation(16_400, schema, table, identity, tuple(columns))


def key(described: Relation, row: Row, template: str | None = None) -> str:
    return KeyRule(described, template, {}).of(row)


@pytest.mark.parametrize(
    ("row", "expected"),
    [([b"17"], "public.t/17"), ([b"17", b"3"], "public.t/17,3"), ([b"a,b", b"c\\"], "public.t/a\\,b,c\\\\")],
)
def test_a_short_key_can_be_read(row: Row, expected: str) -> None:
    assert key(relation(len(row), 0), row) == expected


@given(st.lists(TEXTS, min_size=1, max_size=3), st.data())
def test_two_rows_have_the_same_partition_key_if_and_only_if_they_have_the_same_key(
    one: list[bytes], data: st.DataObject
) -> None:
    two = data.draw(st.lists(TEXTS, min_size=len(one), max_size=len(one)))
    described = relation(len(one))
    first, second = (key(described, [*given, data.draw(TEXTS)]) for given in (one, two))
    assert (first == second) == (one == two)
    assert 1 <= len(first) <= 256
    assert len(first.encode()) <= 256


@given(st.tuples(NAMES, NAMES), st.tuples(NAMES, NAMES), TEXTS, TEXTS)
def test_two_tables_share_no_key(one: tuple[str, str], two: tuple[str, str], first: bytes, second: bytes) -> None:
    assume(one != two)
    rules = [KeyRule(relation(1, 0, schema=schema, table=table), None, {}) for schema, table in (one, two)]
    assert len({rules[0].table, rules[0].of([first]), rules[1].table, rules[1].of([second])}) == 4
    assert all(1 <= len(rule.table) <= 256 for rule in rules)


@pytest.mark.parametrize("identity", [ReplicaIdentity.FULL, ReplicaIdentity.NOTHING])
def test_without_key_columns_a_table_keeps_its_order_as_a_whole(identity: ReplicaIdentity) -> None:
    described = relation(0, 2, identity)
    assert key(described, [b"1", b"2"]) == key(described, [b"3", None]) == "public.t"


def test_with_the_whole_old_row_the_caller_says_what_the_key_is() -> None:
    keys = {"public.t": ["v1", "v0"], "public.u": ["v0"]}
    full = relation(0, 3, ReplicaIdentity.FULL)
    rule = KeyRule(full, None, keys)
    assert (rule.of([b"1", b"2", b"3"]), rule.columns) == ("public.t/2,1", [1, 0])
    assert KeyRule(full, None, {"public.t": ["v0", "gone"]}).of([b"1", b"2", b"3"]) == "public.t"
    assert KeyRule(relation(1), None, keys).of([b"1", b"2"]) == "public.t/1"
    assert KeyRule(full, "{v2}", keys).columns == [0, 1, 2]


def test_a_template_takes_the_columns_that_it_names() -> None:
    assert key(relation(2), [b"17", b"x", b"y"], "{schema}-{table}:{k1}{{{k0}}}") == "public-t:x{17}"
    assert key(relation(0, 2, ReplicaIdentity.FULL), [b"a", None], "{v0}.{v1}") == "a.null"
    assert key(relation(0, 1, ReplicaIdentity.NOTHING), [b"a"], "{v0}") == "a"


def test_an_empty_key_of_a_template_is_the_tables() -> None:
    assert key(relation(1), [b"", b""], "{k0}") == "public.t"


@given(st.text(string.ascii_letters, max_size=400))
def test_a_long_key_of_a_template_is_hashed(text: str) -> None:
    found = key(relation(1, 0), [text.encode()], "{table}{k0}")
    assert found == f"t{text}" if len(text) < 256 else re.fullmatch("[0-9a-f]{64}", found)


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{v0}", "a delete in t does not tell 'v0', for it is not part of the replica identity"),
        ("{tabel}", "t has no column 'tabel'; did you mean 'table'?"),
        ("{k0!r}", "'k0' is to stand alone between its braces"),
        ("{k0:>9}", "'k0' is to stand alone between its braces"),
        ("{k0.upper}", "t has no column 'k0.upper'"),
        ("{", "partition key '{': "),
        ("}", "partition key '}': "),
    ],
)
def test_a_template_that_does_not_fit_is_refused(template: str, told: str) -> None:
    with pytest.raises(OptionError, match=re.escape(told)):
        KeyRule(relation(1), template, {})


def test_a_key_that_was_not_told_is_refused() -> None:
    with pytest.raises(MalformedChange, match=r"public\.t: an update does not tell its row's key"):
        key(relation(1), [UNCHANGED, b"x"])
