"""The rows of one chunk of a snapshot, read in a session of its own, as the rows that every sink takes.

The session sees the database as the snapshot's holder does. The table is locked as every reader locks it, while the
chunk is read. One that was rewritten since the snapshot (VACUUM FULL, CLUSTER, TRUNCATE, many an ALTER TABLE) is
refused, for its rows lie elsewhere, or cannot be seen by the snapshot any more: it has to be read under another one.
"""

import select
import time
from collections.abc import Iterator
from typing import Final

import psycopg
import pyarrow as pa
from msgspec import Struct

from strandline.cdc.assembly import OVERHEAD, Part
from strandline.cdc.published import Chunk
from strandline.cdc.rows import rows
from strandline.cdc.session import Session, one_line, wait
from strandline.core.chunks import ordinal
from strandline.errors import (
    CannotReplicate,
    ConnectionLost,
    PostgresError,
    PostgresRefused,
    PostgresUnreachable,
    SnapshotLost,
)
from strandline.wire.change import Events
from strandline.wire.copytext import copied
from strandline.wire.event import Event, EventFormat

SILENCE: Final = 120.0
"""For the next rows: a condition of the publication may pass over all of a chunk."""
LOCK_WITHIN: Final = "30s"
BATCH_ROWS: Final = 2_000
BATCH_BYTES: Final = 4 << 20
# Rows are wanted in the order in which they lie, and all of them: a policy that would hide some is an error.
PLAN: Final = {
    "enable_seqscan": "off",
    "enable_indexscan": "off",
    "enable_indexonlyscan": "off",
    "enable_bitmapscan": "off",
    "max_parallel_workers_per_gather": "0",
    "synchronize_seqscans": "off",
    "row_security": "off",
    "lock_timeout": LOCK_WITHIN,
}
WHERE: Final = "select to_regclass($1)::oid::bigint, pg_relation_filenode(to_regclass($1))::bigint"
DENIED, ROW_SECURITY = "42501", "row-level security"
# A table, a column or a schema that is no longer there, or has another name.
GONE: Final = {"42P01", "42703", "3F000"}


class View(Struct, frozen=True, kw_only=True):
    """A snapshot, for whoever reads a part of it."""

    snapshot: str
    """For SET TRANSACTION SNAPSHOT."""
    point: int
    """The LSN at which the database was so: the first part of every row's id."""
    taken: int
    """When, in microseconds of Unix."""
    database: str


def read_chunk(dsn: str, view: View, chunk: Chunk, form: EventFormat) -> Iterator[pa.RecordBatch]:
    """All rows of a chunk, in the order in which they lie."""
    events = Events(form)
    relation = chunk.table.relation
    for named in chunk.table.types:
        events.learn(named)
    events.learn(relation)
    table, stamp = events.table(relation.oid), events.stamp(view.point, None, view.taken)
    before = chunk.span.before
    found: list[Event] = []
    size = 0
    with Session(dsn) as session:
        join(session, view.snapshot)
        _enter(session, chunk)
        for line in _lines(session, chunk):
            place, *row = copied(line)
            event = table.inserted(row, stamp, ordinal(before, place), "r")  # type: ignore[arg-type]
            found.append(event)
            size += len(event.event) + len(event.partition_key) + OVERHEAD
            if len(found) >= BATCH_ROWS or size >= BATCH_BYTES:
                yield rows([Part(stamp, found)])
                found, size = [], 0
        if found:
            yield rows([Part(stamp, found)])


def join(session: Session, snapshot: str) -> None:
    """Begin a transaction that sees what the snapshot saw."""
    if session.version >= 17:
        session.query("select set_config('transaction_timeout', '0', false)")
    session.query("begin isolation level repeatable read, read only")
    try:
        session.query("set transaction snapshot '{}'".format(snapshot.replace("'", "''")))
    except PostgresRefused as error:
        raise SnapshotLost(f"the snapshot is gone with whoever held it: {error.problem}") from None


def _enter(session: Session, chunk: Chunk) -> None:
    """See that the rows lie where they lay, and have it stay so."""
    leaf = chunk.table.leaves[chunk.leaf]
    for name, value in PLAN.items():
        session.query("select set_config($1, $2, true)", name, value)
    try:
        session.query(f"lock table only {leaf.sql()} in access share mode", timeout=SILENCE)
        ((oid, file),) = session.query(WHERE, leaf.sql())
    except PostgresRefused as error:
        raise _unread(error, leaf.sql()) from None
    if (int(oid or 0), int(file or 0)) != (leaf.oid, leaf.file):
        raise SnapshotLost(f"{leaf.sql()} was rewritten while it was read for the snapshot")


def _lines(session: Session, chunk: Chunk) -> Iterator[bytes]:
    """The lines of a COPY, as they come: nobody keeps more of them than one read of the socket brings."""
    connection = session.pgconn
    connection.send_query(chunk.sql().encode())
    try:
        session.result(SILENCE)
        while True:
            try:
                count, line = connection.get_copy_data(1)
                if count > 0:
                    yield bytes(line)
                    continue
                if count < 0:
                    break
                if not wait(connection.socket, select.POLLIN, time.monotonic() + SILENCE):
                    raise PostgresUnreachable(session.address, f"no row of a snapshot within {SILENCE:g} s")
                connection.consume_input()
            except psycopg.OperationalError as error:
                raise ConnectionLost(session.address, one_line(str(error).encode())) from None
        session.result(SILENCE)
    except PostgresRefused as error:
        raise _unread(error, chunk.table.leaves[chunk.leaf].sql()) from None


def _unread(error: PostgresRefused, table: str) -> PostgresError | SnapshotLost:
    if ROW_SECURITY in error.problem:
        return CannotReplicate(error.problem, "have the role read all rows: ALTER ROLE ... BYPASSRLS")
    if error.code == DENIED:
        return CannotReplicate(f"a snapshot cannot be read: {error.problem}", f"GRANT SELECT ON {table} to this role")
    if error.code in GONE:
        return SnapshotLost(f"{table} was altered while it was read for the snapshot: {error.problem}")
    return error
