"""A column's text becomes the JSON that its type asks for; whatever the text, the JSON is valid and loses nothing."""

import base64
import contextlib
import json
import math
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import MalformedChange
from strandline.wire.pgoutput import Type
from strandline.wire.pgtext import SETTINGS, converter

TEXT, DOMAIN = 25, 90_000
TYPES = {
    "bool": 16, "bytea": 17, "int8": 20, "int2": 21, "int4": 23, "text": 25, "json": 114, "float4": 700, "float8": 701,
    "date": 1082, "timestamp": 1114, "timestamptz": 1184, "interval": 1186, "numeric": 1700, "uuid": 2950,
    "jsonb": 3802, "enum": 90_001, "int4[]": 1007, "text[]": 1009, "bytea[]": 1001, "jsonb[]": 3807, "bool[]": 1000,
    "timestamptz[]": 1185, "numeric[]": 1231, "uuid[]": 2951, "box": 603, "box[]": 1020,
}  # fmt: skip


def told(oid: int, text: bytes) -> bytes:
    return converter(oid, {})(text)


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("int2", "-32768", "-32768"),
        ("int4", "0", "0"),
        ("int8", "9223372036854775807", "9223372036854775807"),
        ("int8", "-9223372036854775808", "-9223372036854775808"),
        ("bool", "t", "true"),
        ("bool", "f", "false"),
        ("float4", "1.5", "1.5"),
        ("float8", "1e+300", "1e+300"),
        ("float8", "-0", "-0"),
        ("float8", "5e-324", "5e-324"),
        ("float8", "NaN", '"NaN"'),
        ("float8", "Infinity", '"Infinity"'),
        ("float4", "-Infinity", '"-Infinity"'),
        ("numeric", "1.10", '"1.10"'),
        ("numeric", "123456789012345678901234567890.000001", '"123456789012345678901234567890.000001"'),
        ("numeric", "NaN", '"NaN"'),
        ("numeric", "-Infinity", '"-Infinity"'),
        ("date", "2026-11-16", '"2026-11-16"'),
        ("date", "infinity", '"infinity"'),
        ("date", "0044-03-15 BC", '"0044-03-15 BC"'),
        ("timestamp", "2026-11-16 09:17:43", '"2026-11-16T09:17:43"'),
        ("timestamp", "2026-11-16 09:17:43.123456", '"2026-11-16T09:17:43.123456"'),
        ("timestamp", "-infinity", '"-infinity"'),
        ("timestamp", "12026-11-16 09:17:43", '"12026-11-16 09:17:43"'),
        ("timestamp", "0044-03-15 12:00:00 BC", '"0044-03-15 12:00:00 BC"'),
        ("timestamp", "16/11/2026 09:17:43", '"16/11/2026 09:17:43"'),
        ("timestamptz", "2026-11-16 09:17:43.5+00", '"2026-11-16T09:17:43.5+00:00"'),
        ("timestamptz", "2026-11-16 09:17:43-03:30", '"2026-11-16T09:17:43-03:30"'),
        ("timestamptz", "1850-01-01 00:00:00+00:53:28", '"1850-01-01 00:00:00+00:53:28"'),
        ("timestamptz", "infinity", '"infinity"'),
        ("timestamptz", "0044-03-15 12:00:00+00 BC", '"0044-03-15 12:00:00+00 BC"'),
        ("interval", "P1Y2M3DT4H", '"P1Y2M3DT4H"'),
        ("jsonb", '{"a": [1, null, "\\u0041"]}', '{"a": [1, null, "\\u0041"]}'),
        ("jsonb", "123456789012345678901234567890.10", "123456789012345678901234567890.10"),
        ("json", ' {"a":1,\n"a":2} ', ' {"a":1,\n"a":2} '),
        ("json", '"\\ud800"', '"\\ud800"'),
        ("json", "[" * 5000 + "]" * 5000, "[" * 5000 + "]" * 5000),
        ("bytea", "\\x", '""'),
        ("bytea", "\\x00ff10", '"AP8Q"'),
        ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", '"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"'),
        ("enum", "happy", '"happy"'),
        ("text", 'quote " back \\ tab \t nul-less \x01 ü 😀', '"quote \\" back \\\\ tab \\t nul-less \\u0001 ü 😀"'),
        ("int4[]", "{}", "[]"),
        ("int4[]", "{1,NULL,-3}", "[1,null,-3]"),
        ("int4[]", "{{1,2},{3,4}}", "[[1,2],[3,4]]"),
        ("int4[]", "[0:1]={1,2}", '"[0:1]={1,2}"'),
        ("text[]", '{a,"",NULL,"NULL","a b","{}",","}', '["a","",null,"NULL","a b","{}",","]'),
        ("text[]", r'{"q\"q","b\\b"}', r'["q\"q","b\\b"]'),
        ("bool[]", "{t,f}", "[true,false]"),
        ("bytea[]", '{"\\\\x00ff10"}', '["AP8Q"]'),
        ("numeric[]", "{1.10,NaN}", '["1.10","NaN"]'),
        ("timestamptz[]", '{"2026-11-16 09:17:43+00",infinity}', '["2026-11-16T09:17:43+00:00","infinity"]'),
        ("jsonb[]", '{"{\\"a\\": 1}","[2]",NULL}', '[{"a": 1},[2],null]'),
        ("jsonb[]", '{"null",NULL}', '"{\\"null\\",NULL}"'),
        ("uuid[]", "{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}", '["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]'),
        ("box[]", "{(1,1),(0,0);(2,2),(1,1)}", '"{(1,1),(0,0);(2,2),(1,1)}"'),
    ],
)  # fmt: skip
def test_each_type_has_its_json(kind: str, text: str, expected: str) -> None:
    assert told(TYPES[kind], text.encode()).decode() == expected


