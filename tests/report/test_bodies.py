"""Bodies of any kind, packed, chunked and cut, are compared by what they mean."""

import gzip
import zlib
from collections.abc import Callable
from typing import Any

import cramjam
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.replay.results import Limits
from strandline.replay.results import Message as Captured
from strandline.report.bodies import MAX_BODY
from strandline.report.compare import compare
from strandline.report.exchange import read_exchange
from strandline.report.rules import Rules
from tests.report.support import answer, exchange, result

SMALL = Limits(body=100)
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": lambda content: bytes(cramjam.zstd.compress(content)),
    "br": lambda content: bytes(cramjam.brotli.compress(content)),
}


def told(source: Captured, target: Captured, **more: Any) -> list[str]:
    return [each.path for each in compare(exchange(source, target, **more), Rules()).differences]


def chunked(body: bytes, size: int) -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@pytest.mark.parametrize("coding", PACKERS)
def test_a_packed_body_is_compared_by_its_content(coding: str) -> None:
    one, other = (msgspec.json.encode({"a": 1, "b": value, "c": "x" * 500}) for value in (1, 2))
    packed = [PACKERS[coding](content) for content in (one, other)]
    headers = {"Content_Type": "application/json", "Content_Encoding": coding}
    assert told(answer(200, packed[0], **headers), answer(200, packed[0] + b"", **headers)) == []
    assert told(answer(200, packed[0], **headers), answer(200, packed[1], **headers)) == ["$.b"]
    plain = answer(200, other, Content_Type="application/json")
    assert sorted(told(answer(200, packed[0], **headers), plain)) == ["$.b", "content-encoding"]


@pytest.mark.parametrize("coding", PACKERS)
def test_a_body_that_unpacks_to_too_much_is_bytes(coding: str) -> None:
    bomb = PACKERS[coding](b"[" + b"0," * MAX_BODY + b"0]")
    assert told(answer(200, bomb, Content_Encoding=coding), answer(200, bomb, Content_Encoding=coding)) == []
    changed = compare(
        exchange(answer(200, bomb, Content_Encoding=coding), answer(200, bomb + b"x", Content_Encoding=coding)), Rules()
    )
    (difference,) = changed.differences
    assert difference.path == "$"
    assert difference.source is not None
    assert "bytes, sha256" in difference.source


@given(st.binary(max_size=300), st.integers(1, 50), st.integers(1, 50))
def test_chunks_mean_nothing(body: bytes, size: int, other: int) -> None:
    ones = answer(200, chunked(body, size), Transfer_Encoding="chunked")
    others = answer(200, chunked(body, other), Transfer_Encoding="chunked")
    assert told(ones, others) == []
    assert told(ones, answer(200, body)) == []


@given(st.binary(max_size=300), st.binary(max_size=300), st.sampled_from(["", "application/json", "image/png"]))
def test_bodies_that_are_not_the_same_differ_whatever_they_are(one: bytes, other: bytes, type_: str) -> None:
    paths = told(answer(200, one, Content_Type=type_), answer(200, other, Content_Type=type_))
    if one == other:
        assert paths == []
    elif not type_.endswith("json"):
        assert paths != []


def test_lines_of_json_are_compared_field_by_field() -> None:
    one, other = (b'{"a": 1}\n{"a": %d, "b": 1}\n' % value for value in (1, 2))
    for type_ in ("application/x-ndjson", "application/json", "text/plain", ""):
        assert told(answer(200, one, Content_Type=type_), answer(200, other, Content_Type=type_)) == ["$[*].a"]


def test_forms_are_compared_field_by_field() -> None:
    type_ = "application/x-www-form-urlencoded; charset=utf-8"
    one, other = answer(200, b"a=1&b=2&b=3&c=", Content_Type=type_), answer(200, b"c=&b=2&b=4&a=1", Content_Type=type_)
    assert told(one, other) == ["$.b[*]"]


def test_binary_bodies_are_told_by_length_and_hash() -> None:
    one, other = answer(200, b"\x89PNG\0\xff"), answer(200, b"\x89PNG\0\xfe")
    (difference,) = compare(exchange(one, other), Rules()).differences
    assert (difference.path, (difference.source or "")[:7]) == ("$", "6 bytes")


@given(st.binary(min_size=90, max_size=400), st.binary(min_size=90, max_size=400), st.booleans())
def test_cut_bodies_are_compared_by_length_and_hash(one: bytes, other: bytes, is_same: bool) -> None:
    target = one if is_same else other
    assert bool(told(answer(200, one), answer(200, target), limits=SMALL)) == (one != target)


def test_a_cut_body_that_is_chunked_or_packed_differs_only_where_that_can_be_seen() -> None:
    content = bytes(range(256)) * 4
    ones = answer(200, chunked(content, 10), Transfer_Encoding="chunked")
    others = answer(200, chunked(content, 70), Transfer_Encoding="chunked")
    assert told(ones, others, limits=SMALL) == []
    changed = answer(200, chunked(b"X" + content[1:], 70), Transfer_Encoding="chunked")
    assert told(ones, changed, limits=SMALL) == ["$"]
    fast, best = (answer(200, gzip.compress(content * 9, level), Content_Encoding="gzip") for level in (1, 9))
    assert told(fast, best, limits=SMALL) == []


def test_an_answer_that_the_capture_has_in_part_is_compared_in_part() -> None:
    raw = msgspec.json.decode(result(answer(200, {"a": 1}, X_A="1"), answer(200, {"a": 2}, X_A="2")))
    raw["source_response"]["complete"] = False
    found = compare(read_exchange(msgspec.json.encode(raw)), Rules())
    assert [each.path for each in found.differences] == ["x-a"]
    assert not found.is_compared


def test_an_error_in_the_place_of_an_answer_is_one_difference() -> None:
    assert told(answer(200, {"a": 1}), answer(500, {"error": "x"}, X_A="1")) == [""]
    assert told(answer(200, {"a": 1}), answer(201, {"a": 2})) == ["", "$.a"]
