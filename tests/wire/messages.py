"""HTTP/1 messages drawn by Hypothesis, with what each is made of."""

import itertools
from dataclasses import dataclass

from hypothesis import strategies as st

TOKEN = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=12).filter(lambda name: not name.startswith("-"))
RESERVED = {"content-length", "transfer-encoding", "upgrade", "expect", "connection", "host"}


@dataclass(frozen=True)
class Message:
    """The bytes of a message, and its parts."""

    head: bytes
    body: bytes
    """As it lies on the wire."""
    method: bytes = b"GET"
    status: int = 0
    interim: bytes = b""
    """Responses that come before it."""

    @property
    def wire(self) -> bytes:
        return self.interim + self.head + self.body


@st.composite
def headers(draw: st.DrawFn) -> bytes:
    names = draw(st.lists(TOKEN.filter(lambda name: name not in RESERVED), max_size=4))
    values = draw(st.lists(st.text("abc 123;=,/", max_size=20), min_size=len(names), max_size=len(names)))
    return b"".join(f"{name}: {value.strip()}\r\n".encode() for name, value in zip(names, values, strict=True))


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A header that tells the end, and the body on the wire."""
    content = draw(st.binary(max_size=200))
    if draw(st.booleans()):
        return f"Content-Length: {len(content)}\r\n".encode(), content
    cuts = sorted(draw(st.sets(st.integers(0, len(content)), max_size=4)) | {0, len(content)})
    chunks = [content[a:b] for a, b in itertools.pairwise(cuts)]
    trailer = draw(st.sampled_from([b"", b"x-sum: 1\r\n"]))
    sized = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return b"Transfer-Encoding: chunked\r\n", sized + b"0\r\n" + trailer + b"\r\n"


@st.composite
def requests(draw: st.DrawFn) -> Message:
    method = draw(st.sampled_from([b"GET", b"HEAD", b"POST", b"PUT", b"DELETE"]))
    told, body = draw(bodies()) if method in {b"POST", b"PUT"} else (b"", b"")
    target = draw(st.text("abc/?=&%20", max_size=20)).encode()
    head = b"%b /%b HTTP/1.1\r\nHost: x\r\n%b%b\r\n" % (method, target, draw(headers()), told)
    return Message(head, body, method)


@st.composite
def responses(draw: st.DrawFn, method: bytes = b"GET") -> Message:
    status = draw(st.sampled_from([200, 201, 204, 301, 304, 404, 500]))
    told, body = draw(bodies())
    if method == b"HEAD" or status == 304:
        body = b""
    elif status == 204:
        told = body = b""
    interim = draw(
        st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n"])
    )
    head = b"HTTP/1.1 %d Some Reason\r\n%b%b\r\n" % (status, draw(headers()), told)
    return Message(head, body, method, status, interim)


@st.composite
def pieces(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """The same bytes, cut anywhere."""
    cuts = sorted(draw(st.sets(st.integers(0, len(data)), max_size=12)) | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(cuts)]
