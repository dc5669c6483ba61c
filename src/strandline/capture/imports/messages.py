"""HTTP/1.1 messages out of what a HAR tells of them.

A HAR has bodies as text, unpacked and without their framing, and headers as the browser shows them, those of HTTP/2
too. So Content-Length is written anew, Transfer-Encoding and (where there is a body) Content-Encoding are left out,
`:authority` becomes Host and other names that begin with a colon go. All else is kept, in its order.
"""

import base64
import binascii
import codecs
import re
from collections.abc import Iterable, Sequence
from urllib.parse import SplitResult, urlencode

import msgspec

from strandline.capture.imports.items import Unreadable

TOKEN = re.compile(r"[!#-'*+\-.^-z|~A-Z0-9]+")
NOT_IN_TARGET = re.compile(rb"[^\x21-\x7e]")
CHARSET = re.compile(r"charset\s*=\s*\"?([\w.:-]+)", re.IGNORECASE)
BOUNDARY = re.compile(r"boundary\s*=\s*\"?([^\";,]+)", re.IGNORECASE)
LINE_ENDS = re.compile(r"[\r\n]+")
FRAMING = {"content-length", "transfer-encoding"}
# Of bodies that are there whole, unpacked.
UNPACKED = FRAMING | {"content-encoding"}
# No interim response is in a HAR, so nothing may wait for one.
OF_REQUEST = {"expect", "host"}
ALWAYS_WITH_LENGTH = {"POST", "PUT", "PATCH"}


class Header(msgspec.Struct):
    """A name and a value."""

    name: str
    value: str = ""


class Param(msgspec.Struct, rename="camel"):
    """A field of a form."""

    name: str
    value: str | None = None
    file_name: str | None = None
    content_type: str | None = None


class PostData(msgspec.Struct, rename="camel"):
    """A request's body."""

    mime_type: str = ""
    text: str | None = None
    params: Sequence[Param] = ()
    encoding: str | None = None


class Request(msgspec.Struct, rename="camel"):
    """A request."""

    method: str
    url: str
    headers: Sequence[Header] = ()
    post_data: PostData | None = None


class Content(msgspec.Struct, rename="camel"):
    """A response's body."""

    size: float | None = None
    mime_type: str | None = None
    text: str | None = None
    encoding: str | None = None


class Response(msgspec.Struct, rename="camel"):
    """A response; a status of 0 means that there was none."""

    status: int
    status_text: str | None = None
    headers: Sequence[Header] = ()
    content: Content | None = None


def request_bytes(request: Request, url: SplitResult) -> bytes:
    """The request as it may have been on the wire."""
    if not TOKEN.fullmatch(request.method):
        raise Unreadable(f"method {request.method!r} is none")
    body = _posted(request.post_data, request.headers)
    host = _first(request.headers, "host") or _first(request.headers, ":authority") or url.netloc.rpartition("@")[2]
    if LINE_ENDS.search(host):
        raise Unreadable(f"host {host!r} is none")
    target = host if request.method == "CONNECT" else (url.path or "/") + (f"?{url.query}" if url.query else "")
    safe = NOT_IN_TARGET.sub(lambda found: b"%%%02X" % ord(found[0]), target.encode())
    left_out = OF_REQUEST | (UNPACKED if body else FRAMING)
    lines = [b"%b %b HTTP/1.1" % (request.method.encode(), safe), b"Host: " + _latin(host)]
    lines += _lines(request.headers, left_out)
    if body or request.method in ALWAYS_WITH_LENGTH:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def response_bytes(response: Response, method: str) -> tuple[bytes, bytes]:
    """The response's head and body as they may have been on the wire."""
    if not 100 <= response.status <= 999:
        raise Unreadable(f"status {response.status} is none")
    has_body = method != "HEAD" and response.status >= 200 and response.status not in {204, 304}
    body = b""
    left_out = UNPACKED
    if has_body and response.content is not None and response.content.text is not None:
        kind = _first(response.headers, "content-type") or response.content.mime_type or ""
        body = _decoded(response.content.text, response.content.encoding, kind)
    elif not has_body:
        left_out = {"transfer-encoding"}
    reason = " ".join((response.status_text or "").split())
    lines = [b"HTTP/1.1 %d %b" % (response.status, _latin(reason)), *_lines(response.headers, left_out)]
    if has_body:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n", body


def lacks_body(response: Response, method: str) -> bool:
    """Whether there was a body that the HAR does not have."""
    content = response.content
    has_none = method == "HEAD" or response.status in {204, 304} or content is None
    return not has_none and content is not None and content.text is None and (content.size or 0) > 0


def _first(headers: Iterable[Header], name: str) -> str:
    return next((header.value.strip() for header in headers if header.name.lower() == name), "")


def _lines(headers: Iterable[Header], left_out: set[str]) -> Iterable[bytes]:
    for header in headers:
        if header.name.startswith(":") or header.name.lower() in left_out:
            continue
        if not TOKEN.fullmatch(header.name):
            raise Unreadable(f"header {header.name!r} is none")
        # Browsers write several headers of one name as one, with line ends between.
        for value in LINE_ENDS.split(header.value):
            yield b"%b: %b" % (header.name.encode(), _latin(value.strip()))


def _latin(text: str) -> bytes:
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()


def _decoded(text: str, encoding: str | None, kind: str) -> bytes:
    if encoding == "base64":
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise Unreadable("its body is not base64") from None
    named = CHARSET.search(kind)
    try:
        return text.encode(codecs.lookup(named[1]).name if named else "utf-8")
    except (LookupError, UnicodeError):
        return text.encode()


def _posted(data: PostData | None, headers: Iterable[Header]) -> bytes:
    if data is None:
        return b""
    kind = _first(headers, "content-type") or data.mime_type
    if data.text or not data.params:
        return _decoded(data.text or "", data.encoding, kind)
    boundary = BOUNDARY.search(kind)
    if boundary is None:
        return urlencode([(param.name, param.value or "") for param in data.params]).encode()
    parts = []
    for param in data.params:
        file = "" if param.file_name is None else f'; filename="{param.file_name}"'
        type_ = "" if param.content_type is None else f"\r\nContent-Type: {param.content_type}"
        head = f'Content-Disposition: form-data; name="{param.name}"{file}{type_}'
        parts.append(f"--{boundary[1].strip()}\r\n{head}\r\n\r\n{param.value or ''}\r\n")
    return "".join([*parts, f"--{boundary[1].strip()}--\r\n"]).encode()
