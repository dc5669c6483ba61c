"""The form of an event: an envelope like Debezium's, or flat. Both hold the same facts.

    {"op": "u", "before": {...}, "after": {...}, "unchanged": ["photo"],
     "source": {"db": "shop", "schema": "public", "table": "orders", "lsn": "16/B374D848", "xid": 771,
                "ts": "2026-11-16T09:17:43.123456+00:00", "ordinal": 3}, "ts": "2026-11-16T09:17:43.123456+00:00"}

    {"__op": "u", "__db": "shop", "__schema": "public", "__table": "orders", "__lsn": "16/B374D848", "__xid": 771,
     "__ts": "2026-11-16T09:17:43.123456+00:00", "__ordinal": 3, "__unchanged": ["photo"], "__before": {...},
     "id": 17, "total": "9.50"}

- Both `ts` are when the transaction was committed: a clock of ours would make another event of the same change when it
  is read again. Of a row that a snapshot read it is when the snapshot was taken, and `xid` is null.
- `op` is c (insert), u, d, t (truncate), m (logical message), r (read by a snapshot), begin or commit.
- `unchanged`, where there are any, names the columns that were not sent (TOAST), and that the new row does not have.
- `json_null`, where there are any, names the columns of the new row that hold json's `null` and not SQL's, and
  `json_null_before` those of the old row.
- A flat event holds the new row's columns, or the old row's of a delete; `__before` is there where an update tells what
  was before. A column that begins with `__`, or is called `leadership` (which the sink adds to every event) with any
  number of `_` in front, gets one more `_` in front.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final, TypeAlias

from msgspec import Struct

from strandline.wire.pgoutput import lsn_text
from strandline.wire.pgtext import string

NEW_ROWS: Final = ("c", "r")
UNIX_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class EventFormat(Struct, frozen=True, kw_only=True):
    """What events look like. Another choice of `split_key_changes` gives other ordinals."""

    database: str
    flat: bool = False
    split_key_changes: bool = False
    """Tell an update that changes the key as a delete of the old key and an insert of the new."""
    key_template: str | None = None
    full_keys: Mapping[str, Sequence[str]] = MappingProxyType({})
    """What rows of tables with replica identity FULL are known by: column names by table, such as `public.orders`."""


class Event(Struct, frozen=True, gc=False):
    """One event, with what a row of the source holds beside its transaction's facts."""

    ordinal: int
    op: str
    schema: str
    table: str
    partition_key: str
    event: bytes


class Stamp(Struct, frozen=True):
    """What all events of a transaction share, made once."""

    lsn: int
    xid: int | None
    committed: int | None
    head: bytes
    """Its facts as JSON, up to the ordinal."""
    tail: bytes
    """What follows the ordinal."""


class Envelope:
    """What was before, what is after, and where it comes from."""

    def __init__(self, database: str, schema: str, table: str) -> None:
        place = b'"schema":%b,"table":%b,' % (quoted(schema), quoted(table)) if table else b""
        self._source = b',"source":{"db":%b,%b' % (quoted(database), place)
        inserted = b'{"op":"%b","before":null,"after":{%%b}%b%%b%%d%%b'
        self._inserted = {op: inserted % (op.encode(), self._source.replace(b"%", b"%%")) for op in NEW_ROWS}

    @staticmethod
    def stamp(lsn: int, xid: int | None, committed: int | None) -> Stamp:
        """The facts of a transaction; a message outside any has neither id nor time."""
        moment = _moment(committed)
        head = b'"lsn":"%b","xid":%b,"ts":%b,"ordinal":' % (lsn_text(lsn).encode(), _number(xid), moment)
        return Stamp(lsn, xid, committed, head, b'},"ts":%b}' % moment)

    @staticmethod
    def column(name: str) -> str:
        """What a column is called: its own name, for the columns have an object to themselves."""
        return name

    @staticmethod
    def note(name: bytes, value: bytes) -> bytes:
        """A fact that not every event has."""
        return b',"%b":%b' % (name, value)

    def row(
        self,
        op: bytes,
        stamp: Stamp,
        ordinal: int,
        before: bytes | None,
        after: bytes | None,
        *,
        notes: bytes = b"",
    ) -> bytes:
        """The event of a row, of the members of the old and the new one's object."""
        return b'{"op":"%b","before":%b,"after":%b%b%b%b%d%b' % (
            op,
            b"null" if before is None else b"{%b}" % before,
            b"null" if after is None else b"{%b}" % after,
            notes,
            self._source,
            stamp.head,
            ordinal,
            stamp.tail,
        )

    def inserted(self, op: str, stamp: Stamp, ordinal: int, after: bytes) -> bytes:
        """The event of a new row, which most are: what all of them share is laid out beforehand."""
        return self._inserted[op] % (after, stamp.head, ordinal, stamp.tail)

    def other(self, op: bytes, stamp: Stamp, ordinal: int, notes: bytes = b"") -> bytes:
        """The event of anything else."""
        return b'{"op":"%b"%b%b%b%d%b' % (op, notes, self._source, stamp.head, ordinal, stamp.tail)


