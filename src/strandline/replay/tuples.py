"""A result in the form of opensearch-migrations' replayer, the "tuple", for tools that read its logs.

Header fields lie beside the keys of the first line, as text, or as a list where a name comes several times. A body is
without chunks and unpacked, under the key that says what it is: one JSON document, a sequence of them, text or base64.
"""

from base64 import b64encode
from decimal import Decimal
from typing import Any

import msgspec

from strandline.errors import MalformedBody, MalformedHead
from strandline.json_decode import MalformedJson, decode, decode_lines
from strandline.replay.encoding import ENCODER, body_text, cut_text, encode_bounded, ends, held
from strandline.replay.results import MAX_ATTEMPTS, WIDEST, Attempt, Limits, Message, Outcome
from strandline.units import Nanos
from strandline.wire.body import unchunked, unpacked
from strandline.wire.head import Head, request_line, status_of

DECODER = msgspec.json.Decoder(float_hook=Decimal)


def encode_tuple(outcome: Outcome, limits: Limits = WIDEST) -> bytes:
    """The tuple as JSON, below the bound of a result."""
    return encode_bounded(tuple_of, outcome, limits)


def tuple_of(outcome: Outcome, limits: Limits) -> dict[str, Any]:
    """The tuple with its parts cut to the limits."""
    made: dict[str, Any] = {"sourceRequest": _request(outcome.source_request, limits)}
    if outcome.source_response is not None:
        made["sourceResponse"] = _response(outcome.source_response, outcome.source_time, outcome.source_end, limits)
    if outcome.target_request is not None:
        made["targetRequest"] = _request(outcome.target_request, limits)
    made["targetResponses"] = [
        _response(attempt.response, attempt.sent, attempt.end, limits)
        for attempt in ends(outcome.attempts, MAX_ATTEMPTS)
        if attempt.response is not None
    ]
    made["connectionId"] = f"{cut_text(outcome.connection, limits)}.{outcome.ordinal}"
    made["numRequests"] = len(outcome.attempts)
    made["numErrors"] = sum(map(_failed, outcome.attempts))
    if outcome.error is not None:
        made["error"] = cut_text(outcome.error, limits)
    return made


def _failed(attempt: Attempt) -> bool:
    return attempt.error is not None


def _request(message: Message, limits: Limits) -> dict[str, Any]:
    try:
        method, target, version = request_line(message.head)
        first = {
            "Request-URI": target[: limits.text],
            "Method": method[: limits.text],
            "HTTP-Version": version[: limits.text],
        }
        return _fields(message, limits) | first
    except MalformedHead as error:
        return {"Exception": str(error)}


def _response(message: Message, begin: Nanos | None, end: Nanos | None, limits: Limits) -> dict[str, Any]:
    try:
        status = status_of(message.head)
        version, _, rest = message.head.partition(b"\n")[0].decode("latin-1").strip().partition(" ")
        first: dict[str, Any] = {
            "HTTP-Version": version,
            "Status-Code": status,
            "Reason-Phrase": rest[4:][: limits.text],
        }
        if begin is not None and end is not None:
            first["response_time_ms"] = (end - begin) // 1_000_000
        return _fields(message, limits) | first
    except MalformedHead as error:
        return {"Exception": str(error)}


def _fields(message: Message, limits: Limits) -> dict[str, Any]:
    """The header fields, as many as there is room for, and the body."""
    head, room = Head(message.head), limits.head
    fields: dict[str, Any] = {}
    names = {name.lower(): name.decode("latin-1") for name, _ in reversed(head.lines)}
    for name in reversed(names.values()):
        values = head.all(name)
        room -= sum(len(name) + len(value) + 4 for value in values)
        if room >= 0:
            fields[name] = values[0] if len(values) == 1 else values
    payload = _payload(head, message, limits)
    return fields | {"payload": payload} if payload else fields


def _payload(head: Head, message: Message, limits: Limits) -> dict[str, Any]:
    body, _, cut = held(message, limits.body)
    try:
        content = body if cut else unpacked(head, unchunked(head, body), limit=limits.body)
    except MalformedBody:
        content, cut = body, True
    if not content:
        return {}
    kind = (head.get("Content-Type") or "").partition(";")[0].strip().lower()
    if not cut and kind.endswith("json"):
        try:
            # Encoded here, since a document may be so deep that only the one or the other succeeds.
            if "ndjson" in kind:
                return {"inlinedJsonSequenceBodies": msgspec.Raw(ENCODER.encode(decode_lines(content, DECODER)))}
            return {"inlinedJsonBody": msgspec.Raw(ENCODER.encode(decode(content, DECODER)))}
        except (MalformedJson, RecursionError):
            pass
    text = body_text(content, cut=cut)
    return {"inlinedBase64Body": b64encode(content).decode()} if text is None else {"inlinedTextBody": text}
