"""The messages of one side of a connection, as redaction lets them be recorded.

Bodies that hold no JSON to look into go on as they come, chunked ones in chunks of our own, since trailers are redacted
too. All others are gathered, up to a bound, and recorded at the end of the message: as they were where nothing in them
is named, else with their new length; what cannot be looked into is left out, and a header says why.
"""

from enum import Enum, auto

from strandline.capture.redaction import CannotLookInto, Redaction, values_of, with_length
from strandline.wire.http1 import END_OF_HEAD, FRAMING, MAX_HEAD, STATUS_LINE
from strandline.wire.redaction_mark import mark_line


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
            out = self.head = self._redaction.marked_head(self._original)
        self._begin()
        return out

    def _read_head(self, data: bytes) -> tuple[bytes, bytes]:
        """What may be recorded of it, and what follows the head."""
        out = b""
        raw = self._raw
        # Empty lines before a message are not recorded, or they would gather here without end.
        seen = len(raw)
        raw += data if seen else data.lstrip(b"\r\n")
        # The empty line may lie across the border.
        while (found := END_OF_HEAD.search(raw, max(0, seen - 2))) is not None:
            head = bytes(raw[: found.end()])
            del raw[: found.end()]
            status = STATUS_LINE.match(head)
            if status is None or not 100 <= int(status[1]) < 200 or status[1] == b"101":
                rest = bytes(raw)
                raw.clear()
                return out + self._begin_body(head), rest
            out += self._redaction.head(head)
            while raw.startswith((b"\r", b"\n")):
                del raw[:1]
            seen = 0
        return out, b""

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
        self.head = self._redaction.marked_head(head)
        return self.head

    def _gather(self, payload: bytes) -> None:
        if self._left_out is None:
            self._raw += payload
            if len(self._raw) > self._redaction.max_body:
                self._left_out = "too large"
                self._raw.clear()

    def _gathered(self) -> bytes:
        self.head = self._redaction.marked_head(self._original)
        if not self._has_body:
            return self.head
        body, fields = b"", set[str]()
        if self._left_out is None and self._raw:
            try:
                body, fields = self._redaction.body(bytes(self._raw))
            except CannotLookInto as error:
                self._left_out = str(error)
        is_changed = self._left_out is not None or body != self._raw
        if is_changed or self._chunks is not None or not values_of(self._original, b"content-length"):
            told = fields if STATUS_LINE.match(self._original) else ()
            mark = mark_line(left_out=self._left_out, fields=told)
            self.head = with_length(self.head, len(body), mark, is_changed=is_changed)
        return self.head + body


class Chunks:
    """What a chunked body holds. Its framing has been checked by a framer.

    Trailers of more bytes than a head may have are left out, all of them: the last of them would be cut.
    """

    def __init__(self) -> None:
        self._line = b""
        self._left = 0
        self._is_after_chunk = False
        self._is_last = False
        self._trailers = bytearray()
        self._are_trailers_left_out = False

    @property
    def trailers(self) -> bytes:
        """The fields after the last chunk, without the empty line that ends them."""
        return bytes(self._trailers)

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
            self._take_trailer(line)
        else:
            self._left = int(line.partition(b";")[0], 16)
            self._is_last = not self._left

    def _take_trailer(self, line: bytes) -> None:
        if self._are_trailers_left_out or not line.strip():
            return
        self._trailers += line
        if len(self._trailers) > MAX_HEAD:
            self._are_trailers_left_out = True
            self._trailers.clear()