@pytest.mark.parametrize(
    ("base", "text", "expected"),
    [
        ("int4", b"7", b"7"),
        ("_int4", b"{7}", b"[7]"),
        ("jsonb", b"[1]", b"[1]"),
        ("box", b"(1,1),(0,0)", b'"(1,1),(0,0)"'),
    ],
)
def test_a_domain_is_told_as_its_base_type(base: str, text: bytes, expected: bytes) -> None:
    assert converter(DOMAIN, {DOMAIN: Type(DOMAIN, "pg_catalog", base)})(text) == expected


def test_a_type_of_the_users_is_its_text_though_it_is_named_like_one_built_in() -> None:
    assert converter(DOMAIN, {DOMAIN: Type(DOMAIN, "public", "int4")})(b"7") == b'"7"'


@given(
    st.sampled_from(sorted(TYPES)),
    st.binary(max_size=30) | st.text(max_size=30).map(lambda text: text.encode("utf-8", "surrogatepass")),
)
def test_whatever_the_text_the_json_is_valid_or_the_text_is_refused(kind: str, text: bytes) -> None:
    with contextlib.suppress(MalformedChange):
        json.loads(told(TYPES[kind], text).decode(), parse_constant=pytest.fail)


NUMBERISH = st.text(st.sampled_from("0123456789+-.eE NaInfity:T"), max_size=12)


@given(st.sampled_from(["int4", "float8", "timestamp", "timestamptz", "bool"]), NUMBERISH)
def test_what_looks_like_a_number_or_a_time_but_is_none_is_told_as_its_text(kind: str, text: str) -> None:
    found = json.loads(told(TYPES[kind], text.encode()), parse_int=str, parse_float=str)
    assert found in {text, text.replace(" ", "T") + ":00", text.replace(" ", "T")} or text in {"t", "f"}


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON_VALUES, st.sampled_from([None, 1]), st.booleans())
def test_json_is_embedded_byte_for_byte(value: Any, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    with contextlib.suppress(UnicodeDecodeError):
        text.decode()
        assert told(TYPES["json"], text) == text


@given(st.text(st.sampled_from('{}[]",:\\u0d8 \n1.-eEtrufalsn'), max_size=12))
def test_what_claims_to_be_json_is_embedded_only_if_it_is(text: str) -> None:
    try:
        json.loads(text, parse_constant=pytest.fail)
    except ValueError:
        with pytest.raises(MalformedChange):
            told(TYPES["json"], text.encode())
    else:
        assert told(TYPES["json"], text.encode()) == text.encode()


def test_a_bytea_of_a_session_with_other_settings_is_refused() -> None:
    with pytest.raises(MalformedChange, match="set bytea_output = hex"):
        told(TYPES["bytea"], b"abc")
    assert SETTINGS["bytea_output"] == "hex"


@given(st.binary())
def test_text_is_told_without_loss_whatever_its_encoding(text: bytes) -> None:
    found = json.loads(told(TEXT, text))
    assert (found.encode() if isinstance(found, str) else base64.b64decode(found["base64"])) == text


@given(st.binary())
def test_bytes_come_back_from_base64(value: bytes) -> None:
    assert base64.b64decode(json.loads(told(TYPES["bytea"], b"\\x" + value.hex().encode()))) == value


@given(st.floats())
def test_a_float_keeps_its_value(value: float) -> None:
    text = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(repr(value), repr(value))
    found = json.loads(told(TYPES["float8"], text.encode()))
    assert float(found) == value or math.isnan(value)


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_a_numeric_keeps_every_digit(value: Decimal) -> None:
    text = format(value, "f")
    assert json.loads(told(TYPES["numeric"], text.encode())) == text


def array_out(value: list[Any] | str | None) -> str:
    """An array's text as Postgres writes it."""
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return "{" + ",".join(map(array_out, value)) + "}"
    if value and value.upper() != "NULL" and not set(value) & set('"\\{}, \t\n\r\v\f'):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


ELEMENTS = (
    st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0")) | st.sampled_from(["NULL", "", "{", ","])
)
ARRAYS = st.lists(ELEMENTS) | st.lists(st.lists(ELEMENTS, min_size=2, max_size=2), min_size=1)


@given(ARRAYS)
def test_an_array_comes_back_with_its_nulls_nesting_and_quotes(value: list[Any]) -> None:
    assert json.loads(told(TYPES["text[]"], array_out(value).encode())) == value


@given(st.text(st.sampled_from('{},"\\ aN1=[]:'), max_size=15))
def test_what_is_no_plain_array_is_told_as_its_text(text: str) -> None:
    found = msgspec.json.decode(told(TYPES["text[]"], text.encode()))
    assert found == text or (isinstance(found, list) and text.startswith("{") and text.endswith("}"))
