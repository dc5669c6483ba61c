"""A column's text, by its type, to JSON: nothing is rounded, and nothing is guessed.

| type | in JSON |
|---|---|
| smallint, integer, bigint | number, with all its digits (a bigint may pass 2^53: read it as an integer of 64 bits) |
| boolean | `true`, `false` |
| real, double precision | number, with the digits that Postgres gives; `"NaN"`, `"Infinity"`, `"-Infinity"` |
| numeric | string, digit for digit: most readers of JSON would round a number, and NaN and the infinities have none |
| date | string, `"2026-11-16"` |
| timestamp | string, `"2026-11-16T09:17:43.5"` |
| timestamptz | string, `"2026-11-16T09:17:43.5+00:00"` |
| json, jsonb | the value itself, byte for byte as Postgres prints it |
| bytea | string, base64 |
| an array of a built-in type | array of what its elements are, nested as it is, with `null` |
| a domain | what its base type is |
| anything else: text, uuid, enums, time, interval, ranges, composites, arrays of other types | string, its text |

Told as its text, in a string, wherever the rule above it does not fit: dates and times that are infinite, of a year
before 1 or after 9999, or of an offset with seconds; arrays whose lower bound is not 1.

An array of json that holds a json `null` is told as its text, for it could not be told from SQL's. A column of json
cannot be told so either: `change.py` names the columns that hold a json `null`.

Text that is not UTF-8, which only a database in SQL_ASCII has, is told as `{"base64": "..."}`. Only in a column of json
could that be mistaken for a value.

`SETTINGS` is what the session must be set to: what Postgres prints depends on it.
"""

import re
from base64 import b64encode
from binascii import Error as NotHex
from binascii import a2b_hex, b2a_base64
from collections.abc import Callable, Mapping
from json import loads
from typing import Final, NoReturn, TypeAlias

import msgspec

from strandline.errors import MalformedChange
from strandline.wire.pgarray import Unusual, array_to_json
from strandline.wire.pgoutput import Type, Value

SETTINGS: Final[Mapping[str, str]] = {
    "client_encoding": "UTF8",
    "DateStyle": "ISO",
    "IntervalStyle": "iso_8601",
    "TimeZone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "lc_monetary": "C",
}

Convert: TypeAlias = Callable[[bytes], bytes]
"""A value's text to its JSON."""

NUMBER: Final = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_DIGITS_AS_ZERO: Final = bytes(ord("0") if chr(byte).isdecimal() and byte < 128 else byte for byte in range(256))
_FRACTIONS: Final = [b"", *(b"." + b"0" * digits for digits in range(1, 7))]
_SECONDS: Final = [b"0000-00-00 00:00:00" + fraction for fraction in _FRACTIONS]
TIMESTAMPS: Final = frozenset(_SECONDS)
"""What a timestamp looks like with every digit made a zero."""
OFFSETS: Final = {
    **{shape + sign + b"00": b':00"' for shape in _SECONDS for sign in (b"+", b"-")},
    **{shape + sign + b"00:00": b'"' for shape in _SECONDS for sign in (b"+", b"-")},
}
"""The same with an offset, and what is to follow its text."""

_encode: Final = msgspec.json.Encoder().encode
_syntax: Final = msgspec.json.Decoder(msgspec.Raw).decode


def string(text: bytes) -> bytes:
    """Any text as a JSON string; one that is not UTF-8 as an object with its base64."""
    try:
        return _encode(text.decode())
    except UnicodeDecodeError:
        return b'{"base64":"%b"}' % b64encode(text)


def integer(text: bytes) -> bytes:
    """An integer as a number."""
    if text.isdigit() and text[0] != 0x30:
        return text
    return number(text)


def number(text: bytes) -> bytes:
    """What is written as JSON writes numbers as a number, and what is none (NaN, Infinity) as its text."""
    return text if NUMBER.fullmatch(text) else string(text)


def boolean(text: bytes) -> bytes:
    """A truth value."""
    return b"true" if text == b"t" else b"false" if text == b"f" else string(text)


def timestamp(text: bytes) -> bytes:
    """A time without a zone."""
    if text.translate(_DIGITS_AS_ZERO) in TIMESTAMPS:
        return b'"%b"' % text.replace(b" ", b"T")
    return string(text)


