"""Where HTTP/1 messages begin and end in a stream of bytes, without changing any.

A framer reads one message after another. `feed` takes bytes from a place on and tells up to where they belong to the
message that it is in; once that is `complete`, its `head` and what it told of the body stand until `next` begins the
message that follows. Bytes are looked at once, bodies not at all.

What is not HTTP/1 is a `FramingError`; a framer is of no use after one. Both sides of a connection that was upgraded
are `opaque` from then on: all that comes belongs to the last message.

The rules are those of RFC 9112, section 6.3, and these where it leaves a choice: a transfer coding that does not end in
chunked, two lengths that differ, and a length beside a transfer coding are errors in a request, since two readers may
take them for different requests; a response with both goes by its transfer coding.
"""

import re
from enum import Enum, auto

MAX_HEAD = 256 << 10
MAX_LINE = 16 << 10
"""Of a chunk's size with its extensions, and of a trailer."""

CR_LF = b"\r\n"
END_OF_HEAD = re.compile(rb"\n\r?\n")
FRAMING = re.compile(rb"\n(?:content-length|(transfer-encoding))[ \t]*:[ \t]*([^\r\n]*)", re.IGNORECASE)
REQUEST_LINE = re.compile(rb"([!#-'*+\-.^-z|~A-Z0-9]+) ([^ \r\n]+) HTTP/1\.[01]\r?\n")
STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-9][0-9][0-9])(?: [^\r\n]*)?\r?\n")
CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r?\n")


class FramingError(ValueError):
    """Bytes that are not an HTTP/1 message."""


class _At(Enum):
    HEAD = auto()
    LENGTH = auto()
    CHUNK_SIZE = auto()
    CHUNK = auto()
    CHUNK_END = auto()
    TRAILER = auto()
    UNTIL_CLOSE = auto()
    DONE = auto()


# Here and not by the name of their class, which costs as much as a call, several times for each message.
_HEAD, _LENGTH, _CHUNK_SIZE, _CHUNK, _CHUNK_END, _TRAILER, _UNTIL_CLOSE, _DONE = _At


