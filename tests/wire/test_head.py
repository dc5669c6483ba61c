"""An edit of a head changes what it names and nothing else, and the fast way does what the slow way does."""

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strandline.errors import MalformedHead
from strandline.wire.head import Head, add_header, request_line, splice_host, status_of

ends = st.sampled_from([b"\r\n", b"\n"])
names = st.sampled_from(["Host", "host", "HOST", "Accept", "accept", "X-Host", "Hostess", "a!#$%&'*+.^_`|~-9"])
values = st.text(st.sampled_from("aZ0 \t:;,\x01\x7f\x85\xa0\xff"), max_size=8)


@st.composite
def fields(draw: st.DrawFn) -> bytes:
    name, value, end = draw(names), draw(values), draw(ends)
    folds = draw(st.lists(st.tuples(st.sampled_from([b" ", b"\t"]), values, ends), max_size=1))
    colon = draw(st.sampled_from([b":", b": ", b":\t "]))
    first = b"%b%b%b%b" % (name.encode(), colon, value.encode("latin-1"), end)
    return first + b"".join(space + text.encode("latin-1") + end for space, text, end in folds)


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    first = draw(st.sampled_from([b"GET /a?b=c HTTP/1.1", b"POST /with space HTTP/1.0", b"HTTP/1.1 200 OK"]))
    return first + draw(ends) + b"".join(draw(st.lists(fields(), max_size=6))) + draw(ends)


def others(head: Head, name: str) -> list[bytes]:
    return [line for key, line in head.lines if key.lower() != name.lower().encode()]


def clean(value: str) -> str:
    return value.strip(" \t")


@given(heads())
def test_a_head_that_is_not_edited_goes_out_byte_for_byte(raw: bytes) -> None:
    head = Head(raw)
    assert b"".join((head.first_line, *(line for _, line in head.lines))) == raw[: len(raw) - len(head.end)]
    assert head.to_bytes() == raw


@given(heads(), names, values)
def test_what_is_set_is_got_once_and_no_other_line_changes(raw: bytes, name: str, value: str) -> None:
    head = Head(raw)
    before, count = others(head, name), len(head.all(name))
    head.set(name, value)
    again = Head(head.to_bytes())
    assert again.all(name) == [clean(value)]
    assert again.get(name.swapcase()) == clean(value)
    assert others(again, name) == before
    assert again.first_line == Head(raw).first_line
    assert len(again.lines) == len(before) + 1
    if count:
        place = [key.lower() for key, _ in Head(raw).lines].index(name.lower().encode())
        assert again.lines[place][0].lower() == name.lower().encode()


@given(heads(), names, values)
def test_what_is_added_comes_last_and_what_is_removed_is_gone(raw: bytes, name: str, value: str) -> None:
    head = Head(raw)
    head.add(name, value)
    assert Head(head.to_bytes()).all(name) == [*Head(raw).all(name), clean(value)]
    head.remove(name.upper())
    again = Head(head.to_bytes())
    assert again.get(name) is None
    assert others(again, name) == others(Head(raw), name)


@given(heads(), st.sampled_from([b"target:9200", b"a", b"[::1]:80"]))
def test_the_fast_way_to_a_host_is_the_slow_way(raw: bytes, host: bytes) -> None:
    slow = Head(raw)
    slow.set("Host", host.decode())
    assert splice_host(raw, host) == slow.to_bytes()


@given(heads(), names, values)
def test_the_fast_way_to_one_more_line_is_the_slow_way(raw: bytes, name: str, value: str) -> None:
    slow = Head(raw)
    slow.add(name, value)
    assert add_header(raw, f"{name}: {value}".encode("latin-1")) == slow.to_bytes()


