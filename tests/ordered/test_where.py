"""Conditions on rows: decided on columns, and held against what one would say row by row."""

import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import OptionError
from strandline.ordered.where import Where
from strandline.wire.gather import SCHEMA

Row = dict[str, Any]

texts = st.sampled_from(["", "a", "ab", "é", "b\na"])
items = st.none() | texts.map(str.encode) | st.just(b"\xff\xfea")
headers = st.lists(st.fixed_dictionaries({"key": st.sampled_from(["h", "g", ""]), "value": items}), max_size=3)
rows = st.lists(
    st.fixed_dictionaries(
        {"key": items, "value": items, "partition": st.integers(0, 2), "headers": headers, "topic": st.just("t")}
    )
)


def batch_of(found: list[Row]) -> pa.RecordBatch:
    complete = [{"offset": n, "timestamp": None, **row} for n, row in enumerate(found)]
    return pa.RecordBatch.from_pylist(complete, schema=SCHEMA)


@given(rows, texts, st.sampled_from(["key", "value", "header.h"]))
def test_equal_is_equal_in_every_byte_and_nothing_is_not_empty(found: list[Row], text: str, field: str) -> None:
    def holds(row: Row) -> bool:
        if field == "header.h":
            return {"key": "h", "value": text.encode()} in row["headers"]
        return bool(row[field] == text.encode())

    kept = Where.parse([f"{field}={text}"]).keep(batch_of(found))
    assert kept["offset"].to_pylist() == [n for n, row in enumerate(found) if holds(row)]


@given(rows, st.sampled_from(["a", "^a", "^.$", "a$", "^$", "é", "[éx]"]))
def test_a_regular_expression_is_looked_for_in_the_text(found: list[Row], pattern: str) -> None:
    def holds(row: Row) -> bool:
        try:
            # RE2's $ is the end of the text, Python's \Z.
            return row["value"] is not None and bool(re.search(pattern.replace("$", r"\Z"), row["value"].decode()))
        except UnicodeDecodeError:
            return pattern in {"a", "a$"}

    kept = Where.parse([f"value~{pattern}"]).keep(batch_of(found))
    assert kept["offset"].to_pylist() == [n for n, row in enumerate(found) if holds(row)]


@given(rows)
def test_all_conditions_must_hold(found: list[Row]) -> None:
    kept = Where.parse(["partition=1", "key~a", "header.g~."]).keep(batch_of(found).slice(1))
    one_by_one = batch_of(found).slice(1)
    for text in ("header.g~.", "key~a", "partition=1"):
        one_by_one = Where.parse([text]).keep(one_by_one)
    assert kept == one_by_one
    assert set(kept["partition"].to_pylist()) <= {1}


def test_without_conditions_all_is_kept() -> None:
    batch = batch_of([{"key": None, "value": b"x", "partition": 0, "headers": [], "topic": "t"}])
    assert Where.parse([]).keep(batch) == batch


def test_what_is_looked_for_may_hold_the_signs_of_conditions() -> None:
    found: list[Row] = [{"key": b"a=b~c", "value": None, "partition": 0, "headers": [], "topic": "t"}]
    assert Where.parse(["key=a=b~c", "key~=b~"]).keep(batch_of(found)).num_rows == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("kye=a", "'kye=a': field 'kye' is unknown; did you mean 'key'?"),
        ("headers.a=b", "did you mean 'header.NAME'?"),
        ("header.=b", "field 'header.' is unknown"),
        ("key", "'key' is no condition; write one such as key=ab"),
        ("partition=x", "'partition=x': a partition is a number"),
        ("partition=99999999999", "a partition is a number"),
        ("partition~1", "a partition is a number"),
        ("value~(", "'(' is not a regular expression: missing ): ("),
    ],
)
def test_what_is_no_condition_is_refused_before_anything_is_read(text: str, problem: str) -> None:
    with pytest.raises(OptionError) as caught:
        Where.parse([text])
    assert problem in str(caught.value)
