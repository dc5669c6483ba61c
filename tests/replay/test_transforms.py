"""A request goes out as captured but for what was asked; a request that cannot be made fails alone."""

import gzip
import json
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.config import load
from strandline.errors import ConfigError, OptionError, TransformFailed
from strandline.replay.changes import TransformConfig
from strandline.replay.steps import JsonConfig, Request, StepConfig
from strandline.replay.transforms import Transform
from strandline.wire.head import Head, add_header
from strandline.wire.identity import marker, request_id

GET = b"GET /old/a?q=1 HTTP/1.1\r\nHost: source\r\nCookie: secret\r\naccept: */*\r\n\r\n"
documents = st.dictionaries(
    st.text(max_size=5).filter(lambda name: name != "new"), st.integers() | st.text(max_size=5), max_size=5
)
SETS_NEW = TransformConfig(transforms=[StepConfig(json=JsonConfig(set={"new": 1})), StepConfig(remove_header=["A"])])

USER_MODULE = """
def touch(request):
    request.headers.set("X-Seen", request.method)

def replace(request):
    request.method = "PUT"
    request.target = "/put"
    request.body = request.body.upper()
    return request

def unpack(request):
    request.headers.remove("Content-Encoding")

def shorten(request):
    request.headers.remove("Transfer-Encoding")

def fail(request):
    raise KeyError("no such thing")

def leave(request):
    raise SystemExit(3)

def wrong(request):
    return "a string"

def falsy(request):
    return False

def text(request):
    request.body = "a string"

def inject(request):
    request.target = "/a HTTP/1.1\\r\\nX: y"

not_callable = 5
"""


@dataclass
class Held:
    """A body in memory that counts how often it is read."""

    data: bytes = b""
    reads: int = 0

    @property
    def length(self) -> int:
        return len(self.data)

    def read(self) -> bytes:
        self.reads += 1
        return self.data


