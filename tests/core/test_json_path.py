"""An edit at a place changes that place and no other."""

import copy
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strandline.core.json_path import MAX_STEPS, NoSuchPlace, Path, drop, parse, put

names = st.text(st.characters(exclude_characters='.[]"', exclude_categories=["Cs"]), min_size=1, max_size=5)
documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=10,
)


def places(document: Any, path: Path = ()) -> dict[Path, Any]:
    """Every place in a document with what is there."""
    found = {path: document} if path else {}
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for step, inside in items:
        found |= places(inside, (*path, step))
    return found


def written(path: Path) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


@given(st.lists(names | st.integers(0, 10**9 - 1), min_size=1, max_size=6))
@example(["a\n", "b"])
def test_a_place_is_read_as_it_is_written(steps: list[str | int]) -> None:
    assert parse(written(tuple(steps))) == tuple(steps)


def test_a_name_with_dots_is_written_in_quotes() -> None:
    assert parse('a["b.c"][0].d') == ("a", "b.c", 0, "d")


@pytest.mark.parametrize(
    "text", ["", ".a", "a..b", "a[", "a[-1]", "a[x]", "a]", 'a["]', "a.", ".".join("a" * (MAX_STEPS + 1))]
)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="place in JSON"):
        parse(text)


@given(documents, st.data())
def test_what_is_put_is_there_and_nothing_beside_it_changes(document: Any, data: st.DataObject) -> None:
    before = places(copy.deepcopy(document))
    if not before:
        return
    path = data.draw(st.sampled_from(sorted(before, key=repr)))
    put(document, path, "new")
    after = places(document)
    assert after[path] == "new"
    for other in before.keys() | after.keys():
        if other[: len(path)] != path and path[: len(other)] != other:
            assert repr(after[other]) == repr(before[other])


@given(documents, st.data())
def test_what_is_dropped_is_gone_and_a_second_drop_of_a_name_changes_nothing(
    document: Any, data: st.DataObject
) -> None:
    named = [path for path in places(document) if isinstance(path[-1], str)]
    if not named:
        return
    path = data.draw(st.sampled_from(sorted(named, key=repr)))
    drop(document, path)
    once = copy.deepcopy(document)
    assert path not in places(document)
    drop(document, path)
    assert document == once


@given(documents, st.lists(names | st.integers(0, 5), min_size=1, max_size=4).map(tuple))
def test_a_drop_of_what_is_not_there_changes_nothing(document: Any, path: Path) -> None:
    if path in places(document):
        return
    before = copy.deepcopy(document)
    drop(document, path)
    assert document == before


@given(st.lists(names, min_size=1, max_size=5))
def test_objects_that_are_missing_are_made(steps: list[str]) -> None:
    document: dict[str, Any] = {}
    put(document, tuple(steps), 1)
    assert places(document)[tuple(steps)] == 1


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"a": 5}, "a.b"),
        ({}, "a[0]"),
        ({"a": [1]}, "a[1]"),
        ({"a": [1]}, "a.b"),
        ([1], "a"),
        ({"a": "text"}, "a[0]"),
        (1, "a"),
    ],
)
def test_a_place_that_cannot_be_made_is_refused(document: Any, text: str) -> None:
    with pytest.raises(NoSuchPlace):
        put(document, parse(text), 1)
