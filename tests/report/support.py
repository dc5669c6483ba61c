"""Results of a replay as the replayer writes them, of answers that a test makes up."""

from collections.abc import Mapping
from typing import Any

import msgspec

from strandline.replay.encoding import encode_result
from strandline.replay.results import Attempt, Limits, Message, Outcome
from strandline.replay.retries import Verdict
from strandline.report.exchange import Exchange, read_exchange
from strandline.units import Nanos

START_US = 1_767_225_600_000_000
LIMITS = Limits()


def message(first_line: str, headers: Mapping[str, str], body: bytes) -> Message:
    """A message, whole."""
    lines = [first_line, *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return Message(head="\r\n".join(lines).encode("latin-1"), body=body)


def answer(status: int, body: Any, **headers: str) -> Message:
    """An answer with a body of JSON, or of bytes as they are. Names of headers have underscores for hyphens."""
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)
    default = {} if isinstance(body, bytes) else {"Content-Type": "application/json"}
    named = default | {name.replace("_", "-"): value for name, value in headers.items()}
    return message(f"HTTP/1.1 {status} Any", named, content)


def result(
    source: Message | None,
    target: Message | None,
    *,
    request: str = "GET /",
    body: bytes = b"",
    number: int = 0,
    connection: str = "c",
    at_us: int | None = None,
    late_us: int = 500,
    source_us: int = 10_000,
    target_us: int = 10_000,
    limits: Limits = LIMITS,
) -> bytes:
    """A result as it is in the topic: request `number` of the capture, sent `at_us` after the start."""
    asked = message(f"{request} HTTP/1.1", {"Host": "shop"}, body)
    due = START_US + (number * 1_000 if at_us is None else at_us)
    sent = due + late_us
    outcome = Outcome(
        partition=0,
        offset=number,
        ordinal=0,
        connection=connection,
        node="n",
        generation=1,
        records=[(0, number)],
        source_request=asked,
        source_response=source,
        source_complete=True,
        target_request=asked,
        attempts=[
            Attempt(
                response=target,
                sent=Nanos(sent * 1000),
                first_byte=None if target is None else Nanos(sent * 1000),
                end=Nanos((sent + target_us) * 1000),
                error="reset" if target is None else None,
            )
        ],
        source_time=Nanos((due - 86_400_000_000) * 1000),
        source_end=None if source is None else Nanos((due - 86_400_000_000 + source_us) * 1000),
        due=Nanos(due * 1000),
        verdict=Verdict.MATCH,
        same_body=None,
        error="reset" if target is None else None,
    )
    return encode_result(outcome, limits)


def exchange(source: Message | None, target: Message | None, **more: Any) -> Exchange:
    """The same as the comparison reads it."""
    return read_exchange(result(source, target, **more))
