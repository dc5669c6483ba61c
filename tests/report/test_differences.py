"""What differs between two documents is told, each place once, and nothing that does not differ."""

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.report.bodies import Document, Text
from strandline.report.differences import MAX_PLACES, Change, Differences, Found
from strandline.report.rules import BodySection, Rules, RulesFile, rules_of

LEAVES = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
NAMES = st.text(max_size=4)
DOCUMENTS = st.recursive(
    LEAVES | NAMES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=15
)


def found(source: Any, target: Any, rules: Rules | None = None) -> list[Found]:
    differences = Differences(rules or Rules())
    differences.bodies(Document(source), Document(target))
    return list(differences)


def places(source: Any, target: Any, **rules: Any) -> dict[str, Change]:
    told = found(source, target, rules_of(RulesFile(body=BodySection(**rules))))
    return {each.path: each.change for each in told if not each.is_ruled}


@given(DOCUMENTS)
def test_a_document_does_not_differ_from_itself(document: Any) -> None:
    assert not found(document, copy.deepcopy(document))


@given(DOCUMENTS, DOCUMENTS)
def test_documents_that_are_not_the_same_differ(one: Any, other: Any) -> None:
    # As JSON, where true is not 1; 1 and 1.0 are one number.
    texts = [msgspec.json.encode(_floats(document), order="deterministic") for document in (one, other)]
    assert bool(found(one, other)) == (texts[0] != texts[1])


@given(DOCUMENTS, DOCUMENTS)
def test_both_directions_tell_the_same_places(one: Any, other: Any) -> None:
    there = {(each.path, each.change, each.source_hash, each.target_hash) for each in found(one, other)}
    back = {(each.path, each.change, each.target_hash, each.source_hash) for each in found(other, one)}
    assert there == back


def _floats(document: Any) -> Any:
    match document:
        case bool() | None | str():
            return document
        case int() | float():
            return float(document) + 0.0
        case list():
            return [_floats(item) for item in document]
        case _:
            return {name: _floats(value) for name, value in document.items()}


def test_items_of_a_list_are_one_place() -> None:
    items = [{"id": n, "price": 1} for n in range(50)]
    more = [{"id": n, "price": 2} for n in range(50)]
    assert places({"items": items}, {"items": more}) == {"$.items[*].price": Change.VALUE}


def test_a_renamed_field_is_one_missing_and_one_added() -> None:
    told = found({"price": 1, "a": 1}, {"cost": 1, "a": 1})
    assert {(each.path, each.change, each.source, each.target) for each in told} == {
        ("$.price", Change.PRESENCE, "1", None),
        ("$.cost", Change.PRESENCE, None, "1"),
    }


def test_one_item_more_moves_no_others() -> None:
    assert places([1, 2, 3, 4], [1, 9, 2, 3, 4]) == {"$[*]": Change.PRESENCE}
    assert places([{"a": 1}, {"a": 2}], [{"a": 2}]) == {"$[*]": Change.PRESENCE}


@pytest.mark.parametrize(("one", "other"), [(1, True), (0, False), ("1", 1), (None, False), ([], {}), ("", None)])
def test_another_type_is_told_as_such(one: Any, other: Any) -> None:
    assert places({"a": one}, {"a": other}) == {"$.a": Change.TYPE}


def test_rules_leave_out_places_and_all_in_them() -> None:
    source = {"took": 1, "meta": {"a": {"b": 1}}, "items": [{"id": 1, "n": 1}], "x.y": 1}
    target = {"took": 2, "meta": {"a": {"b": 2}, "c": 1}, "items": [{"id": 2, "n": 2}], "x.y": 2}
    assert set(places(source, target)) == {
        "$.took", "$.meta.a.b", "$.meta.c", "$.items[*].id", "$.items[*].n", '$["x.y"]',
    }  # fmt: skip
    ignore = ["$.took", "$.meta", "$..id", '$["x.y"]']
    assert places(source, target, ignore=ignore) == {"$.items[*].n": Change.VALUE}
    rules = rules_of(RulesFile(body=BodySection(ignore=ignore)))
    assert {each.path for each in found(source, target, rules) if each.is_ruled} == {
        "$.took", "$.meta", "$.items[*].id", '$["x.y"]',
    }  # fmt: skip


def test_numbers_within_their_tolerance_are_the_same() -> None:
    assert not places({"a": 100, "b": 1.0}, {"a": 100.9, "b": 1.04}, tolerance=0.01, tolerances={"$.b": 0.05})
    assert places({"a": 100, "b": 1.0}, {"a": 102, "b": 1.04}, tolerance=0.01) == {
        "$.a": Change.VALUE,
        "$.b": Change.VALUE,
    }
    assert places({"a": 0}, {"a": 0.001}, tolerance=0.5) == {"$.a": Change.VALUE}


@given(st.lists(st.integers(0, 5) | st.booleans()), st.randoms())
def test_the_order_of_an_unordered_list_means_nothing(items: list[Any], chance: Any) -> None:
    mixed = items.copy()
    chance.shuffle(mixed)
    assert not places({"tags": items}, {"tags": mixed}, unordered=["$.tags"])
    assert places({"tags": items}, {"tags": [*mixed, 99]}, unordered=["$.tags"]) == {"$.tags[*]": Change.PRESENCE}


def test_places_are_bounded_and_the_rest_is_not_forgotten() -> None:
    differences = Differences(Rules())
    differences.bodies(Document({f"f{n}": n for n in range(1000)}), Document({f"f{n}": -n - 1 for n in range(1000)}))
    assert len(list(differences)) == MAX_PLACES
    assert differences.is_cut


@pytest.mark.parametrize("depth", [70, 900])
def test_no_nesting_is_too_deep(depth: int) -> None:
    one, other = (msgspec.json.decode("[" * depth + leaf + "]" * depth) for leaf in ("1", "2"))
    assert len(found(one, other)) == 1
    assert not found(one, one)


def test_lines_of_a_text_are_places() -> None:
    differences = Differences(Rules())
    differences.bodies(Text("a\nb\nc"), Text("a\nx\nc"))
    assert [(each.path, each.source, each.target) for each in differences] == [("line 2", "b", "x")]
    shorter = Differences(Rules())
    shorter.bodies(Text("a\nb"), Text("a"))
    assert [each.path for each in shorter] == ["$"]