class _Framer:
    """What requests and responses have in common: a head, then a body whose end the head tells."""

    __slots__ = (
        "_at",
        "_left",
        "_line",
        "body_at",
        "body_length",
        "complete",
        "head",
        "interim",
        "method",
        "opaque",
        "status",
    )

    def __init__(self, method: bytes = b"") -> None:
        self.opaque = False
        self.next(method)

    def next(self, method: bytes = b"") -> None:
        """Begin the next message; a response is one to a request of this method."""
        self._at = _UNTIL_CLOSE if self.opaque else _HEAD
        self._line = b""
        self._left = 0
        self.complete = False
        """Whether the message has ended."""
        self.head = b""
        self.body_length = 0
        self.body_at = 0
        """Where in the bytes last fed the body begins or goes on."""
        self.method = method
        self.status = self.interim = 0

    @property
    def has_begun(self) -> bool:
        """Whether there is anything of the message yet."""
        return self._at is not _HEAD or bool(self._line)

    @property
    def in_body(self) -> bool:
        """Whether the head is there and the message has not ended."""
        return self._at is not _HEAD and self._at is not _DONE

    def feed(self, data: bytes, start: int = 0) -> int:
        """Take bytes; up to where they belong to this message."""
        end = len(data)
        if self._at is _HEAD and not self._line and start < end and data[start] not in CR_LF:
            # Nearly every head lies in one piece, and most bodies with it.
            found = END_OF_HEAD.search(data, start)
            if found is not None and (stop := found.end()) - start <= MAX_HEAD:
                self.head = head = data[start:stop]
                self._begin_body(head)
                start = stop
                if self._at is _LENGTH and self._left <= end - start:
                    self.body_at = start
                    self.body_length = self._left
                    self._at = _DONE
                    self.complete = True
                    return start + self._left
        self.body_at = start
        while start < end:
            at = self._at
            if at is _DONE:
                break
            if at is _HEAD:
                self.body_at = start = self._read_head(data, start)
            elif at is _LENGTH or at is _CHUNK:
                size, left = end - start, self._left
                if left <= size:
                    size = left
                    self._at = _DONE if at is _LENGTH else _CHUNK_END
                self._left = left - size
                self.body_length += size
                start += size
            elif at is _UNTIL_CLOSE:
                self.body_length += end - start
                start = end
            else:
                start = self._read_line(data, start)
        self.complete = self._at is _DONE
        return start

    def end(self) -> bool:
        """No more bytes will come. Whether the message is complete by that, or was."""
        if self._at is _UNTIL_CLOSE:
            self._at = _DONE
            self.complete = True
        return self.complete

    def _read_head(self, data: bytes, start: int) -> int:
        if self._line:
            return self._read_rest_of_head(data, start)
        while data[start] in CR_LF:
            # Empty lines before a message count to it.
            start += 1
            if start == len(data):
                return start
        found = END_OF_HEAD.search(data, start)
        stop = found.end() if found is not None else len(data)
        if stop - start > MAX_HEAD:
            raise FramingError(f"a head of more than {MAX_HEAD:,} bytes")
        if found is None:
            self._line = data[start:]
            self._check_beginning(self._line)
        else:
            self.head = head = data[start:stop]
            self._begin_body(head)
        return stop

    def _read_rest_of_head(self, data: bytes, start: int) -> int:
        before = len(self._line)
        held = self._line + data[start:]
        # The empty line may lie across the border.
        found = END_OF_HEAD.search(held, max(0, before - 2))
        stop = found.end() if found is not None else len(held)
        if stop > MAX_HEAD:
            raise FramingError(f"a head of more than {MAX_HEAD:,} bytes")
        if found is None:
            self._line = held
            self._check_beginning(held)
        else:
            self.head, self._line = held[:stop], b""
            self._begin_body(self.head)
        return start + stop - before

    def _read_line(self, data: bytes, start: int) -> int:
        stop = data.find(b"\n", start) + 1
        if not stop:
            self._line += data[start:]
            if len(self._line) > MAX_LINE:
                raise FramingError(f"a line of more than {MAX_LINE:,} bytes in a chunked body")
            return len(data)
        line = self._line + data[start:stop]
        self._line = b""
        if len(line) > MAX_LINE:
            raise FramingError(f"a line of more than {MAX_LINE:,} bytes in a chunked body")
        is_empty = line in {b"\r\n", b"\n"}
        if self._at is _CHUNK_SIZE:
            size = CHUNK_SIZE.fullmatch(line)
            if size is None:
                raise FramingError("a chunk whose size cannot be read")
            self._left = int(size[1], 16)
            self._at = _CHUNK if self._left else _TRAILER
        elif self._at is _CHUNK_END:
            if not is_empty:
                raise FramingError("a chunk that is longer than its size")
            self._at = _CHUNK_SIZE
        elif is_empty:
            self._at = _DONE
        return stop

    def _begin_body(self, head: bytes) -> None:
        raise NotImplementedError

    def _check_beginning(self, begun: bytes) -> None:
        """Refuse early what can never become a head, so that garbage is not gathered."""
        raise NotImplementedError

    def _begin_framed(self, fields: list[tuple[bytes, bytes]]) -> bool:
        """Begin a body whose end the fields tell, each with its name if it is a coding. False if they do not."""
        is_coding, value = fields[0]
        if len(fields) > 1 or is_coding or not value.isdigit():
            codings = [value for is_coding, value in fields if is_coding]
            if codings:
                self._at = _CHUNK_SIZE
                return b",".join(codings).rpartition(b",")[2].strip().lower() == b"chunked"
            values = {length.strip() for _, value in fields for length in value.split(b",")}
            value = values.pop()
            if values or not value.isdigit():
                raise FramingError("a Content-Length that cannot be read")
        if len(value) > 18:
            raise FramingError("a Content-Length that cannot be read")
        self._left = int(value)
        self._at = _LENGTH if self._left else _DONE
        return True


class RequestFramer(_Framer):
    """Requests, one after another."""

    __slots__ = ()

    def _check_beginning(self, begun: bytes) -> None:
        if b"\n" in begun and REQUEST_LINE.match(begun) is None:
            raise FramingError("no HTTP/1 request line")

    def _begin_body(self, head: bytes) -> None:
        line = REQUEST_LINE.match(head)
        if line is None:
            raise FramingError("no HTTP/1 request line")
        self.method = line[1]
        fields = FRAMING.findall(head)
        if not fields:
            self._at = _DONE
        elif len(fields) > 1 and len({bool(is_coding) for is_coding, _ in fields}) > 1:
            raise FramingError("both a Content-Length and a Transfer-Encoding")
        elif not self._begin_framed(fields):
            raise FramingError("a Transfer-Encoding that does not end in chunked")


class ResponseFramer(_Framer):
    """Responses, one after another, each to a request of the given method. Interim ones (1xx) are passed over."""

    __slots__ = ()

    def _check_beginning(self, begun: bytes) -> None:
        if not begun.startswith(b"HTTP/1."[: len(begun)]) or (b"\n" in begun and STATUS_LINE.match(begun) is None):
            raise FramingError("no HTTP/1 status line")

    def _begin_body(self, head: bytes) -> None:
        line = STATUS_LINE.match(head)
        if line is None:
            raise FramingError("no HTTP/1 status line")
        status = int(line[1])
        if status < 200 and status != 101:
            self.interim += 1
            self.head = b""
            return
        self.status = status
        if status == 101 or (self.method == b"CONNECT" and 200 <= status < 300):
            self.opaque = True
            self._at = _DONE
        elif self.method == b"HEAD" or status in {204, 304}:
            self._at = _DONE
        else:
            fields = FRAMING.findall(head)
            if not fields or not self._begin_framed(fields):
                self._at = _UNTIL_CLOSE
