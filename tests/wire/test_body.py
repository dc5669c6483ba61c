"""A body comes out as it went in, however it was framed and packed, or is refused; never more than the bound."""

import contextlib
import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import MalformedBody
from strandline.wire.body import decode_chunked, packed, unchunked, unpacked
from strandline.wire.head import Head


def head(*fields: str) -> Head:
    return Head(("\r\n".join(["POST / HTTP/1.1", *fields]) + "\r\n\r\n").encode())


def chunked(parts: list[bytes], extension: bytes = b"", trailers: bytes = b"") -> bytes:
    chunks = b"".join(b"%X%b\r\n%b\r\n" % (len(part), extension, part) for part in parts if part)
    return chunks + b"0\r\n" + trailers + b"\r\n"


@given(st.lists(st.binary(max_size=30)), st.sampled_from([b"", b";a=b", b" ;x"]), st.sampled_from([b"", b"A: b\r\n"]))
def test_chunks_give_what_was_cut_into_them(parts: list[bytes], extension: bytes, trailers: bytes) -> None:
    body = chunked(parts, extension, trailers)
    assert decode_chunked(body) == b"".join(parts)
    assert unchunked(head("Transfer-Encoding: Chunked"), body) == b"".join(parts)


@given(st.binary(max_size=40) | st.lists(st.sampled_from([b"5\r\nhello\r\n", b"0\r\n", b"\r\n", b"5", b";"])))
def test_whatever_comes_is_read_or_refused(given_: bytes | list[bytes]) -> None:
    body = given_ if isinstance(given_, bytes) else b"".join(given_)
    with contextlib.suppress(MalformedBody):
        assert len(decode_chunked(body)) <= len(body)


@given(st.lists(st.binary(min_size=1, max_size=30), min_size=1), st.data())
def test_chunks_that_are_cut_off_or_go_on_are_refused(parts: list[bytes], data: st.DataObject) -> None:
    body = chunked(parts)
    with pytest.raises(MalformedBody):
        decode_chunked(body[: data.draw(st.integers(0, len(body) - 1))])
    with pytest.raises(MalformedBody):
        decode_chunked(body + b"x")


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_a_packed_body_is_unpacked_by_what_its_head_says(one: bytes, two: bytes) -> None:
    raw = zlib.compressobj(wbits=-15)
    for coding, body, content in (
        ("gzip", gzip.compress(one), one),
        ("GZIP", gzip.compress(one) + gzip.compress(two), one + two),
        ("deflate", zlib.compress(one), one),
        ("deflate", raw.compress(one) + raw.flush(), one),
        ("identity", one, one),
        ("x-gzip", packed(one), one),
        ("br", b"", b""),
    ):
        assert unpacked(head(f"Content-Encoding: {coding}"), body, limit=len(content)) == content
    assert unpacked(head(), one, limit=1000) == one


@pytest.mark.parametrize(
    ("coding", "body", "problem"),
    [
        ("br", b"x", "cannot undo the content coding 'br'"),
        ("gzip, deflate", b"x", "cannot undo the content coding 'gzip, deflate'"),
        ("gzip", b"no gzip", "is not gzip"),
        ("deflate", b"\xff" * 20, "is not deflate"),
        ("gzip", gzip.compress(b"hello" * 100)[:-9], "cut off"),
        ("gzip", gzip.compress(bytes(1001)), "more than 1,000 bytes"),
        ("gzip", gzip.compress(bytes(600)) * 2, "more than 1,000 bytes"),
    ],
)
def test_what_cannot_be_unpacked_within_the_bound_is_refused(coding: str, body: bytes, problem: str) -> None:
    with pytest.raises(MalformedBody, match=problem):
        unpacked(head(f"Content-Encoding: {coding}"), body, limit=1000)


def test_a_transfer_coding_that_is_not_chunked_is_refused() -> None:
    assert unchunked(head(), b"x") == b"x"
    with pytest.raises(MalformedBody, match="'gzip, chunked'"):
        unchunked(head("Transfer-Encoding: gzip", "Transfer-Encoding: chunked"), b"x")


def test_packing_gives_the_same_bytes_each_time() -> None:
    assert packed(b"hello") == packed(b"hello")
    assert gzip.decompress(packed(b"hello")) == b"hello"
