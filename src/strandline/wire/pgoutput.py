"""One message of Postgres' logical replication (pgoutput, protocol 1 and 2), from its bytes.

Rules:
- What is read is exactly the frame: one that ends early, goes on behind its last field or holds what the protocol does
  not know is refused with `MalformedChange`. No size in a frame is believed beyond the frame's own end.
- Between Stream Start and Stream Stop every change begins with the id of its (sub)transaction, and outside it does not.
  Nothing in a frame tells the two apart, so the caller says which it is; a message in the wrong place is refused.
- Values are the text that Postgres sent, in bytes, uninterpreted. Values in binary form, two-phase commit and what
  protocol 3 and 4 add are refused by name: we never ask for them.
- Names are UTF-8. One that is not, as a database in SQL_ASCII may hold, is refused: leave that table out.
"""

import struct
from collections.abc import Callable
from enum import Enum
from typing import Final, TypeAlias

from msgspec import Struct

from strandline.errors import MalformedChange

EPOCH: Final = 946_684_800_000_000
"""Where Postgres counts time from, the year 2000, in microseconds of Unix."""
# The years 1 to 9999: what Python and Arrow can both say.
EARLIEST, LATEST = -62_135_596_800_000_000, 253_402_300_799_999_999


class Unchanged(Enum):
    """The one value that is not sent: large, stored apart (TOAST), and as it was before the update."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED

Value: TypeAlias = bytes | Unchanged | None
"""A column's text, the mark of one that did not change, or SQL's null."""
Row: TypeAlias = list[Value]
"""A value for each column of the relation, in its order."""


class ReplicaIdentity(Enum):
    """What Postgres tells of the old row of an update or a delete."""

    DEFAULT = "d"
    NOTHING = "n"
    FULL = "f"
    INDEX = "i"


class Begin(Struct, frozen=True):
    """A transaction begins: its commit LSN, when it was committed (microseconds of Unix), its id."""

    lsn: int
    committed: int
    xid: int


class Commit(Struct, frozen=True):
    """The transaction ends; `end` is what may be acknowledged."""

    lsn: int
    end: int
    committed: int


class Origin(Struct, frozen=True):
    """The transaction was replicated to this server from another one."""

    lsn: int
    name: str


class Column(Struct, frozen=True):
    """A column of a relation. `key` says that it is part of the replica identity: all are, where that is FULL."""

    name: str
    type: int
    modifier: int
    key: bool


class Relation(Struct, frozen=True):
    """A table as it is from here on."""

    oid: int
    schema: str
    name: str
    identity: ReplicaIdentity
    columns: tuple[Column, ...]
    xid: int | None = None


class Type(Struct, frozen=True):
    """The name of a type that is not built in. Postgres names a domain, under its own OID, by its base type."""

    oid: int
    schema: str
    name: str
    xid: int | None = None


class Insert(Struct, frozen=True, gc=False):
    """A new row."""

    relation: int
    new: Row
    xid: int | None = None


class OldKey(Struct, frozen=True):
    """The old row's replica identity; every other column is null and says nothing."""

    row: Row


class OldRow(Struct, frozen=True):
    """The whole old row (replica identity FULL)."""

    row: Row


class Update(Struct, frozen=True, gc=False):
    """A changed row. Of the old one there is nothing while its key stays as it is, except with identity FULL."""

    relation: int
    old: OldKey | OldRow | None
    new: Row
    xid: int | None = None


class Delete(Struct, frozen=True, gc=False):
    """A row that is gone."""

    relation: int
    old: OldKey | OldRow
    xid: int | None = None


class Truncate(Struct, frozen=True):
    """Tables that were emptied together."""

    relations: tuple[int, ...]
    cascade: bool
    restart_identity: bool
    xid: int | None = None


