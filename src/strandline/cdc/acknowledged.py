"""What was acknowledged to Postgres, kept in Postgres: a row for each slot, written before the slot is told.

A checkpoint tells it only to whoever has it. A standby with an older one of its own learns here that what the slot has
passed was delivered by another leader, and goes on behind it. A slot that stands beyond the row was moved by somebody
who delivered nothing.

The row is true whoever wrote it, and whenever: it says that all before a position was delivered. So it only rises, and
an instance that leads no more does no harm with it.
"""

from strandline.cdc import tables
from strandline.cdc.session import Session, parse_lsn
from strandline.cdc.slot import SlotIdentity
from strandline.wire.pgoutput import lsn_text

TABLE = """
    create table if not exists strandline.acknowledged (
        slot text primary key, system text not null, timeline bigint not null, database text not null,
        lsn pg_lsn not null, leadership bigint not null, written timestamptz not null)"""
READ = """
    select lsn from strandline.acknowledged
    where slot = $1 and system = $2 and timeline = $3::bigint and database = $4"""
WRITE = """
    insert into strandline.acknowledged as kept (slot, system, timeline, database, lsn, leadership, written)
    values ($1, $2, $3::bigint, $4, $5::pg_lsn, $6::bigint, clock_timestamp())
    on conflict (slot) do update set system = excluded.system, timeline = excluded.timeline,
        database = excluded.database, leadership = excluded.leadership, written = excluded.written,
        lsn = case when (kept.system, kept.timeline, kept.database)
            = (excluded.system, excluded.timeline, excluded.database)
            then greatest(kept.lsn, excluded.lsn) else excluded.lsn end"""


def create_acknowledged_table(session: Session) -> None:
    """Make the table, where it is missing."""
    remedy = "have it created by a role that may: GRANT CREATE ON DATABASE, or run `strandline cdc` once as one"
    tables.create(session, {"acknowledged": TABLE}, remedy)


def acknowledged(session: Session, identity: SlotIdentity) -> int | None:
    """Up to where all was delivered, as whoever led has written it; None where nobody has."""
    rows = tables.ask(session, READ, identity.slot, identity.system, identity.timeline, identity.database)
    return parse_lsn(rows[0][0] or "") if rows else None


def acknowledge(session: Session, identity: SlotIdentity, end: int, leadership: int) -> None:
    """Write that all up to here was delivered, under this leadership."""
    place = (identity.slot, identity.system, identity.timeline, identity.database)
    tables.ask(session, WRITE, *place, lsn_text(end), leadership)
