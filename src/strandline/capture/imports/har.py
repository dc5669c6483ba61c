"""HAR files (HTTP Archive 1.2) of browsers and proxies, as connections.

Entries with the same `connection` and server address were on one connection; where a HAR names none, those of one page
and host are taken together. A connection of HTTP/1.1 carries one exchange at a time, so entries that overlap, as those
of HTTP/2 do, go to further connections, as many as are needed.

A request is read when `blocked`, `dns` and `connect` have passed since the entry's start; the head of its response is
written after `send` and `wait`, the body after `receive`. A connection is closed with the last byte of its last
response.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlsplit

import msgspec

from strandline.capture.imports.items import Broken, Item, LeftOut, Readable, Unreadable, parse_all
from strandline.capture.imports.messages import Request, Response, lacks_body, request_bytes, response_bytes
from strandline.json_decode import MalformedJson, decode
from strandline.units import Nanos, nanos
from strandline.wire.traffic import Recording

MOST_BYTES = 512 << 20
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Nobody waits longer for a response.
LONGEST_MS = 86_400_000.0
SCHEMES = {"http", "https", "ws", "wss"}
NOT_SENT = "entry that was not sent over HTTP"


class _Timings(msgspec.Struct):
    """Milliseconds; -1 for what did not take place."""

    blocked: float | None = None
    dns: float | None = None
    connect: float | None = None
    send: float | None = None
    wait: float | None = None
    receive: float | None = None


class _Entry(msgspec.Struct, rename="camel"):
    started_date_time: str
    request: Request
    response: Response
    time: float | None = None
    timings: _Timings | None = None
    connection: str | int | None = None
    server: str | None = msgspec.field(default=None, name="serverIPAddress")
    pageref: str | None = None
    from_cache: object = msgspec.field(default=None, name="_fromCache")


class _Log(msgspec.Struct):
    entries: list[msgspec.Raw]


class _Har(msgspec.Struct):
    log: _Log


HAR = msgspec.json.Decoder(_Har)
ENTRY = msgspec.json.Decoder(_Entry)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Exchange:
    group: tuple[object, ...]
    asked: Nanos
    sent: Nanos
    answered: Nanos
    ended: Nanos
    request: bytes
    head: bytes
    body: bytes


@dataclass
class _Lane:
    """A connection, and how many exchanges are to come on it."""

    recording: Recording
    free: Nanos
    left: int = 0


@dataclass(frozen=True, slots=True)
class _Planned:
    """An entry, with its exchange left to be built again when its turn comes: all bodies at once would be much."""

    asked: Nanos
    ended: Nanos
    group: tuple[object, ...]
    raw: msgspec.Raw


def read_har(file: Readable, node: str, name: str) -> Iterator[Item]:
    """The exchanges of a file by their time; what is broken comes before all else."""
    text = file.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        yield Broken("", f"is larger than {MOST_BYTES:,} bytes; save fewer entries at a time")
        return
    try:
        har = decode(text.removeprefix(b"\xef\xbb\xbf"), HAR)
    except MalformedJson as error:
        yield Broken("", f"is not a HAR: {error}")
        return
    entries = []
    for number, raw in enumerate(har.log.entries, start=1):
        try:
            entry = _decode(raw)
            exchange = None if _was_not_sent(entry) else _exchange(entry)
        except Unreadable as error:
            yield Broken(f"entry {number}", str(error))
            continue
        if exchange is None:
            yield LeftOut(NOT_SENT)
            continue
        if lacks_body(entry.response, entry.request.method):
            yield LeftOut("response body that the HAR does not have")
        entries.append(_Planned(exchange.asked, exchange.ended, exchange.group, raw))
    entries.sort(key=lambda entry: entry.asked)
    yield from _record(entries, node, name)


def _record(entries: list[_Planned], node: str, name: str) -> Iterator[Item]:
    groups: dict[tuple[object, ...], list[_Lane]] = defaultdict(list)
    lanes = []
    count = 0
    for entry in entries:
        group = groups[entry.group]
        lane = next((lane for lane in group if lane.free <= entry.asked), None)
        if lane is None:
            count += 1
            lane = _Lane(Recording(node, f"{name}-{count}"), entry.ended)
            group.append(lane)
        lane.free = entry.ended
        lane.left += 1
        lanes.append(lane)
    begun: set[str] = set()
    for entry, lane in zip(entries, lanes, strict=True):
        exchange = _exchange(_decode(entry.raw))
        recording = lane.recording
        if recording.connection not in begun:
            begun.add(recording.connection)
            recording.connect(exchange.asked)
        line, head = exchange.request.find(b"\n") + 1, exchange.request.find(b"\r\n\r\n") + 4
        recording.read(exchange.asked, exchange.request)
        recording.end_of_request(exchange.sent, first_line=line, headers=head - line)
        if exchange.head:
            recording.write(exchange.answered, exchange.head)
        if exchange.body:
            recording.write(exchange.ended, exchange.body)
        lane.left -= 1
        if not lane.left:
            recording.close(exchange.ended)
        yield from parse_all(recording.take(last=not lane.left))


def _decode(raw: msgspec.Raw) -> _Entry:
    try:
        return decode(raw, ENTRY)
    except MalformedJson as error:
        raise Unreadable(f"is not an entry of a HAR: {error}") from None


def _was_not_sent(entry: _Entry) -> bool:
    return bool(entry.from_cache) or entry.request.url.partition(":")[0].lower() not in SCHEMES


def _exchange(entry: _Entry) -> _Exchange:
    try:
        url = urlsplit(entry.request.url)
    except ValueError as error:
        raise Unreadable(f"its URL cannot be read: {error}") from None
    request = request_bytes(entry.request, url)
    # What was broken off, or never answered, has a status of 0.
    head, body = response_bytes(entry.response, entry.request.method) if entry.response.status else (b"", b"")
    start = _time(entry.started_date_time)
    timings = entry.timings or _Timings()
    before, send = _span(timings.blocked, timings.dns, timings.connect), _span(timings.send)
    wait, receive = _span(timings.wait), _span(timings.receive)
    if entry.timings is None:
        receive = _span(entry.time)
    asked = start + before
    if entry.connection is None or entry.connection == "":
        group: tuple[object, ...] = (entry.pageref, url.scheme, url.netloc)
    else:
        group = (str(entry.connection), entry.server)
    return _Exchange(
        group=group,
        asked=Nanos(asked),
        sent=Nanos(asked + send),
        answered=Nanos(asked + send + wait),
        ended=Nanos(asked + send + wait + receive),
        request=request,
        head=head,
        body=body,
    )


def _time(text: str) -> Nanos:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise Unreadable(f"startedDateTime {text!r} is no time") from None
    if time.tzinfo is None:
        raise Unreadable(f"startedDateTime {text!r} has no time zone")
    if time < EPOCH:
        raise Unreadable(f"startedDateTime {text!r} is before 1970")
    return nanos(time - EPOCH)


def _span(*milliseconds: float | None) -> int:
    """Whole nanoseconds; what did not take place takes none."""
    return sum(int(min(value, LONGEST_MS) * 1_000_000) for value in milliseconds if value is not None and value > 0)
