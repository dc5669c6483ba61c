"""The messages of one side of a connection, as redaction lets them be recorded.

Bodies that hold no JSON to look into go on as they come, chunked ones in chunks of our own, since trailers are redacted
too. All others are gathered, up to a bound, and recorded at the end of the message with their new length; what cannot
be looked into is left out, and a header says why.
"""

from enum import Enum, auto

from strandline.capture.redaction import CannotLookInto, Redaction, values_of, with_length
from strandline.wire.http1 import END_OF_HEAD, FRAMING, STATUS_LINE


class _As(Enum):
    HEAD = auto()
    IT_COMES = auto()
    CHUNKS = auto()
    GATHERED = auto()


class RedactedMessages:
    """One message after another. To be fed with what a framer has found to belong to one."""

    def __init__(self, redaction: Redaction) -> None:
        self._redaction = redaction
        self.head = b""
        self._begin()

    def _begin(self) -> None:
        self._as = _As.HEAD
        self._raw = bytearray()
        self._original = b""
        self._chunks: Chunks | None = None
        self._left_out: str | None = None
        self._has_body = False

    def feed(self, data: bytes) -> bytes:
        """Take bytes of the message; what may be recorded by now."""
        out = b""
        if self._as is _As.HEAD:
            out, data = self._read_head(data)
        if not data:
            return out
        self._has_body = True
        payload = data if self._chunks is None else self._chunks.feed(data)
        match self._as:
            case _As.IT_COMES:
                return out + payload
            case _As.CHUNKS:
                return out + (b"%x\r\n%b\r\n" % (len(payload), payload) if payload else b"")
            case _:
                self._gather(payload)
                return out

    def end(self) -> bytes:
        """The message is complete; what of it was not recorded yet. The next one begins."""
        out = b""
        if self._as is _As.CHUNKS and self._chunks is not None:
            out = b"0\r\n%b\r\n" % self._redaction.trailers(self._chunks.trailers)
        elif self._as is _As.GATHERED:
            out = self._gathered()
        self._begin()
        return out

    def cut(self) -> bytes:
        """The message will never be complete: its head, where it has one that was not recorded yet, and no body."""
        out = b""
        if self._as is _As.GATHERED:
            out = self.head = self._redaction.head(self._original)
        self._begin()
        return out

    def _read_head(self, data: bytes) -> tuple[bytes, bytes]:
        """What may be recorded of it, and what follows the head."""
        out = b""
        self._raw += data
        while True:
            raw = bytes(self._raw).lstrip(b"\r\n")
            found = END_OF_HEAD.search(raw)
            if found is None:
                return out, b""
            head, rest = raw[: found.end()], raw[found.end() :]
            self._raw = bytearray(rest)
            status = STATUS_LINE.match(head)
            if status is None or not 100 <= int(status[1]) < 200 or status[1] == b"101":
                self._raw.clear()
                return out + self._begin_body(head), rest
            out += self._redaction.head(head)

    def _begin_body(self, head: bytes) -> bytes:
        # As the framer sees it, which has cut the message: another reading would take bytes for what they are not.
        codings = b",".join(value for coding, value in FRAMING.findall(head) if coding).lower().split(b",")
        is_chunked = codings[-1].strip() == b"chunked"
        self._chunks = Chunks() if is_chunked else None
        if self._redaction.looks_into(values_of(head, b"content-type")):
            self._as = _As.GATHERED
            self._original = head
            packed = [*values_of(head, b"content-encoding"), *values_of(head, b"transfer-encoding")]
            if any(value.lower() not in {b"", b"identity", b"chunked"} for value in packed):
                self._left_out = "compressed"
            return b""
        self._as = _As.CHUNKS if is_chunked else _As.IT_COMES
        self.head = self._redaction.head(head)
        return self.head

    def _gather(self, payload: bytes) -> None:
        if self._left_out is None:
            self._raw += payload
            if len(self._raw) > self._redaction.max_body:
                self._left_out = "too large"
                self._raw.clear()

    def _gathered(self) -> bytes:
        head = self._redaction.head(self._original)
        if not self._has_body:
            self.head = head
            return head
        body = b""
        if self._left_out is None and self._raw:
            try:
                body = self._redaction.body(bytes(self._raw))
            except CannotLookInto as error:
                self._left_out = str(error)
        self.head = with_length(head, len(body), self._left_out)
        return self.head + body


class Chunks:
    """What a chunked body holds. Its framing has been checked by a framer."""

    def __init__(self) -> None:
        self._line = b""
        self._left = 0
        self._is_after_chunk = False
        self._is_last = False
        self.trailers = b""

    def feed(self, data: bytes) -> bytes:
        """Take bytes; the content in them."""
        content = bytearray()
        start = 0
        while start < len(data):
            if self._left:
                piece = data[start : start + self._left]
                content += piece
                self._left -= len(piece)
                self._is_after_chunk = not self._left
                start += len(piece)
                continue
            stop = data.find(b"\n", start) + 1 or len(data)
            self._line += data[start:stop]
            start = stop
            if self._line.endswith(b"\n"):
                line, self._line = self._line, b""
                self._take(line)
        return bytes(content)

    def _take(self, line: bytes) -> None:
        if self._is_after_chunk:
            self._is_after_chunk = False
        elif self._is_last:
            self.trailers += line if line.strip() else b""
        else:
            self._left = int(line.partition(b";")[0], 16)
            self._is_last = not self._left
