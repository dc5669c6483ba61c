"""Whether to send a request again because the target answered otherwise than the source, and what to call the outcome.

The default: never after 200, 201, 401, 403 or 3xx. Otherwise again if the target answers 300 or above where the source
was below, or if either did not answer. A `_bulk` that both answer with 200 goes again if items failed at the
target only.
"""

import logging
import re
from enum import Enum
from typing import Any, Protocol

import msgspec

from strandline.core.retry import Backoff
from strandline.errors import MalformedBody, MalformedHead, OptionError
from strandline.replay.named import load_named
from strandline.units import Nanos
from strandline.wire.answers import Answer
from strandline.wire.body import unchunked, unpacked
from strandline.wire.head import Head, request_line

SETTLED = {200, 201, 401, 403}
ATTEMPTS = 4
BACKOFF = Backoff(first=Nanos(100_000_000), ceiling=Nanos(10_000_000_000), jitter=0)
# No policy of a user's sends a request for ever, or holds its connection for longer than this.
MOST_ATTEMPTS = 100
LONGEST_DELAY = Nanos(60_000_000_000)
MAX_BULK = 100 << 20
# The answer to a `_bulk` says first of all whether any item failed, so one that is cut says it too.
BULK_BEGIN = re.compile(rb'\s*\{(?:\s*"\w+"\s*:\s*\d+\s*,)*\s*"errors"\s*:\s*(true|false)')

log = logging.getLogger(__name__)


class RetryPolicy(Protocol):
    """Decides whether a request is sent again."""

    def needs_source(self, target: Answer | None, request: bytes) -> bool:
        """Whether the source's answer has a say. Until it is known, nothing more is sent on the connection."""
        ...

    def decide(self, attempt: int, source: Answer | None, target: Answer | None, request: bytes) -> Nanos | None:
        """How long to wait before the next attempt, or None to take the answer.

        `attempt` is the number of the one that was made (the first is 1), `request` the head that was sent.
        """
        ...


class DefaultRetry:
    """The rules at the top of this file."""

    def needs_source(self, target: Answer | None, request: bytes) -> bool:
        return target is not None and (not _is_settled(target) or (target.status == 200 and _is_bulk(request)))

    def decide(self, attempt: int, source: Answer | None, target: Answer | None, request: bytes) -> Nanos | None:
        if attempt >= ATTEMPTS or not _differs(source, target, request):
            return None
        return BACKOFF.delay(attempt, 0.0)


class UserRetry:
    """A policy of the user's, which may raise, never end or answer nonsense; then the answer is taken as it is."""

    def __init__(self, name: str, policy: Any) -> None:
        self._name = name
        self._policy = policy

    def needs_source(self, target: Answer | None, request: bytes) -> bool:  # noqa: ARG002
        return True

    def decide(self, attempt: int, source: Answer | None, target: Answer | None, request: bytes) -> Nanos | None:
        if attempt >= MOST_ATTEMPTS:
            return None
        try:
            delay = self._policy.decide(attempt, source, target, request)
            return None if delay is None else Nanos(min(max(int(delay), 0), LONGEST_DELAY))
        except (Exception, SystemExit) as error:
            log.exception("retry policy %s failed: %s", self._name, type(error).__name__)
            return None


def load_policy(name: str) -> UserRetry:
    """The policy of the user's by its name, `module:name`: an object with a method `decide`."""
    try:
        policy = load_named(name)
    except ValueError as error:
        raise OptionError(f"retry policy {error}") from error
    if isinstance(policy, type) or not callable(getattr(policy, "decide", None)):
        raise OptionError(f"retry policy '{name}' is no object with a method 'decide'")
    return UserRetry(name, policy)


class Verdict(Enum):
    """How the target's answer compares with the source's."""

    MATCH = "match"
    """The same status."""
    STATUS_DIFFERS = "status_differs"
    NO_SOURCE = "no_source"
    """The capture holds no answer."""
    NO_TARGET = "no_target"
    """The target gave no answer, whether or not the source did."""


def verdict(source: Answer | None, target: Answer | None) -> Verdict:
    """The verdict on the last attempt."""
    if target is None:
        return Verdict.NO_TARGET
    if source is None:
        return Verdict.NO_SOURCE
    return Verdict.MATCH if source.status == target.status else Verdict.STATUS_DIFFERS


def same_body(source: Answer | None, target: Answer | None) -> bool | None:
    """Whether both bodies are the same but for their chunks; None where it cannot be known."""
    if source is None or target is None or source.digest is not None or target.digest is not None:
        return None
    try:
        return _whole(source) == _whole(target)
    except (MalformedHead, MalformedBody):
        return None


def _whole(answer: Answer) -> bytes:
    # Most have no chunks, and to look for the word costs less than to read the head.
    return unchunked(Head(answer.head), answer.body) if b"chunked" in answer.head.lower() else answer.body


def _differs(source: Answer | None, target: Answer | None, request: bytes) -> bool:
    if target is None:
        return True
    if target.status == 200 and source is not None and source.status == 200 and _is_bulk(request):
        return _items_failed(source) is False and _items_failed(target) is True
    if _is_settled(target):
        return False
    return source is None or (target.status >= 300 and source.status < 300)


def _is_settled(target: Answer) -> bool:
    return target.status in SETTLED or 300 <= target.status < 400


def _is_bulk(request: bytes) -> bool:
    # Nearly every request is none, and to look for the word costs less than to read the line.
    if b"/_bulk" not in request:
        return False
    try:
        return request_line(request)[1].partition("?")[0].rstrip("/").endswith("/_bulk")
    except MalformedHead:
        return False


class _Bulk(msgspec.Struct):
    """As much as is needed of the answer to a `_bulk`."""

    errors: bool | None = None
    items: list[dict[str, dict[str, Any]]] = []


BULK = msgspec.json.Decoder(_Bulk)


def _items_failed(answer: Answer) -> bool | None:
    """Whether any item of a `_bulk` failed; None where it cannot be known."""
    if answer.cut:
        found = BULK_BEGIN.match(answer.body)
        return None if found is None else found[1] == b"true"
    head = Head(answer.head)
    try:
        bulk = BULK.decode(unpacked(head, unchunked(head, answer.body), limit=MAX_BULK))
    except (MalformedHead, MalformedBody, msgspec.DecodeError, RecursionError):
        return None
    if bulk.errors is not None:
        return bulk.errors
    return any("error" in result for item in bulk.items for result in item.values())
