"""Writes messages of pgoutput, plainly: what the decoder is measured by. Follows the published format by field."""

import struct

from hypothesis import strategies as st

from strandline.wire.pgoutput import (
    EARLIEST,
    EPOCH,
    LATEST,
    UNCHANGED,
    Begin,
    Column,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    OldKey,
    OldRow,
    Origin,
    Relation,
    ReplicaIdentity,
    Row,
    StreamAbort,
    StreamCommit,
    StreamStart,
    StreamStop,
    Truncate,
    Type,
    Update,
    Value,
)


def number(value: int, size: int) -> bytes:
    return value.to_bytes(size, "big", signed=value < 0)


def moment(unix: int) -> bytes:
    return struct.pack(">q", unix - EPOCH)


def name(text: str) -> bytes:
    return text.encode() + b"\0"


def schema(text: str) -> bytes:
    return name("" if text == "pg_catalog" else text)


def value(given: Value) -> bytes:
    if given is None:
        return b"n"
    if given is UNCHANGED:
        return b"u"
    return b"t" + number(len(given), 4) + given


def row(given: Row) -> bytes:
    return number(len(given), 2) + b"".join(map(value, given))


def old(given: OldKey | OldRow) -> bytes:
    return (b"K" if isinstance(given, OldKey) else b"O") + row(given.row)


def column(given: Column) -> bytes:
    return number(given.key, 1) + name(given.name) + number(given.type, 4) + struct.pack(">i", given.modifier)


def encoded(message: Message) -> bytes:  # noqa: PLR0911
    """The frame of a message."""
    match message:
        case Begin():
            return b"B" + number(message.lsn, 8) + moment(message.committed) + number(message.xid, 4)
        case Commit():
            return b"C\0" + number(message.lsn, 8) + number(message.end, 8) + moment(message.committed)
        case Origin():
            return b"O" + number(message.lsn, 8) + name(message.name)
        case StreamStart():
            return b"S" + number(message.xid, 4) + number(message.first, 1)
        case StreamStop():
            return b"E"
        case StreamCommit():
            ends = number(message.lsn, 8) + number(message.end, 8) + moment(message.committed)
            return b"c" + number(message.xid, 4) + b"\0" + ends
        case StreamAbort():
            return b"A" + number(message.xid, 4) + number(message.subxid, 4)
        case _:
            kind, fields = change(message)
            return kind + (b"" if message.xid is None else number(message.xid, 4)) + fields


def change(  # noqa: PLR0911
    message: Relation | Type | Insert | Update | Delete | Truncate | LogicalMessage,
) -> tuple[bytes, bytes]:
    """The kind of a message that may stand in a stream, and what follows the id that it then has."""
    match message:
        case Relation():
            head = number(message.oid, 4) + schema(message.schema) + name(message.name)
            columns = number(len(message.columns), 2) + b"".join(map(column, message.columns))
            return b"R", head + message.identity.value.encode() + columns
        case Type():
            return b"Y", number(message.oid, 4) + schema(message.schema) + name(message.name)
        case Insert():
            return b"I", number(message.relation, 4) + b"N" + row(message.new)
        case Update():
            before = b"" if message.old is None else old(message.old)
            return b"U", number(message.relation, 4) + before + b"N" + row(message.new)
        case Delete():
            return b"D", number(message.relation, 4) + old(message.old)
        case Truncate():
            flags = message.cascade | message.restart_identity << 1
            oids = b"".join(number(oid, 4) for oid in message.relations)
            return b"T", number(len(message.relations), 4) + number(flags, 1) + oids
        case LogicalMessage():
            head = number(message.transactional, 1) + number(message.lsn, 8) + name(message.prefix)
            return b"M", head + number(len(message.content), 4) + message.content


LSNS = st.integers(0, 2**64 - 1)
IDS = st.integers(0, 2**32 - 1)
MOMENTS = st.integers(EARLIEST, LATEST)
NAMES = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=12)
SCHEMAS = NAMES.filter(bool)
VALUES = st.none() | st.just(UNCHANGED) | st.binary(max_size=20)
ROWS = st.lists(VALUES, max_size=6)
OLD = st.builds(OldKey, ROWS) | st.builds(OldRow, ROWS)
COLUMNS = st.builds(Column, NAMES, IDS, st.integers(-(2**31), 2**31 - 1), st.booleans())


def changes(xid: st.SearchStrategy[int | None]) -> st.SearchStrategy[Message]:
    """Messages that may stand in a stream, with the id of their transaction or without."""
    columns = st.lists(COLUMNS, max_size=5).map(tuple)
    return st.one_of(
        st.builds(Relation, IDS, SCHEMAS, NAMES, st.sampled_from(ReplicaIdentity), columns, xid),
        st.builds(Type, IDS, SCHEMAS, NAMES, xid),
        st.builds(Insert, IDS, ROWS, xid),
        st.builds(Update, IDS, st.none() | OLD, ROWS, xid),
        st.builds(Delete, IDS, OLD, xid),
        st.builds(Truncate, st.lists(IDS, max_size=5).map(tuple), st.booleans(), st.booleans(), xid),
        st.builds(LogicalMessage, st.booleans(), LSNS, NAMES, st.binary(max_size=30), xid),
    )


ORIGINS = st.builds(Origin, LSNS, NAMES)
OUTSIDE: st.SearchStrategy[Message] = st.one_of(
    changes(st.none()),
    ORIGINS,
    st.builds(Begin, LSNS, MOMENTS, IDS),
    st.builds(Commit, LSNS, LSNS, MOMENTS),
    st.builds(StreamStart, IDS, st.booleans()),
    st.builds(StreamCommit, IDS, LSNS, LSNS, MOMENTS),
    st.builds(StreamAbort, IDS, IDS),
)
INSIDE: st.SearchStrategy[Message] = st.one_of(changes(IDS), ORIGINS, st.just(StreamStop()))