class LogicalMessage(Struct, frozen=True):
    """What `pg_logical_emit_message` wrote. One that is not transactional stands for itself, at its own LSN."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes
    xid: int | None = None


class StreamStart(Struct, frozen=True):
    """Changes of a transaction still in progress follow, up to Stream Stop."""

    xid: int
    first: bool


class StreamStop(Struct, frozen=True):
    """The end of what Stream Start began."""


class StreamCommit(Struct, frozen=True):
    """A streamed transaction was committed."""

    xid: int
    lsn: int
    end: int
    committed: int


class StreamAbort(Struct, frozen=True):
    """A streamed transaction, or one of its subtransactions (then the two ids differ), was rolled back."""

    xid: int
    subxid: int


Change: TypeAlias = Insert | Update | Delete
Message: TypeAlias = (
    Begin | Commit | Origin | Relation | Type | Change | Truncate | LogicalMessage
    | StreamStart | StreamStop | StreamCommit | StreamAbort
)  # fmt: skip

_SHORT: Final = struct.Struct(">H").unpack_from
_INT: Final = struct.Struct(">I").unpack_from
_COLUMN: Final = struct.Struct(">Ii").unpack_from
_BEGIN: Final = struct.Struct(">xQqI")
_COMMIT: Final = struct.Struct(">xxQQq")
_ORIGIN: Final = struct.Struct(">xQ")
_MESSAGE: Final = struct.Struct(">BQ").unpack_from
_TRUNCATE: Final = struct.Struct(">IB").unpack_from
_STREAM_START: Final = struct.Struct(">xIB")
_STREAM_COMMIT: Final = struct.Struct(">xIxQQq")
_STREAM_ABORT: Final = struct.Struct(">xII")
_TEXT, _NULL, _SAME, _BINARY = b"tnub"
_NEW, _KEY, _OLD = b"NKO"


def lsn_text(lsn: int) -> str:
    """An LSN as Postgres writes it, such as 16/B374D848."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def decode(frame: bytes, *, streaming: bool) -> Message:
    """The message in a frame that stands between Stream Start and Stream Stop (`streaming`) or elsewhere."""
    kind = frame[:1]
    try:
        change = _CHANGES.get(kind)
        if change is not None:
            message, end = change(frame, 5, _INT(frame, 1)[0]) if streaming else change(frame, 1, None)
        else:
            control = (_INSIDE if streaming else _OUTSIDE).get(kind)
            if control is None:
                raise _refused(kind, streaming=streaming)
            message, end = control(frame)
    except (IndexError, struct.error):
        raise MalformedChange(f"{_NAMES[kind]} ends early, after {len(frame)} bytes") from None
    if end != len(frame):
        how = "ends early" if end > len(frame) else "goes on"
        raise MalformedChange(f"{_NAMES[kind]} {how}: it needs {end} bytes and has {len(frame)}")
    return message


# What follows reads a message and says where it ends; `decode` holds that against the frame.


def _insert(frame: bytes, at: int, xid: int | None) -> tuple[Insert, int]:
    if frame[at + 4] != _NEW:
        raise MalformedChange(f"Insert has no new row: {frame[at + 4 : at + 5]!r} stands in its place")
    row, end = _row(frame, at + 5)
    return Insert(_INT(frame, at)[0], row, xid), end


def _update(frame: bytes, at: int, xid: int | None) -> tuple[Update, int]:
    old: OldKey | OldRow | None = None
    (relation,) = _INT(frame, at)
    part, at = frame[at + 4], at + 5
    if part in {_KEY, _OLD}:
        row, at = _row(frame, at)
        old = OldKey(row) if part == _KEY else OldRow(row)
        part, at = frame[at], at + 1
    if part != _NEW:
        raise MalformedChange(f"Update has no new row: {bytes([part])!r} stands in its place")
    new, end = _row(frame, at)
    return Update(relation, old, new, xid), end


def _delete(frame: bytes, at: int, xid: int | None) -> tuple[Delete, int]:
    part = frame[at + 4]
    if part not in {_KEY, _OLD}:
        raise MalformedChange(f"Delete has no old row: {bytes([part])!r} stands in its place")
    row, end = _row(frame, at + 5)
    return Delete(_INT(frame, at)[0], OldKey(row) if part == _KEY else OldRow(row), xid), end


def _row(frame: bytes, at: int) -> tuple[Row, int]:
    row: Row = []
    add = row.append
    (count,) = _SHORT(frame, at)
    at += 2
    for _ in range(count):
        kind = frame[at]
        if kind == _TEXT:
            start = at + 5
            (size,) = _INT(frame, at + 1)
            at = start + size
            add(frame[start:at])
        elif kind == _NULL:
            at += 1
            row.append(None)
        elif kind == _SAME:
            at += 1
            row.append(UNCHANGED)
        elif kind == _BINARY:
            raise MalformedChange(
                f"column {len(row) + 1} of a row is in binary form; replicate without option 'binary'"
            )
        else:
            raise MalformedChange(f"column {len(row) + 1} of a row is of the unknown kind {bytes([kind])!r}")
    return row, at


