"""What passes on one connection, as records: where requests and responses end, what must be held, what is kept back.

Bytes are recorded as they pass, cut after each request so that its end stands right behind it. A side that is not
HTTP/1 is *opaque* from there on, and so are both after an upgrade: the records say so, and have the bytes without ends
of requests, or not at all where a redaction is asked for. A recording that has lost a record ends there, without a word
more under its id; the next one, under a new id, begins with the next request that finds no other unanswered.
"""

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum

from strandline.capture.redacted import RedactedMessages
from strandline.capture.redaction import Redaction
from strandline.units import Nanos
from strandline.wire.http1 import FramingError, RequestFramer, ResponseFramer
from strandline.wire.traffic import Recording

MUTATING = frozenset({b"POST", b"PUT", b"PATCH", b"DELETE"})
MOST_UNANSWERED = 10_000
"""More pipelined requests than anybody waits for; which answer belongs to which is not followed beyond it."""
OPAQUE = "opaque from here on: "
"""So begins the message that stands in the records where a side stops being followed; then why."""


class Reliable(Enum):
    """Which requests go on only once Kafka has them."""

    NONE = "none"
    MUTATING = "mutating"
    ALL = "all"

    def holds(self, method: bytes) -> bool:
        """Whether a request of that method is held back."""
        return self is Reliable.ALL or (self is Reliable.MUTATING and method in MUTATING)


