"""One exchange compared: what its verdict will be made of, small enough to keep for every exchange."""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

import msgspec

from strandline.core.fields import Rule, rules_of, without
from strandline.report.bodies import Body, Cut, Document, read_bodies
from strandline.report.differences import Differences, Found
from strandline.report.endpoints import shape
from strandline.report.exchange import Exchange, Message
from strandline.report.rules import Rules
from strandline.wire.redaction_mark import NAME, OF_BODY, read_mark

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
    """Compare headers and bodies; whether that could be done. Of a cut head or answer only the bytes there count.

    What the capture's redaction has changed is not what the source said, so it is compared with nothing.
    """
    headers, others = headers_of(source.head), headers_of(target.head)
    redacted = read_mark(headers.get(NAME))
    if source.head_length is None and target.head_length is None and source.head != target.head:
        unsaid = redacted.headers | (OF_BODY if redacted.has_other_body else set()) | {NAME}
        found.headers(*({name: told[name] for name in told.keys() - unsaid} for told in (headers, others)))
    if source.complete is False or redacted.is_left_out:
        return False
    if _is_same_body(source, target):
        return True
    bodies = read_bodies(source, headers, target, others)
    if redacted.fields:
        if any(isinstance(body, Cut) for body in bodies):
            return False
        rules = rules_of(redacted.fields)
        bodies = _without(bodies[0], rules), _without(bodies[1], rules)
    found.bodies(*bodies)
    return True


def _without(body: Body, rules: Sequence[Rule]) -> Body:
    return Document(without(body.value, rules)) if isinstance(body, Document) else body


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