@pytest.fixture(autouse=True)
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "replay_user.py").write_text(USER_MODULE)
    (tmp_path / "replay_broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("replay_user", None)


def config(tmp_path: Path, text: str) -> TransformConfig:
    file = tmp_path / "replay.yaml"
    file.write_text(text)
    return load(file, TransformConfig)


def transform(tmp_path: Path, *steps: str, rest: str = "") -> Transform:
    return Transform("target:9200", config(tmp_path, "transforms:\n" + "".join(f"- {step}\n" for step in steps) + rest))


def post(body: bytes, *fields: str, path: str = "/a") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: target:9200", *fields, f"Content-Length: {len(body)}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def chunked(body: bytes, size: int) -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def test_without_a_configuration_only_the_host_changes_and_no_body_is_read() -> None:
    body = Held(b"x" * 100)
    plain = Transform("target:9200")
    assert plain.apply(GET, body) == (GET.replace(b"source", b"target:9200"), None)
    assert body.reads == 0
    assert not plain.needs_body
    assert plain.describe() == ["set host target:9200"]


def test_steps_run_in_their_order_and_leave_the_other_lines_alone(tmp_path: Path) -> None:
    made = transform(
        tmp_path,
        "set_header: {X-One: 'a', accept: text/plain}",
        "remove_header: [cookie, Absent]",
        r"rewrite_path: {match: '^/old/(\w+)', replace: '/new/\1/\1'}",
        "host: other:80",
        "rewrite_path: {match: new, replace: newer}",
    )
    body = Held(b"x" * 100)
    head, new = made.apply(GET, body)
    assert head == b"GET /newer/a/a?q=1 HTTP/1.1\r\nHost: other:80\r\naccept: text/plain\r\nX-One: a\r\n\r\n"
    assert new is None
    assert body.reads == 0


def test_a_json_edit_goes_out_with_its_new_length(tmp_path: Path) -> None:
    made = transform(tmp_path, """json: {set: {"a.b[0].c": 1.5, "n.m": {"k": []}}, remove: ["x.y", "gone"]}""")
    body = b'{"a": {"b": [{"c": 0, "d": 12345678901234567890123, "e": 1e400}]}, "x": {"y": 1}}'
    head, new = made.apply(post(body, "Content-Type: application/json; charset=utf-8"), Held(body))
    assert new == b'{"a":{"b":[{"c":1.5,"d":12345678901234567890123,"e":1E+400}]},"x":{},"n":{"m":{"k":[]}}}'
    assert head == post(new, "Content-Type: application/json; charset=utf-8")


def test_a_value_that_one_request_was_given_is_not_changed_by_the_next(tmp_path: Path) -> None:
    made = transform(
        tmp_path, """json: {set: {"a": {}, "a.b": 1, "c": {}}}""", """json: {remove: ["a.b"], set: {"c.d": 2}}"""
    )
    for _ in range(2):
        assert made.apply(post(b"{}"), Held(b"{}"))[1] == b'{"a":{},"c":{"d":2}}'


@pytest.mark.parametrize(
    ("kind", "path", "body"),
    [
        ("application/json", "/a", b""),
        ("application/json", "/a", b'{"z" : 1}'),
        ("text/plain", "/a", b"hello"),
        ("text/plain", "/a", b"{hello"),
        ("application/x-ndjson", "/a", b'{"a": 1}\n{"b": 2}\n'),
        ("application/json", "/i/_bulk?refresh", b'{"a": 1}\n{"b": 2}\n'),
    ],
)
def test_a_body_that_has_nothing_to_edit_goes_out_as_captured(
    tmp_path: Path, kind: str, path: str, body: bytes
) -> None:
    head = post(body, f"Content-Type: {kind}", path=path)
    assert transform(tmp_path, "json: {remove: [a]}").apply(head, Held(body)) == (head, None)


@given(documents, st.integers(1, 20))
def test_chunks_and_a_length_carry_the_same_edit(document: Any, size: int) -> None:
    made = Transform("target:9200", SETS_NEW)
    body = json.dumps(document).encode()
    _, whole = made.apply(post(body), Held(body))
    fields = "POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n"
    head, cut = made.apply(fields.encode(), Held(chunked(body, size)))
    assert whole == cut
    assert json.loads(whole or b"") == document | {"new": 1}
    assert head == b"POST /a HTTP/1.1\r\nHost: target:9200\r\nContent-Length: %d\r\n\r\n" % len(cut or b"")


@pytest.mark.parametrize(("coding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_packed_body_is_edited_and_packed_again(tmp_path: Path, coding: str, pack: Any) -> None:
    body = pack(b'{"a":1,"b":2}')
    head, new = transform(tmp_path, "json: {remove: [a]}").apply(post(body, f"Content-Encoding: {coding}"), Held(body))
    assert gzip.decompress(new or b"") == b'{"b":2}'
    assert Head(head).get("Content-Encoding") == "gzip"
    assert Head(head).get("Content-Length") == str(len(new or b""))


@pytest.mark.parametrize(
    ("step", "head", "body", "reason"),
    [
        ("json: {remove: [a]}", post(b"x", "Content-Encoding: br"), b"x", "cannot undo the content coding 'br'"),
        ("json: {remove: [a]}", post(b"{x", "Content-Type: application/json"), b"{x", "the body is no JSON"),
        ("json: {remove: [a]}", post(b"[" * 9999, "Content-Type: a/b+json"), b"[" * 9999, "the body is no JSON"),
        *(
            ("json: {remove: [a]}", post(body, "Content-Type: application/json"), body, "the body is no JSON")
            for body in (b'{"a":"\xff"}', b'{"a":1e999999999999999999999}')
        ),
        ("json: {set: {a.b: 1}}", post(b'{"a":1}'), b'{"a":1}', "there is no place for 'b'"),
        ("json: {remove: [a]}", post(b"x" * 10_001), b"x" * 10_001, "the body has 10,001 bytes; 'max_body' is 10,000"),
        ("json: {remove: [a]}", GET[:-2] + b"Transfer-Encoding: chunked\r\n\r\n", b"5\r\nab", "does not end where it"),
        ("remove_header: [A]", b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"", "line 2 is no field"),
        ("rewrite_path: {match: a, replace: ' '}", GET, b"", "without spaces"),
        ("python: replay_user:fail", GET, b"", "KeyError: 'no such thing'"),
        ("python: replay_user:leave", GET, b"", "SystemExit: 3"),
        ("python: replay_user:wrong", GET, b"", "it gave no Request"),
        ("python: replay_user:falsy", GET, b"", "it gave no Request"),
        ("python: replay_user:text", GET, b"", "it gave no Request"),
        ("python: replay_user:inject", GET, b"", "without spaces"),
    ],
)
def test_a_request_that_cannot_be_made_fails_with_step_and_reason(
    tmp_path: Path, step: str, head: bytes, body: bytes, reason: str
) -> None:
    made = transform(tmp_path, step, rest="max_body: 10000\n")
    with pytest.raises(TransformFailed) as error:
        made.apply(head, Held(body))
    assert reason in error.value.reason
    assert str(error.value).startswith(error.value.step)
    assert "\n" not in str(error.value)


@given(st.binary(max_size=50), st.binary(max_size=50))
def test_whatever_was_captured_is_made_or_fails_as_a_transform(head: bytes, body: bytes) -> None:
    made = Transform("target:9200", SETS_NEW)
    try:
        made.apply(b"POST / HTTP/1.1\r\n" + head + b"\r\n\r\n", Held(body))
    except TransformFailed as error:
        assert error.reason


def test_a_function_changes_the_request_or_returns_another(tmp_path: Path) -> None:
    head, new = transform(tmp_path, "python: replay_user:touch", "python: replay_user:replace").apply(
        post(b"hello"), Held(b"hello")
    )
    assert head == post(b"HELLO").replace(b"POST /a", b"PUT /put")[:-2] + b"X-Seen: POST\r\n\r\n"
    assert new == b"HELLO"


def test_a_function_that_changes_the_framing_changes_the_body_with_it(tmp_path: Path) -> None:
    body = gzip.compress(b"plain")
    head, new = transform(tmp_path, "python: replay_user:unpack").apply(
        post(body, "Content-Encoding: gzip"), Held(body)
    )
    assert (head, new) == (post(b"plain"), b"plain")
    head, new = transform(tmp_path, "python: replay_user:shorten").apply(
        b"POST /a HTTP/1.1\r\nHost: target:9200\r\nTransfer-Encoding: chunked\r\n\r\n", Held(chunked(b"plain", 2))
    )
    assert (head, new) == (post(b"plain"), b"plain")


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("transforms:\n- {host: a, python: 'm:n'}", 2, "expected one of set_header, remove_header"),
        ("transforms:\n- {}", 2, "got none"),
        ("transforms:\n- host: a\n- hots: a", 3, "key 'transforms.1.hots' is unknown; did you mean 'host'?"),
        ("transforms:\n- rewrite_path: {match: '(a', replace: b}", 2, "nvalid regular expression: missing )"),
        ("transforms:\n- rewrite_path: {match: 'a', replace: '\\1'}", 2, "nvalid replacement string"),
        (f"transforms:\n- rewrite_path: {{match: '{'a' * 1001}', replace: ''}}", 2, "longer than 1000"),
        ("transforms:\n- host: a\n- host: 'a b'", 3, "'a b' is no host"),
        ("transforms:\n- json: {set: {a..b: 1}}", 2, "'a..b' is no place in JSON"),
        ("transforms:\n- set_header: {'A B': c}", 2, "'A B' is no name of a header"),
        ('transforms:\n- set_header: {A: "hidden\\r\\nB: c"}', 2, "without signs that end a line"),
        ("transforms:\n- set_header: {content-length: '1'}", 2, "follows from the body"),
        ("transforms:\n- remove_header: [Transfer-Encoding]", 2, "follows from the body"),
        ("transforms:\n- python: replay_user", 2, "'replay_user' is not module:name"),
        ("transforms:\n- python: replay_user:absent", 2, "module 'replay_user' has no 'absent'"),
        ("transforms:\n- python: replay_absent:touch", 2, "no module 'replay_absent'"),
        ("transforms:\n- python: replay_broken:touch", 2, "the module fails with ZeroDivisionError"),
        ("transforms:\n- python: replay_user:not_callable", 2, "is no function"),
        (
            "auth: {basic: {user: a, password: b}, header: {name: c, value: d}}",
            1,
            "expected one of basic, header, sigv4",
        ),
        ("max_body: 0", 1, "'max_body': expected `int` >= 1"),
        (
            "auth: nonsense",
            1,
            "'auth': 'nonsense' is unknown; valid are basic: ..., header: ..., pass, remove, sigv4: ...",
        ),
        ("auth: basic", 1, "'auth': 'basic' is a key and no word; write 'basic:' and its settings below it"),
        ("auth: bsaic", 1, "'auth': 'bsaic' is unknown; did you mean 'basic: ...'?"),
    ],
)
def test_a_wrong_configuration_is_refused_at_the_start_with_its_place(
    tmp_path: Path, text: str, line: int, problem: str
) -> None:
    with pytest.raises(ConfigError) as error:
        config(tmp_path, text)
    assert error.value.line == line
    assert problem in str(error.value)
    assert "hidden" not in str(error.value)


def test_a_host_that_is_none_is_refused() -> None:
    with pytest.raises(OptionError, match="is no host"):
        Transform("a b")


def test_the_description_tells_what_is_rewritten_and_no_secret(tmp_path: Path) -> None:
    made = transform(
        tmp_path,
        "set_header: {X-Api-Key: hidden}",
        "remove_header: [Cookie]",
        "rewrite_path: {match: a, replace: b}",
        "json: {set: {password: hidden}, remove: [x]}",
        "python: replay_user:touch",
        rest="auth: {basic: {user: ann, password: hidden}}\n",
    )
    assert made.needs_body
    assert made.describe() == [
        "set host target:9200",
        "set header X-Api-Key",
        "remove header Cookie",
        "rewrite path a to b",
        "edit JSON: set password; remove x",
        "call replay_user:touch",
        "set header Authorization, basic, as ann",
    ]


def test_a_pattern_made_to_take_for_ever_does_not(tmp_path: Path) -> None:
    made = transform(tmp_path, "rewrite_path: {match: '(a+)+$', replace: b}")
    head = GET.replace(b"/old/a", b"/" + b"a" * 5000 + b"!")
    assert made.apply(head, Held())[0] == head.replace(b"source", b"target:9200")


def test_the_marker_names_the_transaction() -> None:
    assert marker(3, 14, 1) == f"X-Strandline-Request: {request_id(3, 14, 1)}".encode()
    assert Head(add_header(GET, marker(3, 14, 1))).get("x-strandline-request") == "3-14.1"


def test_a_request_is_a_plain_value() -> None:
    assert Request("GET", "/", Head(GET), b"").headers.get("host") == "source"