class Recorder:
    """One connection's recording. Time is an argument; nothing here waits."""

    def __init__(
        self,
        node: str,
        new_id: Callable[[], str],
        reliable: Reliable = Reliable.NONE,
        redaction: Redaction | None = None,
    ) -> None:
        self._node = node
        self._new_id = new_id
        self._reliable = reliable
        self._redaction = redaction
        self._requests = RequestFramer()
        self._responses = ResponseFramer()
        self._unanswered: deque[bytes] = deque()
        self._is_announced = False
        self._recording: Recording | None = None
        self._read_redacted: RedactedMessages | None = None
        self._write_redacted: RedactedMessages | None = None
        self._opaque_requests = self._opaque_responses = False
        self._has_ended = False
        self.opaque: str | None = None
        """Why bytes are no longer followed, on either side."""
        self.requests = 0
        """How many requests were complete."""
        self.pending = 0
        """How many bytes were recorded and not taken, about."""

    @property
    def is_recording(self) -> bool:
        """Whether what comes is recorded."""
        return self._recording is not None

    @property
    def is_idle(self) -> bool:
        """Whether every request has been answered and none has begun, but for one that will never be whole."""
        is_answering = self._responses.has_begun and not self._responses.complete
        has_begun = self._requests.has_begun and not self._has_ended
        is_asked = len(self._unanswered) > (self._has_ended and self._is_announced)
        return not (self.opaque or is_asked or has_begun or is_answering)

    @property
    def is_in_held_request(self) -> bool:
        """Whether the body of a request comes whose end will be held back."""
        return self._requests.in_body and not self._opaque_requests and self._reliable.holds(self._requests.method)

    def connect(self, at: Nanos) -> None:
        """A client has connected, or is recorded again from here on."""
        self._recording = Recording(self._node, self._new_id())
        self._recording.connect(at)
        if self._redaction is not None:
            self._read_redacted, self._write_redacted = (RedactedMessages(self._redaction) for _ in range(2))

    def read(self, at: Nanos, data: bytes) -> Sequence[tuple[int, int]]:
        """Bytes came from the client; those places of them that end a request which must be held."""
        if self._recording is None and self.is_idle:
            self.connect(at)
        self.pending += len(data)
        requests = self._requests
        held: list[tuple[int, int]] = []
        start, end = 0, len(data)
        while start < end:
            if self._opaque_requests:
                self._record_opaque_read(at, data[start:])
                break
            try:
                stop = requests.feed(data, start)
            except FramingError as error:
                self._opaque_requests = True
                self._become_opaque(at, f"request: {error}")
                continue
            if requests.head and not self._is_announced:
                self._announce(at)
            self._record_read(at, data[start:stop])
            if requests.complete:
                if self._reliable.holds(requests.method):
                    held.append((start, stop))
                self._end_request(at)
            start = stop
        return held

    def write(self, at: Nanos, data: bytes) -> bool:
        """Bytes came from the upstream; whether a response ended in them."""
        self.pending += len(data)
        responses, unanswered = self._responses, self._unanswered
        has_ended = False
        start, end = 0, len(data)
        while start < end:
            if self._opaque_responses:
                if self._recording is not None and self._redaction is None:
                    self._recording.write(at, data[start:])
                break
            if responses.complete or not responses.has_begun:
                responses.next(unanswered[0] if unanswered else b"GET")
            try:
                stop = responses.feed(data, start)
            except FramingError as error:
                self._opaque_responses = True
                self._become_opaque(at, f"response: {error}")
                continue
            self._record_write(at, data[start:stop])
            if responses.complete:
                has_ended = True
                self._end_response(at)
            start = stop
        return has_ended

    def disconnect(self, at: Nanos) -> None:
        """The client sends no more."""
        self._has_ended = True
        self._cut_request(at)
        if self._recording is not None:
            self._recording.disconnect(at)

    def end_of_responses(self, at: Nanos) -> bool:
        """The upstream sends no more; whether that was the end of a response."""
        if self._opaque_responses or self._responses.complete or not self._responses.has_begun:
            return False
        has_ended = self._responses.end()
        if has_ended:
            self._end_response(at)
        else:
            self._cut_response(at)
        return has_ended

    def release(self, at: Nanos, *, timed_out: bool) -> None:
        """A request that was held back went on."""
        if self._recording is not None:
            self._recording.release(at, timed_out=timed_out)

    def fail(self, at: Nanos, problem: str) -> None:
        """Something went wrong with the connection."""
        if self._recording is not None:
            self._recording.fail(at, problem)

    def lose(self) -> None:
        """A record could not be had out: nothing that follows it may be."""
        self._recording = None
        self.pending = 0

    def take(self) -> tuple[str, list[bytes]]:
        """The id and the records of all that was seen since the last call."""
        self.pending = 0
        return ("", []) if self._recording is None else (self._recording.connection, self._recording.take())

    def close(self, at: Nanos) -> tuple[str, list[bytes]]:
        """The connection has ended; its id and its last records."""
        self._cut_request(at)
        self._cut_response(at)
        if self._recording is None:
            return "", []
        recording, self._recording = self._recording, None
        recording.close(at)
        return recording.connection, recording.take(last=True)

    def _announce(self, at: Nanos) -> None:
        # By now, and not at its end: it may be answered before.
        self._is_announced = True
        if not self._opaque_responses:
            self._unanswered.append(self._requests.method)
            if len(self._unanswered) > MOST_UNANSWERED:
                self._opaque_responses = True
                self._become_opaque(at, f"response: more than {MOST_UNANSWERED:,} requests unanswered")

    def _record_read(self, at: Nanos, data: bytes) -> None:
        if self._recording is None:
            return
        if self._read_redacted is not None:
            data = self._read_redacted.feed(data)
        if data:
            self._recording.read(at, data)

    def _end_request(self, at: Nanos) -> None:
        self.requests += 1
        recording = self._recording
        if recording is not None:
            head = self._requests.head
            if self._read_redacted is not None:
                rest = self._read_redacted.end()
                head = self._read_redacted.head
                if rest:
                    recording.read(at, rest)
            first_line = head.find(b"\n") + 1
            recording.end_of_request(at, first_line=first_line, headers=len(head) - first_line)
        self._requests.next()
        self._is_announced = False

    def _record_write(self, at: Nanos, data: bytes) -> None:
        if self._recording is None:
            return
        if self._write_redacted is not None:
            data = self._write_redacted.feed(data)
        if data:
            self._recording.write(at, data)

    def _end_response(self, at: Nanos) -> None:
        if self._unanswered:
            self._unanswered.popleft()
        if self._recording is not None and self._write_redacted is not None:
            rest = self._write_redacted.end()
            if rest:
                self._recording.write(at, rest)
        if self._responses.opaque:
            self._opaque_requests = self._opaque_responses = True
            self._become_opaque(at, "upgrade")

    def _become_opaque(self, at: Nanos, why: str) -> None:
        self.opaque = self.opaque or why
        if self._redaction is not None:
            # What cannot be followed cannot be redacted, nor can what it answers.
            self._opaque_requests = self._opaque_responses = True
        if self._opaque_requests:
            self._cut_request(at)
        if self._opaque_responses:
            self._unanswered.clear()
            self._cut_response(at)
        self.fail(at, OPAQUE + why)

    def _record_opaque_read(self, at: Nanos, data: bytes) -> None:
        if self._recording is not None and self._redaction is None:
            self._recording.read(at, data)

    def _cut_request(self, at: Nanos) -> None:
        if self._recording is not None and self._read_redacted is not None:
            rest = self._read_redacted.cut()
            if rest:
                self._recording.read(at, rest)

    def _cut_response(self, at: Nanos) -> None:
        if self._recording is not None and self._write_redacted is not None:
            rest = self._write_redacted.cut()
            if rest:
                self._recording.write(at, rest)