@given(st.binary(max_size=60) | st.lists(st.sampled_from([b"GET / HTTP/1.1", b"\r\n", b"\n", b"A:b", b" ", b":"])))
@example(b"")
@example(b"\r\n\r\n")
@example(b"GET / HTTP/1.1")
def test_whatever_comes_is_read_or_refused_as_malformed(given_: bytes | list[bytes]) -> None:
    raw = given_ if isinstance(given_, bytes) else b"".join(given_)
    for read in (request_line, status_of, lambda raw: Head(raw).lines, lambda raw: add_header(raw, b"A: b")):
        try:
            read(raw)
        except MalformedHead as error:
            assert isinstance(error, ValueError)
    with contextlib.suppress(MalformedHead):
        splice_host(raw, b"x")


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"GET / HTTP/1.1\r\n", "does not end in an empty line"),
        (b"GET / HTTP/1.1\r\nA: b\r\n", "does not end in an empty line"),
        (b"\r\nGET / HTTP/1.1\r\n\r\n", "the first line is empty"),
        (b"GET / HTTP/1.1\r\n A: b\r\n\r\n", "begins with a space"),
        (b"GET / HTTP/1.1\r\nA: b\r\nno colon\r\n\r\n", "line 3 is no field"),
        (b"GET / HTTP/1.1\r\nA b: c\r\n\r\n", "line 2 is no field"),
        (b"GET / HTTP/1.1\r\n: c\r\n\r\n", "line 2 is no field"),
        (b"GET / HTTP/1.1\r\n\r\nA: b\r\n\r\n", "line 2 is no field"),
    ],
)
def test_a_head_that_is_none_is_refused_with_its_reason(raw: bytes, problem: str) -> None:
    with pytest.raises(MalformedHead, match=problem):
        Head(raw).get("A")


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "a\rb", "a\0b", "€"])
def test_a_value_that_would_not_stay_in_its_line_is_refused(value: str) -> None:
    head = Head(b"GET / HTTP/1.1\r\nA: b\r\n\r\n")
    for edit in (head.set, head.add):
        with pytest.raises(ValueError, match="latin-1, without signs"):
            edit("A", value)
    with pytest.raises(ValueError, match="no line end"):
        add_header(head.to_bytes(), b"A: b\r\nX-Evil: 1")
    assert head.to_bytes() == b"GET / HTTP/1.1\r\nA: b\r\n\r\n"


@pytest.mark.parametrize("name", ["", "A B", "A:", "Ä€", "A\r\nB"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no name of a header"):
        Head(b"GET / HTTP/1.1\r\n\r\n").set(name, "x")


def test_a_host_that_the_head_cuts_off_is_refused() -> None:
    with pytest.raises(MalformedHead):
        splice_host(b"GET / HTTP/1.1\r\nHost: a", b"b")


def test_a_folded_value_is_one_value() -> None:
    head = Head(b"GET / HTTP/1.1\r\nA: one\r\n\ttwo \n  three\r\nB: x\r\n\r\n")
    assert head.all("a") == ["one two three"]
    head.remove("A")
    assert head.to_bytes() == b"GET / HTTP/1.1\r\nB: x\r\n\r\n"


def test_a_new_target_keeps_all_but_the_first_line() -> None:
    raw = b"GET /old HTTP/1.1\nA: b\r\n\r\n"
    assert Head(raw).with_target("/new?x=1").to_bytes() == b"GET /new?x=1 HTTP/1.1\nA: b\r\n\r\n"
    assert Head(raw).with_target("/n", method="PUT").to_bytes() == b"PUT /n HTTP/1.1\nA: b\r\n\r\n"
    for wrong in ("", "/a b", "/a\r\nX: y", "/€"):
        with pytest.raises(ValueError, match="without spaces"):
            Head(raw).with_target(wrong)


def test_the_first_line_is_read_without_the_others() -> None:
    assert request_line(b"GET /a b HTTP/1.1\r\nnonsense") == ("GET", "/a b", "HTTP/1.1")
    assert status_of(b"HTTP/1.1 204 No Content\r\nnonsense") == 204
    assert status_of(b"HTTP/1.0 200\n") == 200
    for wrong in (b"GET /\r\n\r\n", b"GET  HTTP/1.1\r\n\r\n", b"\r\n\r\n", b"HTTP/1.1 20 OK\r\n\r\n"):
        with pytest.raises(MalformedHead):
            request_line(wrong)
        with pytest.raises(MalformedHead):
            status_of(wrong)
