"""Whatever is wrong with JSON from outside, decoding it raises one error and no other."""

from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.json_decode import MalformedJson, decode, decode_lines

EXACT = msgspec.json.Decoder(float_hook=Decimal)
DOCUMENTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
BROKEN = {
    b'{"a":"\xff"}': "a string is not UTF-8: invalid start byte",
    b'{"\xe2\x82":1}': "a string is not UTF-8",
    b"[" * 100_000: "it is nested too deeply",
    b'{"a":1e999999999999999999999}': "out of range",
    b'{"a":-1e-999999999999999999999}': "out of range",
    b"1" + b"0" * 5_000: "Integer value out of range",
    b'"\\ud800"': "Input data was truncated",
    b"\x00": "JSON is malformed: invalid character (byte 0)",
    b"": "Input data was truncated",
}


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A valid document in which a few bytes were replaced, added or cut off."""
    data = bytearray(msgspec.json.encode(draw(DOCUMENTS)))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 2))] = draw(
            st.sampled_from([b"\xff", b"\xc3", b"\0", b"e9999999999999999999", b'"', b"[", b""])
        )
    return bytes(data)


@given(DOCUMENTS)
def test_what_is_json_is_decoded(document: Any) -> None:
    text = msgspec.json.encode(document)
    assert decode(text) == msgspec.json.decode(text)
    assert decode_lines(text + b"\n" + text) == [decode(text)] * 2


@given(damaged(), st.sampled_from([None, EXACT]))
def test_whatever_is_wrong_there_is_one_error(data: bytes, decoder: "msgspec.json.Decoder[Any] | None") -> None:
    for read in (decode, decode_lines):
        try:
            read(data) if decoder is None else read(data, decoder)
        except MalformedJson as error:
            assert str(error)


@pytest.mark.parametrize("data", BROKEN)
def test_the_error_says_what_is_wrong(data: bytes) -> None:
    with pytest.raises(MalformedJson) as caught:
        decode(data, EXACT)
    assert BROKEN[data] in str(caught.value)


def test_a_type_that_does_not_fit_is_malformed_too() -> None:
    with pytest.raises(MalformedJson, match="Expected `int`, got `str`"):
        decode(b'"1"', msgspec.json.Decoder(int))
