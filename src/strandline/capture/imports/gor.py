"""GoReplay's files: requests and responses as they were on the wire, each in a block of its own.

A block is a line `TYPE ID TIME [LATENCY]`, times in nanoseconds, then the bytes; a line of three monkeys ends it. Type
1 is a request, 2 the response to it, 3 a response to its replay, which is left out.

GoReplay does not tell connections apart: every request has one of its own, with its id and a number as the name. It is
closed by its response. A request that none comes for is closed when `PATIENCE` has passed in the file, or at the end.
"""

import re
from collections.abc import Iterator

from strandline.capture.imports.items import Broken, Item, LeftOut, Readable, parse_all
from strandline.units import Nanos
from strandline.wire.http1 import FramingError, RequestFramer
from strandline.wire.traffic import Recording

SEPARATOR = "\n🐵🙈🙉\n".encode()
HEADER = re.compile(rb"([123]) ([0-9A-Za-z_-]{1,128}) (\d{1,19})(?: (-?\d{1,19}))?\r?")
MOST_BLOCK = 64 << 20
READ = 1 << 20
PATIENCE = Nanos(300_000_000_000)
MOST_OPEN = 20_000
"""So many requests may wait for their responses; beyond that the oldest is given up."""
MOST_TIME = 2**62
"""A time beyond this is none: a Timestamp of Kafka and ours end there."""


class Gor:
    """Several files as one: a response may be in the file after that of its request."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._requests = 0
        self._open: dict[bytes, tuple[Nanos, Recording]] = {}

    def read(self, file: Readable) -> Iterator[Item]:
        """What a file holds."""
        for number, block in enumerate(blocks(file), start=1):
            if block is None:
                yield Broken(f"block {number}", f"is larger than {MOST_BLOCK:,} bytes")
            else:
                yield from self._take(f"block {number}", block)

    def end(self) -> Iterator[Item]:
        """What is still open when all files have been read."""
        while self._open:
            yield from self._give_up()

    def _take(self, place: str, block: bytes) -> Iterator[Item]:
        first, newline, payload = block.partition(b"\n")
        header = HEADER.fullmatch(first)
        if header is None or not newline or int(header[3]) > MOST_TIME:
            yield Broken(place, "does not begin with a line such as '1 ID TIME'")
        elif header[1] == b"1":
            yield from self._request(place, header[2], Nanos(int(header[3])), payload)
        elif header[1] == b"2":
            yield from self._response(header[2], Nanos(int(header[3])), int(header[4] or 0), payload)
        else:
            yield LeftOut("response to a replay")

    def _request(self, place: str, id_: bytes, at: Nanos, payload: bytes) -> Iterator[Item]:
        if id_ in self._open:
            yield Broken(place, f"request '{id_.decode()}' comes twice")
            return
        self._requests += 1
        recording = Recording(self._node, f"{id_.decode()}-{self._requests}")
        recording.connect(at)
        try:
            _record_requests(recording, at, payload)
        except FramingError as error:
            yield Broken(place, f"request '{id_.decode()}': {error}")
            return
        yield from parse_all(recording.take())
        self._open[id_] = (at, recording)
        while len(self._open) > MOST_OPEN or next(iter(self._open.values()))[0] < at - PATIENCE:
            yield from self._give_up()

    def _response(self, id_: bytes, at: Nanos, latency: int, payload: bytes) -> Iterator[Item]:
        if id_ not in self._open:
            yield LeftOut("response without its request")
            return
        asked, recording = self._open.pop(id_)
        if at <= asked:
            # Older files have here how long the response took.
            at = Nanos(asked + (max(latency, 0) or (at if at < PATIENCE else 0)))
        recording.write(at, payload)
        recording.close(at)
        yield from parse_all(recording.take(last=True))

    def _give_up(self) -> Iterator[Item]:
        id_ = next(iter(self._open))
        asked, recording = self._open.pop(id_)
        recording.close(asked)
        yield from parse_all(recording.take(last=True))
        yield LeftOut("response that the file does not have")


def _record_requests(recording: Recording, at: Nanos, payload: bytes) -> None:
    """A block has one request, or several that came at once."""
    framer = RequestFramer()
    begin = 0
    while begin < len(payload) or not begin:
        end = framer.feed(payload, begin)
        if not framer.complete:
            raise FramingError("it is not complete")
        if not payload[end:].strip(b"\r\n"):
            end = len(payload)
        recording.read(at, payload[begin:end])
        first_line = framer.head.find(b"\n") + 1
        recording.end_of_request(at, first_line=first_line, headers=len(framer.head) - first_line)
        framer.next()
        begin = end


def blocks(file: Readable) -> Iterator[bytes | None]:
    """The blocks of a file; None for one that is too large."""
    held = bytearray()
    searched = 0
    is_too_large = False
    while piece := file.read(READ):
        held += piece
        begin = 0
        while (end := held.find(SEPARATOR, max(begin, searched))) >= 0:
            yield None if is_too_large else bytes(held[begin:end])
            begin, is_too_large = end + len(SEPARATOR), False
        del held[:begin]
        if len(held) > MOST_BLOCK:
            is_too_large = True
            del held[: -len(SEPARATOR)]
        searched = max(0, len(held) - len(SEPARATOR) + 1)
    if is_too_large or held.strip():
        yield None if is_too_large else bytes(held)