class Flat:
    """The columns of the row beside the facts."""

    def __init__(self, database: str, schema: str, table: str) -> None:
        place = b'"__schema":%b,"__table":%b,' % (quoted(schema), quoted(table)) if table else b""
        self._source = b'"__db":%b,%b' % (quoted(database), place)

    @staticmethod
    def stamp(lsn: int, xid: int | None, committed: int | None) -> Stamp:
        """The facts of a transaction; a message outside any has neither id nor time."""
        facts = (lsn_text(lsn).encode(), _number(xid), _moment(committed))
        return Stamp(lsn, xid, committed, b'"__lsn":"%b","__xid":%b,"__ts":%b,"__ordinal":' % facts, b"")

    @staticmethod
    def column(name: str) -> str:
        """What a column is called: never as a fact is, and no two alike."""
        ours = name.startswith("__") or name.lstrip("_") == "leadership"
        return f"_{name}" if ours else name

    @staticmethod
    def note(name: bytes, value: bytes) -> bytes:
        """A fact that not every event has."""
        return b',"__%b":%b' % (name, value)

    def row(
        self,
        op: bytes,
        stamp: Stamp,
        ordinal: int,
        before: bytes | None,
        after: bytes | None,
        *,
        notes: bytes = b"",
    ) -> bytes:
        """The event of a row, of the members of the old and the new one's object."""
        if after is None:
            after = before
        elif before is not None:
            notes += b',"__before":{%b}' % before
        members = b"," + after if after else b""
        return b'{"__op":"%b",%b%b%d%b%b}' % (op, self._source, stamp.head, ordinal, notes, members)

    def inserted(self, op: str, stamp: Stamp, ordinal: int, after: bytes) -> bytes:
        """The event of a new row."""
        return self.row(op.encode(), stamp, ordinal, None, after)

    def other(self, op: bytes, stamp: Stamp, ordinal: int, notes: bytes = b"") -> bytes:
        """The event of anything else."""
        return b'{"__op":"%b",%b%b%d%b}' % (op, self._source, stamp.head, ordinal, notes)


Form: TypeAlias = Envelope | Flat


def form_of(chosen: EventFormat, schema: str = "", table: str = "") -> Form:
    """The form that was chosen, for the events of a table or of none."""
    return (Flat if chosen.flat else Envelope)(chosen.database, schema, table)


def quoted(name: str) -> bytes:
    """A name as JSON."""
    return string(name.encode())


def listed(names: Sequence[str]) -> bytes:
    """Names as JSON."""
    return b"[%b]" % b",".join(map(quoted, names))


def _number(number: int | None) -> bytes:
    return b"null" if number is None else b"%d" % number


def _moment(committed: int | None) -> bytes:
    if committed is None:
        return b"null"
    moment = UNIX_EPOCH + timedelta(microseconds=committed)
    return b'"%b"' % moment.isoformat(timespec="microseconds").encode()
