"""What is sent instead of what was captured: another Host always, and whatever a configuration asks for.

A request whose body no step changes goes out in the packets in which it came. One that a step cannot make fails alone.
"""

from typing import Protocol

from strandline.clock import Clock, SystemClock
from strandline.errors import MalformedBody, OptionError, StrandlineError, TransformFailed
from strandline.replay import steps
from strandline.replay.auth import build_auth
from strandline.replay.changes import TransformConfig
from strandline.replay.steps import FRAMING, Request
from strandline.wire.body import packed, unchunked, unpacked
from strandline.wire.head import Head, request_line, splice_host

MAX_REASON = 500


class BodySource(Protocol):
    """A captured body as it was on the wire, chunks included. It may be on disk, and is read only for a step."""

    @property
    def length(self) -> int:
        """How many bytes it has."""
        ...

    def read(self) -> bytes:
        """All of them."""
        ...


class Transform:
    """Makes the request to send from the one that was captured."""

    def __init__(self, host: str, config: TransformConfig | None = None, clock: Clock | None = None) -> None:
        config = config or TransformConfig()
        if not steps.HOST.fullmatch(host):
            raise OptionError(f"'{host}' is no host; write it like name or name:port")
        self._host = host.encode("latin-1")
        self._steps = [steps.build_step(step) for step in config.transforms]
        self._auth = build_auth(config.auth)
        self._max_body = config.max_body
        self._clock = clock or SystemClock()
        self._plain = not self._steps and self._auth is None
        self._edits_body = any(step.needs_body for step in self._steps)
        self.needs_body = self._edits_body or (self._auth is not None and self._auth.needs_body)
        """Whether any step must see the body. If not, no body is read."""
        self.is_timely = self._auth is not None and self._auth.is_timely
        """Whether what it makes is good for a while only, so that each attempt needs it anew."""

    def describe(self) -> list[str]:
        """What will be rewritten, a line each, without secrets."""
        proof = [] if self._auth is None else [self._auth.describe()]
        return [f"set host {self._host.decode('latin-1')}", *(step.describe() for step in self._steps), *proof]

    def apply(self, head: bytes, body: BodySource) -> tuple[bytes, bytes | None]:
        """The head and the body to send; None is the body as it was captured. Raises TransformFailed, nothing else."""
        doing = "set host"
        try:
            head = splice_host(head, self._host)
            if self._plain:
                return head, None
            doing = "read the request"
            captured = Head(head)
            unframed, content = self._read(captured, body)
            framing = _framing(captured)
            request = Request(*request_line(head)[:2], captured, content)
            for step in self._steps:
                doing = step.describe()
                made = step(request)
                request = _checked(request if made is None else made)
            doing = "write the request"
            changed = request.body != content or _framing(request.headers) != framing
            new = _frame(request) if changed else None
            edited = _first_line(request)
            if self._auth is not None:
                doing = self._auth.describe()
                edited = self._auth.apply(edited, unframed if new is None else new, self._clock.wall())
            return edited.to_bytes(), new
        # A function of the user's may raise anything, and may try to end the process.
        except (Exception, SystemExit) as error:
            reason = " ".join(str(error).split())[:MAX_REASON]
            known = isinstance(error, StrandlineError | ValueError)
            raise TransformFailed(doing, reason if known else f"{type(error).__name__}: {reason}") from error

    def pass_raw(self) -> None:
        """A request is not HTTP/1 and goes out as it was captured. Raises TransformFailed if anything is to be changed.

        What is removed from all others, a password perhaps, could be in it.
        """
        if not self._plain:
            raise TransformFailed("read the request", "it is not HTTP/1, or its head is too long")

    def _read(self, head: Head, body: BodySource) -> tuple[bytes, bytes]:
        """The body without chunks, and the same unpacked; empty where no step asks."""
        if not self.needs_body:
            return b"", b""
        if body.length > self._max_body:
            raise MalformedBody(f"the body has {body.length:,} bytes; 'max_body' is {self._max_body:,}")
        unframed = unchunked(head, body.read())
        return unframed, unpacked(head, unframed, limit=self._max_body) if self._edits_body else b""


def _framing(head: Head) -> list[list[str]]:
    return [head.all(name) for name in FRAMING]


def _checked(made: object) -> Request:
    """What a step gave, if it can be sent."""
    head, body = getattr(made, "headers", None), getattr(made, "body", None)
    if not (isinstance(made, Request) and isinstance(head, Head) and isinstance(body, bytes)):
        raise ValueError("it gave no Request with a Head and a body of bytes")
    return made


def _frame(request: Request) -> bytes:
    """The body as it is sent: in one piece, and as gzip if it was packed."""
    head, body = request.headers, request.body
    coding = head.get("Content-Encoding")
    if coding is not None and coding.lower() != "identity":
        body = packed(body)
        head.set("Content-Encoding", "gzip")
    head.remove("Transfer-Encoding")
    head.remove("Trailer")
    head.set("Content-Length", str(len(body)))
    return body


def _first_line(request: Request) -> Head:
    """The head for the method and target that the request has now."""
    if request_line(request.headers.first_line)[:2] == (request.method, request.target):
        return request.headers
    return request.headers.with_target(request.target, method=request.method)
