"""HTTP transactions as rows of Arrow: the columns of `http_traffic`.

Names of headers are in lower case, and each has all its values in the order in which they came: a map has a name once.
A line that is no field is left out. A body is without the framing of chunks, and packed as it was; what is too long is
cut and has the SHA-256 of the whole body as it was on the wire, and always its length there.
"""

import re
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from strandline.units import Nanos
from strandline.wire.answers import Answer
from strandline.wire.body import chunks_undone
from strandline.wire.head import NAME
from strandline.wire.http1 import REQUEST_LINE
from strandline.wire.kept import Parts
from strandline.wire.transactions import Transaction

TIME = pa.timestamp("us", tz="UTC")
HEADERS = pa.map_(pa.string(), pa.list_(pa.field("element", pa.string())))
BODY = [
    pa.field("headers", HEADERS),
    pa.field("body", pa.binary()),
    pa.field("body_bytes", pa.int64()),
    pa.field("body_sha256", pa.string()),
    pa.field("bytes", pa.int64()),
    pa.field("first_byte", TIME),
    pa.field("last_byte", TIME),
]
REQUEST = pa.struct([("method", pa.string()), ("path", pa.string()), ("query", pa.string()), *BODY])
RESPONSE = pa.struct([("status", pa.int32()), *BODY])
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("node", pa.string()),
        ("connection", pa.string()),
        ("index", pa.int64()),
        ("request", REQUEST),
        ("response", RESPONSE),
        ("status", pa.int32()),
        ("duration_ms", pa.float64()),
        ("completeness", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("ordinal", pa.int32()),
        ("records", pa.list_(pa.field("element", pa.int64()))),
    ]
)

COMPLETE: Final = "complete"
RESPONSE_INCOMPLETE: Final = "response_incomplete"
"""Also where a response is not HTTP/1, so that nobody can tell where it ends."""
NO_RESPONSE: Final = "no_response"
REQUEST_INCOMPLETE: Final = "request_incomplete"

CHUNKED = re.compile(rb"\ntransfer-encoding[ \t]*:[^\r\n]*chunked", re.IGNORECASE)
FOLDED = re.compile(rb"\r?\n[ \t]+")
MOST_LINES_KNOWN = 20_000
LONGEST_LINE_KNOWN = 200
ROW_BYTES = 1_000
"""What a row takes beside its bodies and headers, about."""

Field = tuple[str, str]


class Fields:
    """Reads heads. The same lines come again and again, so what came before is known."""

    def __init__(self) -> None:
        self._known: dict[bytes, Field | None] = {}

    def of(self, head: bytes) -> dict[str, list[str]]:
        """The values of each field of a head, by its name in lower case."""
        if b"\n " in head or b"\n\t" in head:
            head = FOLDED.sub(b" ", head)
        known = self._known
        found: dict[str, list[str]] = {}
        for line in head.split(b"\n")[1:-2]:
            field = known[line] if line in known else self._read(line)
            if field is not None:
                name, value = field
                if name in found:
                    found[name].append(value)
                else:
                    found[name] = [value]
        return found

    def _read(self, line: bytes) -> Field | None:
        name, colon, value = line.partition(b":")
        field = None
        if colon and NAME.fullmatch(name):
            field = (name.decode("latin-1").lower(), value.strip(b" \t\r").decode("latin-1"))
        if len(line) <= LONGEST_LINE_KNOWN:
            if len(self._known) >= MOST_LINES_KNOWN:
                self._known.clear()
            self._known[line] = field
        return field


class Message(NamedTuple):
    """A request or a response, and what is known of it."""

    head: bytes
    body: bytes
    length: int
    """Of the whole body."""
    digest: str | None
    size: int
    """Of all of it."""
    began: Nanos
    ended: Nanos


NOTHING = Message(b"", b"", 0, None, 0, Nanos(0), Nanos(0))
"""Stands where the column is null."""


