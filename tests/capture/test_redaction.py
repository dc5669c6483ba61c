"""Laws of redaction: what is named never comes out, what is not named comes out as it was, and messages stay whole."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.capture.redacted import Chunks, RedactedMessages
from strandline.capture.redaction import Action, Redaction
from strandline.core.fields import MAX_DEPTH
from strandline.wire.http1 import MAX_HEAD, RequestFramer
from strandline.wire.redaction_mark import MARK, Redacted, has_other_body, read_mark
from tests.wire.messages import pieces

SECRET = "hunter2-do-not-tell"
KEY = b"0123456789abcdef"
ACTIONS = st.sampled_from(Action)
NAMES = st.sampled_from(["password", "user", "card", "number", "Items", "x"])
PLAIN = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
AFTER_CR = [": a\r{}", ": a\r\r{}\rb", ": a\rx:{}", "\r: {}", ": a\r\n b\r{}"]
TREES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3))


def redact(redaction: Redaction, *parts: bytes) -> bytes:
    """What is recorded of a message that comes in those parts."""
    messages = RedactedMessages(redaction)
    return b"".join(messages.feed(part) for part in parts) + messages.end()


def post(body: bytes, *headers: bytes, kind: bytes = b"application/json") -> bytes:
    fields = [b"Content-Length: %d" % len(body), b"Content-Type: " + kind, *headers]
    return b"POST /x HTTP/1.1\r\n%b\r\n\r\n%b" % (b"\r\n".join(fields), body)


def chunked(body: bytes, trailers: bytes = b"", *headers: bytes) -> bytes:
    fields = [b"Transfer-Encoding: chunked", *headers]
    half = len(body) // 2
    chunks = b"".join(b"%x;e=1\r\n%b\r\n" % (len(part), part) for part in (body[:half], body[half:]) if part)
    return b"POST /x HTTP/1.1\r\n%b\r\n\r\n%b0\r\n%b\r\n" % (b"\r\n".join(fields), chunks, trailers)


def is_one_message(data: bytes) -> bool:
    framer = RequestFramer()
    return framer.feed(data) == len(data) and framer.complete


@st.composite
def trees_with_a_secret(draw: st.DrawFn) -> tuple[Any, str]:
    """JSON with the secret at a path, and that path as it may be written in a configuration."""
    tree: Any = draw(st.sampled_from([SECRET, {"deep": SECRET}, [SECRET], [{"a": [SECRET]}]]))
    path: list[str] = []
    for _ in range(draw(st.integers(1, 4))):
        if bool(path) and draw(st.booleans()):
            # Items of an array count as being where it is.
            tree = [*draw(st.lists(TREES, max_size=2)), tree]
        else:
            name = draw(NAMES)
            others = draw(st.dictionaries(NAMES, TREES, max_size=2))
            tree = {**others, name: tree}
            path.insert(0, draw(st.sampled_from([name, name.upper(), "*"])))
    return tree, draw(st.sampled_from([".".join(path), f"**.{path[-1]}"]))


@given(trees_with_a_secret(), ACTIONS, st.data())
def test_a_named_field_never_comes_out_however_deep_and_however_cut(
    found: tuple[Any, str], action: Action, data: st.DataObject
) -> None:
    tree, path = found
    body = json.dumps(tree, ensure_ascii=data.draw(st.booleans())).encode()
    message = data.draw(st.sampled_from([post(body), chunked(body), chunked(body, b"x: y\r\n")]))
    out = redact(Redaction(json={path: action}, key=KEY), *data.draw(pieces(message)))
    assert SECRET.encode() not in out
    assert is_one_message(out)


@given(TREES)
def test_fields_that_are_not_named_stay_as_they_were(tree: Any) -> None:
    body = json.dumps(tree).encode()
    out = redact(Redaction(json={"nothing.like.it": Action.REMOVE}), post(body))
    assert json.loads(out.partition(b"\r\n\r\n")[2] or b"null") == tree


@given(st.binary(max_size=60), st.data())
def test_a_body_that_is_not_json_is_left_out(content: bytes, data: st.DataObject) -> None:
    body = b"{" + content + SECRET.encode()  # no JSON begins so and ends so
    kind = data.draw(st.sampled_from([b"application/json", b"text/plain", b"application/x-www-form-urlencoded"]))
    message = data.draw(st.sampled_from([post(body, kind=kind), chunked(body)]))
    out = redact(Redaction(json={"password": Action.REMOVE}), *data.draw(pieces(message)))
    assert SECRET.encode() not in out
    assert b"Content-Length: 0\r\nX-Strandline-Redacted: not JSON\r\n\r\n" in out
    assert is_one_message(out)


@given(
    st.sampled_from(["Authorization", "authorization", "AUTHORIZATION "]),
    st.sampled_from(
        [": {}", ":{}", ": a\r\n {}", ":\r\n\t{}\r\n b", ": {}\rX: y", ": 1\r\nx: 2\r\nAuthorization: {}", *AFTER_CR]
    ),
    ACTIONS,
    st.data(),
)
def test_a_named_header_never_comes_out(name: str, form: str, action: Action, data: st.DataObject) -> None:
    field = (name + form.format(SECRET)).encode()
    in_trailer = chunked(b"abc", field + b"\r\n")
    in_head = post(b"{}", field)
    redaction = Redaction(headers={"authorization": action}, key=KEY)
    for message in (in_trailer, in_head):
        out = redact(redaction, *data.draw(pieces(message)))
        assert SECRET.encode() not in out
        assert is_one_message(out)
        if action is Action.REMOVE:
            assert b"uthorization" not in out


@pytest.mark.parametrize("action", Action)
@pytest.mark.parametrize("field", [b"X: y\rAuthorization: S", b"\rAuthorization: S", b"X: y\r Authorization: S"])
def test_a_named_header_after_a_lone_cr_takes_its_line_and_no_other_with_it(field: bytes, action: Action) -> None:
    redaction = Redaction(headers={"authorization": action}, json={"a": Action.REMOVE}, key=KEY)
    out = redact(redaction, post(b'{"a":1}', field, b"Host: x"))
    hashed = b"Authorization: %b\r\n" % redaction.hashed(b"S").encode() if action is Action.HASH else b""
    kind = b"Content-Type: application/json\r\n"
    assert out == b"POST /x HTTP/1.1\r\n%b%bHost: x\r\nContent-Length: 2\r\n\r\n{}" % (kind, hashed)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"GET /a?token=S&b=1 HTTP/1.1\r\n\r\n", b"GET /a?&b=1 HTTP/1.1\r\n\r\n"),
        (b"GET /a?b=1&TOK%65N=S HTTP/1.1\r\n\r\n", b"GET /a?b=1& HTTP/1.1\r\n\r\n"),
        (b"GET / HTTP/1.1\r\nReferer: http://x/?token=S#f\r\n\r\n", b"GET / HTTP/1.1\r\nReferer: http://x/?#f\r\n\r\n"),
    ],
)
def test_a_named_parameter_is_taken_out_of_every_url(head: bytes, expected: bytes) -> None:
    assert redact(Redaction(query={"token": Action.REMOVE}), head) == expected


def test_a_hash_is_the_same_for_the_same_value_wherever_it_stands_and_another_with_another_key() -> None:
    actions = {"x": Action.HASH}
    first, second = (Redaction(headers=actions, json=actions, query=actions, key=key) for key in (KEY, KEY[::-1]))
    out = redact(first, b"POST /?x=abc HTTP/1.1\r\nX: abc\r\nContent-Length: 11\r\n\r\n" + b'{"x":"abc"}')
    assert out.count(first.hashed(b"abc").encode()) == 3
    assert first.hashed(b"abc") != second.hashed(b"abc")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (post(b"\x1f\x8b" + SECRET.encode(), b"Content-Encoding: gzip"), b"compressed"),
        (post(b'{"a":"%b"}' % (b"x" * 200)), b"too large"),
        (chunked(b"[" + b"1," * 100 + b"1]"), b"too large"),
        (post(b"[" * 5000 + b"]" * 5000, kind=b"text/json").replace(b"\0", b""), b"too large"),
    ],
)
def test_what_cannot_be_looked_into_is_left_out_and_says_why(message: bytes, reason: bytes) -> None:
    out = redact(Redaction(json={"password": Action.REMOVE}, max_body=100), message)
    assert b"Content-Length: 0\r\nX-Strandline-Redacted: %b\r\n\r\n" % reason in out
    assert out.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 500, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"x":', b"}")])
def test_json_nested_too_deep_is_left_out(opening: bytes, closing: bytes, depth: int) -> None:
    redaction = Redaction(json={"**.a": Action.REMOVE})
    body = opening * depth + b"1" + closing * depth
    assert b"X-Strandline-Redacted: too deep" in redact(redaction, post(body))


@pytest.mark.parametrize("path", ["**.a", "**.**.a", "*.**.a", "**.*.**.*.a"])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"x":', b"}")])
def test_arrays_and_objects_within_each_other_cost_no_more_at_each_level(
    opening: bytes, closing: bytes, path: str
) -> None:
    # Doubled at each level, the paths would fill any memory.
    depth = MAX_DEPTH - 2
    body = opening * depth + b'{"a":"S","b":1}' + closing * depth
    out = redact(Redaction(json={path: Action.REMOVE}), post(body))
    assert out.endswith(opening * depth + b'{"b":1}' + closing * depth)


def test_digests_of_a_body_that_was_changed_go_with_it() -> None:
    out = redact(Redaction(json={"a": Action.REMOVE}), post(b'{"a":1}', b"Content-MD5: abc", b"Digest: x"))
    assert out == b"POST /x HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


def test_lines_of_json_are_redacted_line_by_line() -> None:
    lines = b'{"index":{}}\n{"password":"a","n":1e400}\n'
    out = redact(Redaction(json={"password": Action.REMOVE}), post(lines, kind=b"application/x-ndjson"))
    assert out.endswith(b'{"index":{}}\n{"n":1e400}\n')


def test_types_that_hold_no_json_pass_where_they_are_named() -> None:
    message = post(b"<p>", kind=b"text/html; charset=utf-8")
    assert redact(Redaction(json={"a": Action.REMOVE}, pass_types=frozenset({"text/html"})), message) == message


@pytest.mark.parametrize("head", [b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"])
def test_a_message_without_a_body_keeps_its_framing(head: bytes) -> None:
    assert redact(Redaction(json={"a": Action.REMOVE}), head) == head


def test_interim_responses_are_redacted_too() -> None:
    interim = b"HTTP/1.1 103 Early Hints\r\nSet-Cookie: S\r\n\r\n"
    final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nSet-Cookie: S\r\n\r\n{}"
    redaction = Redaction(headers={"set-cookie": Action.REMOVE}, json={"a": Action.REMOVE})
    out = redact(redaction, interim + final)
    marked = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Strandline-Redacted: header set-cookie\r\n\r\n{}"
    assert out == b"HTTP/1.1 103 Early Hints\r\n\r\n" + marked


@given(TREES, st.sampled_from([(",", ":"), (", ", ": "), ("\n ,", ": ")]), st.booleans())
def test_a_message_in_which_nothing_is_named_is_recorded_byte_for_byte(
    tree: Any, signs: tuple[str, str], is_ascii: bool
) -> None:
    body = b" " + json.dumps(tree, separators=signs, ensure_ascii=is_ascii).encode() + b"\n"
    message = post(body, b"Content-MD5: abc")
    assert redact(Redaction(json={"nothing.like.it": Action.REMOVE}), message) == message


@pytest.mark.parametrize("action", Action)
@pytest.mark.parametrize(
    "form", [b'{"a":%b,"a":1}', b'{"a":1,"a":%b}', b'{"x":{"a":%b},"x":2}', b'[{"x":{"a":%b},"x":{}}]']
)
def test_a_name_that_is_repeated_lets_nothing_through(form: bytes, action: Action) -> None:
    body = form % json.dumps(SECRET).encode()
    for message in (post(body), post(b"{}\n" + body, kind=b"application/x-ndjson")):
        assert SECRET.encode() not in redact(Redaction(json={"**.a": action}, key=KEY), message)


def test_a_response_says_what_was_changed_in_it_and_a_request_does_not() -> None:
    redaction = Redaction(
        headers={"Set-Cookie": Action.REMOVE},
        query={"token": Action.HASH},
        json={"**.Card, no": Action.HASH, "x": Action.REMOVE},
        key=KEY,
    )
    rest = b"Location: /?token=S\r\nSet-Cookie: S\r\nContent-Length: 20\r\n\r\n" + b'{"a":{"card, no":1}}'
    answer = redact(redaction, b"HTTP/1.1 201 Created\r\n" + rest)
    told = [line.partition(b": ")[2].decode() for line in answer.split(b"\r\n") if line.startswith(MARK.encode())]
    assert read_mark(", ".join(told)) == Redacted(
        headers=frozenset({"location", "set-cookie"}), fields=("**.Card, no",)
    )
    assert has_other_body(answer)
    assert MARK.encode() not in redact(redaction, b"POST / HTTP/1.1\r\n" + rest)


def test_empty_lines_before_a_message_do_not_gather() -> None:
    messages = RedactedMessages(Redaction(headers={"x": Action.REMOVE}))
    assert {messages.feed(b"\r\n" * 500) for _ in range(20_000)} == {b""}
    asked = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    assert messages.feed(b"\n" + asked[:5]) + messages.feed(asked[5:]) + messages.end() == asked


def test_trailers_of_more_bytes_than_a_head_are_left_out_and_the_message_stays_whole() -> None:
    head = b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    trailer = b"t: " + b"x" * 1000 + b"\r\n"
    redaction = Redaction(headers={"x": Action.REMOVE})
    most = MAX_HEAD // len(trailer)
    for count, expected in ((most, trailer * most), (most + 1, b""), (10 * most, b"")):
        out = redact(redaction, head + b"3\r\nabc\r\n0\r\n", *[trailer] * count, b"\r\n")
        assert out == head + b"3\r\nabc\r\n0\r\n" + expected + b"\r\n"


def test_of_a_message_that_is_cut_only_the_head_is_kept_and_it_is_not_made_whole() -> None:
    messages = RedactedMessages(Redaction(headers={"x": Action.REMOVE}, json={"a": Action.REMOVE}))
    assert messages.feed(b"POST / HTTP/1.1\r\nX: S\r\nContent-Length: 9\r\n\r\n" + b'{"a"') == b""
    assert messages.cut() == b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n"
    assert messages.feed(b"POST / HT") + messages.cut() == b""


@given(st.binary(min_size=1, max_size=300), st.data())
def test_chunks_hold_what_was_put_into_them(body: bytes, data: st.DataObject) -> None:
    chunks = Chunks()
    wire = chunked(body, b"a: b\r\n").partition(b"\r\n\r\n")[2]
    assert b"".join(chunks.feed(piece) for piece in data.draw(pieces(wire))) == body
    assert chunks.trailers == b"a: b\r\n"
