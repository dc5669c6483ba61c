"""Whether to send a request again because the target answered otherwise than the source, and what to call the outcome.

The default: never after 200, 201, 401, 403 or 3xx. Otherwise again if the target answers 300 or above where the source
was below, or if either did not answer. A `_bulk` that both answer with 200 goes again if items failed at the
target only.
"""

import logging
from enum import StrEnum
from typing import Any, Protocol

from strandline.core.retry import Backoff
from strandline.errors import MalformedBody, MalformedHead, OptionError
from strandline.replay.bulk import items_failed
from strandline.replay.named import load_named
from strandline.units import Nanos
from strandline.wire.answers import Answer
from strandline.wire.body import unchunked
from strandline.wire.head import Head, request_line
from strandline.wire.redaction_mark import has_other_body

SETTLED = {200, 201, 401, 403}
ATTEMPTS = 4
BACKOFF = Backoff(first=Nanos(100_000_000), ceiling=Nanos(10_000_000_000), jitter=0)
# No policy of a user's sends a request for ever, or holds its connection for longer than this.
MOST_ATTEMPTS = 100
LONGEST_DELAY = Nanos(60_000_000_000)
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


class Verdict(StrEnum):
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
    """Whether both bodies are the same but for their chunks; None where it cannot be known, after redaction too."""
    if source is None or target is None or source.digest is not None or target.digest is not None:
        return None
    if source.head == target.head and source.body == target.body:
        return True
    if has_other_body(source.head):
        return None
    try:
        return _whole(source) == _whole(target)
    except (MalformedHead, MalformedBody):
        return None


def _whole(answer: Answer) -> bytes:
    # Most have no chunks, and to look for the word costs less than to read the head.
    # (`find` and not `in`, which takes a word for a number first, and makes an error of it.)
    is_chunked = answer.head.lower().find(b"chunked") >= 0
    return unchunked(Head(answer.head), answer.body) if is_chunked else answer.body


def _differs(source: Answer | None, target: Answer | None, request: bytes) -> bool:
    if target is None:
        return True
    if target.status == 200 and source is not None and source.status == 200 and _is_bulk(request):
        return items_failed(source) is False and items_failed(target) is True
    if _is_settled(target):
        return False
    return source is None or (target.status >= 300 and source.status < 300)


def _is_settled(target: Answer) -> bool:
    return target.status in SETTLED or 300 <= target.status < 400


def _is_bulk(request: bytes) -> bool:
    # Nearly every request is none, and to look for the word costs less than to read the line.
    if request.find(b"/_bulk") < 0:
        return False
    try:
        return request_line(request)[1].partition("?")[0].rstrip("/").endswith("/_bulk")
    except MalformedHead:
        return False
