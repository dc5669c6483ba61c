"""Records as lines: no record can act upon a terminal or pass for two, and JSON gives back every byte."""

import json
from base64 import b64decode
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.cli.records import json_lines, pretty_json, records, shown, text_line
from strandline.wire.gather import SCHEMA

data = st.none() | st.binary() | st.text().map(str.encode)
NEW_YEAR = 1_767_225_600_123


def batch_of(*rows: dict[str, Any]) -> pa.RecordBatch:
    full: dict[str, Any] = {
        "key": None,
        "value": None,
        "topic": "t",
        "partition": 3,
        "timestamp": NEW_YEAR,
        "headers": [],
    }
    return pa.RecordBatch.from_pylist([{**full, "offset": n, **row} for n, row in enumerate(rows)], schema=SCHEMA)


def lines_of(*rows: dict[str, Any]) -> list[str]:
    return [text_line(record) for record in records(batch_of(*rows))]


def test_a_record_is_time_place_key_and_value() -> None:
    assert lines_of({"key": b"k", "value": b"v"}) == ["2026-01-01T00:00:00.123Z\tt/3@0\tk\tv"]


@pytest.mark.parametrize(
    ("timestamp", "time"),
    [(None, "-"), (0, "1970-01-01T00:00:00.000Z"), (2**62, "146140482-04-24T15:36:27.904Z")],
)
def test_every_time_that_a_record_may_have_is_shown(timestamp: int | None, time: str) -> None:
    batch = batch_of({})
    times = pa.array([timestamp], pa.int64()).cast(SCHEMA.field("timestamp").type)
    batch = batch.set_column(SCHEMA.get_field_index("timestamp"), "timestamp", times)
    assert [record.time for record in records(batch)] == [time]
    (line,) = json_lines(batch)
    assert json.loads(line)["time"] == (None if timestamp is None else time)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "NULL"),
        (b"", ""),
        ("Zoë 潮".encode(), "Zoë 潮"),
        (b"a\tb\nc\r", r"a\tb\nc\r"),
        (b"\x1b[2J\x07\x7f", r"\x1b[2J\x07\x7f"),
        (b"ok\xff\xfe", r"ok\xff\xfe"),
        ("\u009b2J\u202egnp\u2028".encode(), r"\u009b2J\u202egnp\u2028"),
    ],
)
def test_what_a_terminal_might_act_upon_is_escaped(value: bytes | None, text: str) -> None:
    assert shown(value) == text


@given(data, data)
def test_a_record_is_one_line_of_four_fields(key: bytes | None, value: bytes | None) -> None:
    (line,) = lines_of({"key": key, "value": value})
    assert line.count("\t") == 3
    assert len(line.splitlines()) == 1
    assert all(character.isprintable() or character.isspace() or ord(character) > 0xFF for character in line)


@given(data, data, st.lists(st.tuples(st.text(), data)))
def test_json_gives_back_every_byte(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    def bytes_of(item: Any) -> bytes | None:
        return b64decode(item["base64"]) if isinstance(item, dict) else None if item is None else item.encode()

    row = {"key": key, "value": value, "headers": [{"key": name, "value": item} for name, item in headers]}
    (line,) = json_lines(batch_of(row))
    assert len(line.splitlines()) == 1
    found = json.loads(line)
    assert list(found) == ["time", "topic", "partition", "offset", "key", "value", "headers"]
    assert (found["topic"], found["partition"], found["offset"]) == ("t", 3, 0)
    assert (bytes_of(found["key"]), bytes_of(found["value"])) == (key, value)
    assert [(item["key"], bytes_of(item["value"])) for item in found["headers"]] == headers


def test_json_is_indented_and_otherwise_left_alone() -> None:
    assert pretty_json(b'{"a":1.10,"a":1e400,"b":[]}') == '{\n  "a": 1.10,\n  "a": 1e400,\n  "b": []\n}'
    assert pretty_json('{"a":"\u009b"}'.encode()) == '{\n  "a": "\\u009b"\n}'


@pytest.mark.parametrize("value", [None, b"", b"12", b"{", b'{"a":"\xff"}', b'{"a":"\n"}', b"{} {}", b"[" * 100_000])
def test_what_is_no_json_object_is_not_taken_for_one(value: bytes | None) -> None:
    assert pretty_json(value) is None


@given(st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_indented_json_means_the_same(content: Any) -> None:
    pretty = pretty_json(msgspec.json.encode([content]))
    assert pretty is not None
    assert json.loads(pretty) == [content]
