"""One exchange compared: what its verdict will be made of, small enough to keep for every exchange."""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

import msgspec

from strandline.report.bodies import read_bodies
from strandline.report.differences import Differences, Found
from strandline.report.endpoints import shape
from strandline.report.exchange import Exchange, Message
from strandline.report.rules import Rules

# What an answer may depend on, beside the first line and the body.
ASKED_BY = ("authorization", "cookie", "accept", "accept-encoding", "accept-language", "range", "content-type")


class Compared(msgspec.Struct, kw_only=True, gc=False):
    """What is kept of an exchange."""

    shape: str
    question: int
    """A hash of the request: exchanges that have the same asked the same."""
    is_answered: bool
    has_source: bool
    is_compared: bool
    """Whether headers and bodies were compared, all of them."""
    differences: Sequence[Found]


def compare(exchange: Exchange, rules: Rules) -> Compared:
    """Compare the answers of an exchange. Its bodies are read once, here."""
    request, source, target = exchange.source_request, exchange.source_response, exchange.target_response
    asked = shape(request.method, request.target)
    found = Differences(rules.at(asked))
    is_compared = False
    if source is not None and target is not None:
        found.status(source.status, target.status)
        # An error has another body than an answer; to tell each of its fields would tell the same again and again.
        if (source.status or 0) // 100 == (target.status or 0) // 100:
            is_compared = _compare_content(source, target, found)
    return Compared(
        shape=asked,
        question=_question(request),
        is_answered=target is not None,
        has_source=source is not None,
        is_compared=is_compared and not found.is_cut,
        differences=list(found),
    )


def _compare_content(source: Message, target: Message, found: Differences) -> bool:
    """Compare headers and bodies; whether that could be done. Of a cut head or answer only the bytes there count."""
    if source.head_length is None and target.head_length is None and source.head != target.head:
        found.headers(headers_of(source.head), headers_of(target.head))
    if source.complete is False:
        return False
    if not _is_same_body(source, target):
        found.bodies(*read_bodies(source, headers_of(source.head), target, headers_of(target.head)))
    return True


def _is_same_body(source: Message, target: Message) -> bool:
    return (
        source.body == target.body
        and source.body_base64 == target.body_base64
        and source.length == target.length
        and source.sha256 == target.sha256
    )


@lru_cache(maxsize=64)
def headers_of(head: str) -> dict[str, str]:
    """The headers of a head by their names in small letters; a header of several lines has commas between."""
    headers: dict[str, str] = {}
    for line in head.split("\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            name, value = name.strip().lower(), value.strip()
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _question(request: Message) -> int:
    headers = headers_of(request.head)
    hashed = blake2b(f"{request.method} {request.target}\n".encode("utf-8", "surrogatepass"), digest_size=8)
    for name in ASKED_BY:
        if name in headers:
            hashed.update(f"{name}:{headers[name]}\n".encode("utf-8", "surrogatepass"))
    hashed.update((request.sha256 or request.body or request.body_base64 or "").encode())
    return int.from_bytes(hashed.digest(), "big", signed=True)
