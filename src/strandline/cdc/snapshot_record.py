"""How far a snapshot has come, kept in Postgres beside the lease: which tables are finished, for whoever leads next.

Only the leadership that took it over last writes to it, and none takes it over, begins it anew or forgets it once a
later one has: the number of a leadership only rises, under one lease. Tables are known by their oid: one that is
renamed is the same, and one that is made anew under the same name is another.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from strandline.cdc import tables
from strandline.cdc.published import SnapshotTable
from strandline.cdc.session import Session, parse_lsn
from strandline.counts import counted
from strandline.errors import NotLeading, PostgresRefused
from strandline.units import Nanos
from strandline.wire.pgoutput import lsn_text

TABLES: Final = {
    "snapshot": """create table if not exists strandline.snapshot (
        slot text primary key, leadership bigint not null, start pg_lsn, begun timestamptz not null,
        finished timestamptz, lease text not null)""",
    "snapshot_table": """create table if not exists strandline.snapshot_table (
        slot text references strandline.snapshot on delete cascade, relation oid, schema_name text not null,
        table_name text not null, point pg_lsn not null, rows bigint not null, chunks int not null,
        chunks_done int not null, primary key (slot, relation))""",
}
WANT: Final = """
    with wanted as (
        insert into strandline.snapshot as kept values ($1, $2::bigint, null, clock_timestamp(), null, $3)
        on conflict (slot) do update set leadership = excluded.leadership, start = null, begun = excluded.begun,
            finished = null, lease = excluded.lease
            where kept.leadership <= excluded.leadership or kept.lease <> excluded.lease returning slot),
    forgotten as (delete from strandline.snapshot_table t using wanted where t.slot = wanted.slot)
    select slot from wanted"""
FORGET: Final = """
    with found as (
        select slot, leadership > $2::bigint and lease = $3 as is_later from strandline.snapshot where slot = $1
        for update),
    forgotten as (delete from strandline.snapshot s using found where s.slot = found.slot and not is_later)
    select where not exists (select from found where is_later)"""
TAKE_OVER: Final = """
    update strandline.snapshot set leadership = $2::bigint, start = coalesce(start, $4::pg_lsn), lease = $3
    where slot = $1 and (leadership <= $2::bigint or lease <> $3) returning start"""
START: Final = """
    update strandline.snapshot set start = $4::pg_lsn where slot = $1 and leadership = $2::bigint and lease = $3
    returning slot"""
FINISH: Final = """
    update strandline.snapshot set finished = clock_timestamp()
    where slot = $1 and leadership = $2::bigint and lease = $3 returning slot"""
# An empty table is finished from the start. What is finished stays as it is.
BEGIN_TABLE: Final = """
    insert into strandline.snapshot_table
    select $1, $4::oid, $5, $6, $7::pg_lsn, 0, $8::int, 0
    from strandline.snapshot where slot = $1 and leadership = $2::bigint and lease = $3
    on conflict (slot, relation) do update set schema_name = excluded.schema_name, table_name = excluded.table_name,
        point = excluded.point, rows = 0, chunks = excluded.chunks, chunks_done = 0
    returning slot"""
KEEP: Final = """
    delete from strandline.snapshot_table t using strandline.snapshot s
    where s.slot = $1 and s.leadership = $2::bigint and s.lease = $3 and t.slot = s.slot
        and t.relation <> all ($4::oid[])"""
ADD: Final = """
    update strandline.snapshot_table t set rows = t.rows + $5::bigint, chunks_done = t.chunks_done + $6::int
    from strandline.snapshot s where s.slot = $1 and s.leadership = $2::bigint and s.lease = $3 and t.slot = s.slot
        and relation = $4::oid returning t.slot"""
READ: Final = """
    select start, (extract(epoch from begun) * 1000000)::bigint, (extract(epoch from finished) * 1000000)::bigint
    from strandline.snapshot where slot = $1"""
READ_TABLES: Final = """
    select relation, schema_name, table_name, point, rows, chunks, chunks_done from strandline.snapshot_table
    where slot = $1 order by 2, 3"""


class TableState(Struct, frozen=True, kw_only=True):
    """How far a table is."""

    oid: int
    schema: str
    name: str
    """As it was named then."""
    point: int
    """The LSN of the snapshot that it is read under."""
    rows: int
    chunks: int
    chunks_done: int

    @property
    def finished(self) -> bool:
        """Whether all its rows are delivered."""
        return self.chunks_done == self.chunks


class SnapshotState(Struct, frozen=True, kw_only=True):
    """How far a snapshot is."""

    start: int | None
    """Where the slot began; None while it may not yet be made."""
    begun: Nanos
    finished: Nanos | None
    tables: list[TableState]

    @property
    def tables_finished(self) -> int:
        """Of how many tables all rows are delivered."""
        return sum(table.finished for table in self.tables)

    @property
    def chunks(self) -> int:
        """Of all tables."""
        return sum(table.chunks for table in self.tables)

    @property
    def chunks_done(self) -> int:
        """Of how many chunks all rows are delivered."""
        return sum(table.chunks_done for table in self.tables)

    def __str__(self) -> str:
        rows = sum(table.rows for table in self.tables)
        tables = f"{self.tables_finished} of {len(self.tables)} tables"
        return f"{tables}, {self.chunks_done:,} of {self.chunks:,} chunks, {counted(rows, 'row')}"


def snapshot_state(session: Session, slot: str) -> SnapshotState | None:
    """How far the snapshot of a slot is; None where none was ever due."""
    try:
        rows = session.query(READ, slot)
        found = session.query(READ_TABLES, slot)
    except PostgresRefused as error:
        if error.code not in tables.MISSING:
            raise
        return None
    if not rows:
        return None
    start, begun, finished = rows[0]
    return SnapshotState(
        start=None if start is None else parse_lsn(start),
        begun=Nanos(int(begun or 0) * 1_000),
        finished=None if finished is None else Nanos(int(finished) * 1_000),
        tables=[
            TableState(
                oid=int(oid or 0),
                schema=schema or "",
                name=name or "",
                point=parse_lsn(point or ""),
                rows=int(count or 0),
                chunks=int(chunks or 0),
                chunks_done=int(done or 0),
            )
            for oid, schema, name, point, count, chunks, done in found
        ],
    )


class SnapshotRecord:
    """What one leadership writes. Every word is a session of its own: there are few."""

    def __init__(self, dsn: str, slot: str, leadership: int, lease: str) -> None:
        self._dsn = dsn
        self.slot = slot
        self.leadership = leadership
        self._we = (slot, leadership, lease)

    def state(self) -> SnapshotState | None:
        """How far it is."""
        with Session(self._dsn) as session:
            return snapshot_state(session, self.slot)

    def want(self) -> None:
        """A snapshot is due, of every table. To be said before the slot is made."""
        with Session(self._dsn) as session:
            create_snapshot_tables(session)
            self._written(tables.ask(session, WANT, *self._we))

    def forget(self) -> None:
        """None is due any more. To be said before a slot is made without one."""
        with Session(self._dsn) as session:
            self._written(tables.ask(session, FORGET, *self._we))

    def start(self, point: int) -> None:
        """The slot is made, and begins here."""
        with Session(self._dsn) as session:
            self._written(tables.ask(session, START, *self._we, lsn_text(point)))

    def take_over(self, confirmed: int) -> int:
        """Go on with a snapshot that another has left; where the slot began, of which nothing was acknowledged."""
        with Session(self._dsn) as session:
            rows = tables.ask(session, TAKE_OVER, *self._we, lsn_text(confirmed))
        self._written(rows)
        return parse_lsn(rows[0][0] or "")

    def begin_tables(
        self, point: int, todo: Sequence[tuple[SnapshotTable, int]], published: Sequence[SnapshotTable]
    ) -> None:
        """Some tables are read under a snapshot, from the beginning, in so many chunks each.

        Others that were noted stay as they are, unless they are gone or not published any more.
        """
        with Session(self._dsn) as session:
            kept = "{" + ",".join(str(table.oid) for table in published) + "}"
            tables.ask(session, KEEP, *self._we, kept)
            for table, chunks in todo:
                what = (table.oid, *table.name, lsn_text(point), chunks)
                self._written(tables.ask(session, BEGIN_TABLE, *self._we, *what))

    def add(self, table: int, *, rows: int, chunks: int) -> None:
        """So much more of a table, by its oid, is delivered."""
        with Session(self._dsn) as session:
            self._written(tables.ask(session, ADD, *self._we, table, rows, chunks))

    def finish(self) -> None:
        """All is delivered: changes may follow."""
        with Session(self._dsn) as session:
            self._written(tables.ask(session, FINISH, *self._we))

    def _written(self, rows: Sequence[object]) -> None:
        if not rows:
            raise NotLeading(self.slot, "another has taken its snapshot over")


def create_snapshot_tables(session: Session) -> None:
    """Make the tables, where they are missing."""
    remedy = "have it done by a role that may (GRANT CREATE ON DATABASE ...), or set snapshot: never"
    tables.create(session, TABLES, remedy)
