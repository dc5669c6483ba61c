"""CBOR: what we write botocore reads and we read again, what botocore writes we read, and garbage is an error."""

import io
from contextlib import suppress
from typing import Any

import pytest
from botocore.parsers import RpcV2CBORParser
from botocore.serialize import RpcV2CBORSerializer
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import MalformedBody
from strandline.wire import cbor

plain = (
    st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=300)
    | st.binary(max_size=300)
)


def nested(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=30) | st.dictionaries(st.text(max_size=5), inner), max_leaves=40
    )


values = nested(st.none() | plain)


@given(values)
def test_what_is_written_is_read_again(value: Any) -> None:
    assert cbor.decode(cbor.encode(value)) == value


# In botocore's eyes a field that is null is not there.
@given(nested(plain))
def test_botocore_reads_what_is_written(value: Any) -> None:
    parser = RpcV2CBORParser()
    read = parser.parse_data_item(io.BufferedReader(io.BytesIO(cbor.encode(value))))
    assert read == value


@given(st.binary(max_size=300), st.text(max_size=300), st.integers(-(2**63), 2**63 - 1))
def test_what_botocore_writes_is_read(data: bytes, text: str, number: int) -> None:
    written = bytearray()
    writer = RpcV2CBORSerializer()
    writer._serialize_type_blob(written, data, None, None)
    writer._serialize_type_string(written, text, None, None)
    writer._serialize_type_integer(written, number, None, None)
    assert cbor.decode(b"\x83" + bytes(written)) == [data, text, number]


@given(values, st.data())
def test_what_is_cut_off_is_an_error(value: Any, data: st.DataObject) -> None:
    written = cbor.encode(value)
    cut = data.draw(st.integers(0, len(written) - 1))
    with pytest.raises(MalformedBody):
        cbor.decode(written[:cut])


@given(st.binary(max_size=100))
def test_garbage_is_a_value_or_an_error_and_nothing_else(garbage: bytes) -> None:
    with suppress(MalformedBody):
        cbor.decode(garbage)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (b"\x5f\x42ab\x41c\xff", b"abc"),
        (b"\x7f\x62ab\x61c\xff", "abc"),
        (b"\x9f\x01\x02\xff", [1, 2]),
        (b"\xbf\x61a\x01\xff", {"a": 1}),
        (b"\xf9\x3c\x00", 1.0),
        (b"\xfa\x3f\x80\x00\x00", 1.0),
        (b"\xf7", None),
    ],
)
def test_lengths_that_are_not_told_and_short_floats_are_read(written: bytes, value: object) -> None:
    assert cbor.decode(written) == value


def test_a_timestamp_goes_in_milliseconds_and_comes_in_seconds() -> None:
    written = cbor.encode(cbor.Timestamp(1_700_000_000_123))
    assert written[:1] == b"\xc1"
    assert cbor.decode(written) == 1_700_000_000.123


@pytest.mark.parametrize(
    ("garbage", "problem"),
    [
        (b"", "cut off"),
        (b"\x01\x02", "1 bytes too many"),
        (b"\x5b\xff\xff\xff\xff\xff\xff\xff\xff", "cut off"),
        (b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff", "cut off"),
        (b"\x81" * 100_000, "nested deeper than 16"),
        (b"\xc1" * 100_000, "nested deeper than 16"),
        (b"\x61\xff", "not UTF-8"),
        (b"\xa1\x01\x01", "a key that is no text"),
        (b"\xc2\x41a", "a tag that is not known: 2"),
        (b"\xc1\x61a", "a moment that is no number"),
        (b"\x1f", "a number that cannot be read"),
        (b"\x1c", "a length that cannot be read"),
        (b"\xf8\x20", "a value that is not known"),
        (b"\x5f\x61a\xff", "a piece of a string that is none"),
    ],
)
def test_garbage_is_an_error_that_says_what_it_is(garbage: bytes, problem: str) -> None:
    with pytest.raises(MalformedBody, match=problem):
        cbor.decode(garbage)


def test_what_cbor_has_not_is_not_written() -> None:
    with pytest.raises(TypeError, match="no CBOR for set"):
        cbor.encode({1})
    with pytest.raises(ValueError, match="beyond 64 bits"):
        cbor.encode(2**64)