def timestamptz(text: bytes) -> bytes:
    """A time with its offset."""
    end = OFFSETS.get(text.translate(_DIGITS_AS_ZERO))
    return string(text) if end is None else b'"%b%b' % (text.replace(b" ", b"T"), end)


def binary(text: bytes) -> bytes:
    """Bytes as base64."""
    try:
        if text[:2] == b"\\x":
            return b'"%b"' % b2a_base64(a2b_hex(text[2:]), newline=False)
    except NotHex:
        pass
    raise MalformedChange("a bytea is not in hex: set bytea_output = hex for the session that replicates")


def json_value(text: bytes) -> bytes:
    """A JSON value as it is."""
    try:
        decoded = text.decode()
        try:
            _syntax(text)
        except msgspec.DecodeError:
            _check_syntax(decoded)
    except UnicodeDecodeError:
        return string(text)
    except RecursionError:
        # Nested too deep for us to follow; Postgres did, when it took it.
        pass
    return text


def is_json_null(value: Value) -> bool:
    """Whether a value of type json is json's null, which is not SQL's."""
    return isinstance(value, bytes) and value.strip() == b"null"


def _check_syntax(text: str) -> None:
    """Refuse what is no JSON, by a parser that takes half of a surrogate pair as Postgres does."""
    try:
        loads(text, parse_int=str, parse_float=str, parse_constant=_no_constant)
    except ValueError as error:
        raise MalformedChange(f"a value of type json is none: {error}") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _array_of(element: Convert) -> Convert:
    def array(text: bytes) -> bytes:
        try:
            return array_to_json(text, element)
        except Unusual:
            return string(text)

    return array


def _element_of_json(text: bytes) -> bytes:
    if is_json_null(text):
        raise Unusual
    return json_value(text)


# Name, OID, OID of its array, and what makes JSON of it. Of the types told as their text, those that stand in arrays.
_TYPES: Final[tuple[tuple[str, int, int, Convert], ...]] = (
    ("bool", 16, 1000, boolean),
    ("bytea", 17, 1001, binary),
    ("char", 18, 1002, string),
    ("name", 19, 1003, string),
    ("int8", 20, 1016, integer),
    ("int2", 21, 1005, integer),
    ("int4", 23, 1007, integer),
    ("text", 25, 1009, string),
    ("oid", 26, 1028, string),
    ("json", 114, 199, json_value),
    ("xml", 142, 143, string),
    ("cidr", 650, 651, string),
    ("float4", 700, 1021, number),
    ("float8", 701, 1022, number),
    ("macaddr", 829, 1040, string),
    ("inet", 869, 1041, string),
    ("bpchar", 1042, 1014, string),
    ("varchar", 1043, 1015, string),
    ("date", 1082, 1182, string),
    ("time", 1083, 1183, string),
    ("timestamp", 1114, 1115, timestamp),
    ("timestamptz", 1184, 1185, timestamptz),
    ("interval", 1186, 1187, string),
    ("timetz", 1266, 1270, string),
    ("bit", 1560, 1561, string),
    ("varbit", 1562, 1563, string),
    ("numeric", 1700, 1231, string),
    ("uuid", 2950, 2951, string),
    ("jsonb", 3802, 3807, json_value),
)
JSON_TYPES: Final = frozenset({"json", "jsonb"})
_CONVERTS: Final[dict[int, Convert]] = {oid: convert for _, oid, _, convert in _TYPES} | {
    array: _array_of(_element_of_json if name in JSON_TYPES else convert) for name, _, array, convert in _TYPES
}
_BUILT_IN: Final[dict[str, int]] = {name: oid for name, oid, _, _ in _TYPES} | {
    f"_{name}": array for name, _, array, _ in _TYPES
}


def converter(oid: int, types: Mapping[int, Type]) -> Convert:
    """What makes JSON of a column of this type, by the Type messages seen: they name the base type of a domain."""
    named = types.get(oid)
    if named is not None and named.schema == "pg_catalog":
        oid = _BUILT_IN.get(named.name, oid)
    return _CONVERTS.get(oid, string)