class Rows:
    """Takes transactions; gives them as a batch."""

    def __init__(self, topic: str) -> None:
        self.nbytes = 0
        """What the batch takes, about."""
        self._topic = topic
        self._fields = Fields()
        self._transactions: list[Transaction] = []
        self._indexes: list[int] = []
        self._requests: list[Message] = []

    def __len__(self) -> int:
        return len(self._transactions)

    def add(self, transaction: Transaction, parts: Parts, size: int, index: int) -> None:
        """One more row."""
        self._transactions.append(transaction)
        self._indexes.append(index)
        self._requests.append(Message(*parts, size, transaction.began, transaction.ended))
        answer = transaction.answer
        self.nbytes += ROW_BYTES + len(parts.head) + len(parts.body) + (0 if answer is None else answer.kept)

    def take(self) -> pa.RecordBatch:
        """The rows so far; it has none after that."""
        rows, indexes, requests = self._transactions, self._indexes, self._requests
        self._transactions, self._indexes, self._requests, self.nbytes = [], [], [], 0
        answers = [row.answer for row in rows]
        records = [row.record for row in rows]
        statuses = pa.array([answer.status or None if answer else None for answer in answers], pa.int32())
        columns = [
            pa.array([row.id for row in rows], pa.string()),
            pa.array([row.key[0] for row in rows], pa.string()),
            pa.array([row.key[1] for row in rows], pa.string()),
            pa.array(indexes, pa.int64()),
            pa.StructArray.from_arrays([*_first_lines(requests), *self._messages(requests)], fields=list(REQUEST)),
            pa.StructArray.from_arrays(
                [statuses, *self._messages([_message(answer) for answer in answers])],
                fields=list(RESPONSE),
                mask=pa.array([answer is None for answer in answers], pa.bool_()),
            ),
            statuses,
            pa.array([(row.answer.ended - row.began) / 1e6 if row.answer else None for row in rows], pa.float64()),
            pa.array([_completeness(row) for row in rows], pa.string()),
            pa.repeat(pa.scalar(self._topic), len(rows)),
            pa.array([record.partition for record in records], pa.int32()),
            pa.array([record.offset for record in records], pa.int64()),
            pa.array([row.ordinal for row in rows], pa.int32()),
            pa.array([[record.offset for record in row.records] for row in rows], SCHEMA.field("records").type),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def _messages(self, messages: list[Message]) -> list[pa.Array]:
        """In the order of `BODY`."""
        bodies = [
            chunks_undone(message.body) if message.body and CHUNKED.search(message.head) else message.body
            for message in messages
        ]
        return [
            self._headers(messages),
            pa.array(bodies, pa.binary()),
            pa.array([message.length for message in messages], pa.int64()),
            pa.array([message.digest for message in messages], pa.string()),
            pa.array([message.size for message in messages], pa.int64()),
            _times([message.began for message in messages]),
            _times([message.ended for message in messages]),
        ]

    def _headers(self, messages: list[Message]) -> pa.Array:
        names: list[str] = []
        name_ends = [0]
        values: list[str] = []
        value_ends = [0]
        for message in messages:
            fields = self._fields.of(message.head)
            names.extend(fields)
            for found in fields.values():
                values.extend(found)
                value_ends.append(len(values))
            name_ends.append(len(names))
        lists = pa.ListArray.from_arrays(
            pa.array(value_ends, pa.int32()), pa.array(values, pa.string()), type=HEADERS.item_type
        )
        return pa.MapArray.from_arrays(
            pa.array(name_ends, pa.int32()), pa.array(names, pa.string()), lists, type=HEADERS
        )


def _first_lines(requests: list[Message]) -> list[pa.Array]:
    """Methods, paths and queries; null where it is not HTTP/1."""
    lines = [REQUEST_LINE.match(request.head) for request in requests]
    targets = [line[2].partition(b"?") if line else (None, b"", None) for line in lines]
    return [
        _text([line[1] if line else None for line in lines]),
        _text([path for path, _, _ in targets]),
        _text([query if mark else None for _, mark, query in targets]),
    ]


def _message(answer: Answer | None) -> Message:
    if answer is None:
        return NOTHING
    size = len(answer.head) + answer.length
    return Message(answer.head, answer.body, answer.length, answer.digest, size, answer.began, answer.ended)


def _completeness(transaction: Transaction) -> str:
    if not transaction.is_complete:
        return REQUEST_INCOMPLETE
    if transaction.answer is None:
        return NO_RESPONSE
    return COMPLETE if transaction.answer.complete else RESPONSE_INCOMPLETE


def _times(nanos: list[Nanos]) -> pa.Array:
    return pa.array(np.array(nanos, dtype=np.int64) // 1000).view(TIME)


def _text(column: list[bytes | None]) -> pa.Array:
    """Latin-1, as HTTP has it: nearly always ASCII, which is UTF-8 as it is."""
    if all(item is None or item.isascii() for item in column):
        return pa.array(column, pa.binary()).view(pa.string())
    return pa.array([None if item is None else item.decode("latin-1") for item in column], pa.string())