def _relation(frame: bytes, at: int, xid: int | None) -> tuple[Relation, int]:
    (oid,) = _INT(frame, at)
    schema, at = _name(frame, at + 4)
    name, at = _name(frame, at)
    identity = _IDENTITIES.get(frame[at])
    if identity is None:
        raise MalformedChange(f"Relation {schema}.{name} has the unknown replica identity {frame[at : at + 1]!r}")
    (count,) = _SHORT(frame, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        flags = frame[at]
        column, at = _name(frame, at + 1)
        kind, modifier = _COLUMN(frame, at)
        at += 8
        columns.append(Column(column, kind, modifier, bool(flags & 1)))
    return Relation(oid, schema or "pg_catalog", name, identity, tuple(columns), xid), at


def _type(frame: bytes, at: int, xid: int | None) -> tuple[Type, int]:
    (oid,) = _INT(frame, at)
    schema, at = _name(frame, at + 4)
    name, end = _name(frame, at)
    return Type(oid, schema or "pg_catalog", name, xid), end


def _truncate(frame: bytes, at: int, xid: int | None) -> tuple[Truncate, int]:
    count, flags = _TRUNCATE(frame, at)
    end = at + 5 + 4 * count
    relations = tuple(_INT(frame, place)[0] for place in range(at + 5, end, 4))
    return Truncate(relations, bool(flags & 1), bool(flags & 2), xid), end


def _message(frame: bytes, at: int, xid: int | None) -> tuple[LogicalMessage, int]:
    flags, lsn = _MESSAGE(frame, at)
    prefix, at = _name(frame, at + 9)
    end = at + 4 + _INT(frame, at)[0]
    return LogicalMessage(bool(flags & 1), lsn, prefix, frame[at + 4 : end], xid), end


def _begin(frame: bytes) -> tuple[Begin, int]:
    lsn, committed, xid = _BEGIN.unpack_from(frame)
    return Begin(lsn, _unix(committed), xid), _BEGIN.size


def _commit(frame: bytes) -> tuple[Commit, int]:
    lsn, end, committed = _COMMIT.unpack_from(frame)
    return Commit(lsn, end, _unix(committed)), _COMMIT.size


def _origin(frame: bytes) -> tuple[Origin, int]:
    (lsn,) = _ORIGIN.unpack_from(frame)
    name, end = _name(frame, _ORIGIN.size)
    return Origin(lsn, name), end


def _stream_start(frame: bytes) -> tuple[StreamStart, int]:
    xid, first = _STREAM_START.unpack_from(frame)
    return StreamStart(xid, bool(first)), _STREAM_START.size


def _stream_stop(_frame: bytes) -> tuple[StreamStop, int]:
    return StreamStop(), 1


def _stream_commit(frame: bytes) -> tuple[StreamCommit, int]:
    xid, lsn, end, committed = _STREAM_COMMIT.unpack_from(frame)
    return StreamCommit(xid, lsn, end, _unix(committed)), _STREAM_COMMIT.size


def _stream_abort(frame: bytes) -> tuple[StreamAbort, int]:
    if len(frame) == _STREAM_ABORT.size + 16:
        raise MalformedChange("Stream Abort is one of protocol 4; replicate without streaming 'parallel'")
    xid, subxid = _STREAM_ABORT.unpack_from(frame)
    return StreamAbort(xid, subxid), _STREAM_ABORT.size


def _name(frame: bytes, at: int) -> tuple[str, int]:
    end = frame.find(0, at)
    if end < 0:
        raise IndexError
    try:
        return frame[at:end].decode(), end + 1
    except UnicodeDecodeError:
        problem = (
            f"a name in {_NAMES[frame[:1]]} is not UTF-8: {frame[at:end]!r}; leave its table out of the publication"
        )
        raise MalformedChange(problem) from None


def _unix(committed: int) -> int:
    moment = committed + EPOCH
    if not EARLIEST <= moment <= LATEST:
        raise MalformedChange(f"a commit time of {committed} microseconds is out of range")
    return moment


def _refused(kind: bytes, *, streaming: bool) -> MalformedChange:
    if kind in _TWO_PHASE:
        return MalformedChange(f"{_TWO_PHASE[kind]} belongs to two-phase commit; replicate without option 'two_phase'")
    if kind in _NAMES:
        return MalformedChange(f"{_NAMES[kind]} stands {'inside' if streaming else 'outside'} a streamed transaction")
    return MalformedChange(f"no message begins with {kind!r}" if kind else "a message is empty")


_IDENTITIES: Final = {ord(identity.value): identity for identity in ReplicaIdentity}
_CHANGES: Final[dict[bytes, Callable[[bytes, int, int | None], tuple[Message, int]]]] = {
    b"I": _insert, b"U": _update, b"D": _delete,
    b"R": _relation, b"Y": _type, b"T": _truncate, b"M": _message,
}  # fmt: skip
# An origin is told once a stream, and carries no id.
_INSIDE: Final[dict[bytes, Callable[[bytes], tuple[Message, int]]]] = {b"O": _origin, b"E": _stream_stop}
_OUTSIDE: Final[dict[bytes, Callable[[bytes], tuple[Message, int]]]] = {
    b"B": _begin, b"C": _commit, b"O": _origin,
    b"S": _stream_start, b"c": _stream_commit, b"A": _stream_abort,
}  # fmt: skip
_NAMES: Final = {
    b"B": "Begin", b"C": "Commit", b"O": "Origin", b"R": "Relation", b"Y": "Type", b"I": "Insert", b"U": "Update",
    b"D": "Delete", b"T": "Truncate", b"M": "Message", b"S": "Stream Start", b"E": "Stream Stop",
    b"c": "Stream Commit", b"A": "Stream Abort",
}  # fmt: skip
_TWO_PHASE: Final = {
    b"b": "Begin Prepare", b"P": "Prepare", b"K": "Commit Prepared", b"r": "Rollback Prepared", b"p": "Stream Prepare",
}  # fmt: skip
