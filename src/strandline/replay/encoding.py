"""Results as JSON: parts cut to the limits, and to narrower ones where a record would be too large for Kafka."""

from base64 import b64encode
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import TypeVar

import msgspec

from strandline.errors import MalformedHead
from strandline.replay.results import (
    MAX_ATTEMPTS,
    MAX_POSITIONS,
    MAX_RECORD,
    NARROWER,
    WIDEST,
    Attempt,
    AttemptRecord,
    Limits,
    Message,
    MessageRecord,
    Outcome,
    Result,
)
from strandline.wire.head import request_line, status_of
from strandline.wire.identity import request_id

T = TypeVar("T")
ENCODER = msgspec.json.Encoder(decimal_format="number")


def encode_result(outcome: Outcome, limits: Limits = WIDEST) -> bytes:
    """The result as JSON, below MAX_RECORD bytes: within the limits, or within narrower ones where it must be."""
    return encode_bounded(result_of, outcome, limits)


def encode_bounded(make: Callable[[Outcome, Limits], object], outcome: Outcome, limits: Limits) -> bytes:
    """What is made of an outcome, as JSON, within the limits or within the first narrower ones that keep the bound."""
    encoded = ENCODER.encode(make(outcome, limits))
    for narrower in NARROWER:
        if len(encoded) < MAX_RECORD:
            break
        encoded = ENCODER.encode(make(outcome, narrower))
    return encoded


def result_of(outcome: Outcome, limits: Limits) -> Result:
    """The result with its parts cut to the limits."""
    attempts, records, text = outcome.attempts, outcome.records, limits.text
    told = [_attempt(attempt, limits) for attempt in ends(attempts, MAX_ATTEMPTS)]
    sent, due, source_end = attempts[0].sent if attempts else None, outcome.due, outcome.source_end
    last = told[-1] if told else None
    connection, node = outcome.connection, outcome.node
    source_request = _request(outcome.source_request, limits)
    return Result(
        id=request_id(outcome.partition, outcome.offset, outcome.ordinal),
        # Nearly every name is short and plain.
        connection=connection if connection.isascii() and len(connection) <= text else cut_text(connection, limits),
        node=node if node.isascii() and len(node) <= text else cut_text(node, limits),
        partition=outcome.partition,
        offset=outcome.offset,
        ordinal=outcome.ordinal,
        records=records if len(records) <= MAX_POSITIONS else ends(records, MAX_POSITIONS),
        record_count=len(records),
        generation=outcome.generation,
        source_request=source_request,
        source_response=_response(outcome.source_response, limits, complete=outcome.source_complete),
        target_request=_sent(outcome, source_request, limits),
        attempts=told,
        attempt_count=len(attempts),
        source_time_us=outcome.source_time // 1000,
        source_end_us=None if source_end is None else source_end // 1000,
        due_us=None if due is None else due // 1000,
        sent_us=None if sent is None else sent // 1000,
        first_byte_us=None if last is None else last.first_byte_us,
        end_us=None if last is None else last.end_us,
        lateness_us=None if sent is None or due is None else (sent - due) // 1000,
        verdict=outcome.verdict,
        same_body=outcome.same_body,
        error=None if outcome.error is None else cut_text(outcome.error, limits),
    )


def ends(items: Sequence[T], most: int) -> Sequence[T]:
    """The items, or the first and the last of too many."""
    return items if len(items) <= most else [*items[: most // 2], *items[-(most // 2) :]]


def cut_text(text: str, limits: Limits) -> str:
    """A text within its limit. What cannot be written as UTF-8, such as the name of an odd file, becomes `?`."""
    text = text[: limits.text]
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def body_text(body: bytes, *, cut: bool) -> str | None:
    """A body as text, without a sign that the cut broke; None if it is not UTF-8."""
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        return body[: error.start].decode() if cut and error.start > len(body) - 4 else None


def held(message: Message, limit: int) -> tuple[bytes, int, bool]:
    """The body within a limit, the length of the whole, and whether anything is missing."""
    length = len(message.body) if message.length < 0 else message.length
    return message.body[:limit], length, length > min(limit, len(message.body))


def _request(message: Message, limits: Limits) -> MessageRecord:
    record = _message(message, limits)
    try:
        method, target, _ = request_line(message.head)
    except MalformedHead:
        return record
    record.method = method[: limits.text]
    record.target = target[: limits.text]
    return record


def _sent(outcome: Outcome, source: MessageRecord, limits: Limits) -> MessageRecord | None:
    """The request as it was sent. Its first line is mostly the captured one, which is read already."""
    message, captured = outcome.target_request, outcome.source_request.head
    if message is None:
        return None
    if not message.head.startswith(captured[: captured.find(b"\n") + 1] or b"\n"):
        return _request(message, limits)
    record = _message(message, limits)
    record.method, record.target = source.method, source.target
    return record


def _response(message: Message | None, limits: Limits, *, complete: bool | None) -> MessageRecord | None:
    if message is None:
        return None
    record = _message(message, limits)
    record.complete = complete
    if message.status:
        record.status = message.status
        return record
    try:
        record.status = status_of(message.head)
    except MalformedHead:
        record.status = None
    return record


def _attempt(attempt: Attempt, limits: Limits) -> AttemptRecord:
    sent, first_byte, end, error = attempt.sent, attempt.first_byte, attempt.end, attempt.error
    return AttemptRecord(
        response=_response(attempt.response, limits, complete=None),
        sent_us=None if sent is None else sent // 1000,
        first_byte_us=None if first_byte is None else first_byte // 1000,
        end_us=None if end is None else end // 1000,
        error=None if error is None else cut_text(error, limits),
    )


def _message(message: Message, limits: Limits) -> MessageRecord:
    # Nearly every message is whole and text.
    head, whole = message.head, message.body
    length = len(whole)
    if length <= limits.body and len(head) <= limits.head and (message.length == length or message.length == -1):  # noqa: PLR1714
        try:
            return MessageRecord(head=head.decode("latin-1"), body=whole.decode(), length=length)
        except UnicodeDecodeError:
            pass
    body, length, cut = held(message, limits.body)
    if cut and message.sha256 is None and len(message.body) == length:
        # Kept with the message, since it may be cut more than once.
        message.sha256 = sha256(message.body).hexdigest()
    text = body_text(body, cut=cut)
    return MessageRecord(
        head=head[: limits.head].decode("latin-1"),
        head_length=len(head) if len(head) > limits.head else None,
        body=text,
        body_base64=b64encode(body).decode() if text is None else None,
        length=length,
        sha256=message.sha256 if cut else None,
    )
