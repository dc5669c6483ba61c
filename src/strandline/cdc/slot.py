"""The replication slot: made on request, and what must hold of it and of its server before it is read.

START_REPLICATION passes in silence over what a slot no longer has. So the slot is looked at first, and every case in
which changes would be missing ends loudly, with what is lost.
"""

import time
from types import TracebackType
from typing import Self

from msgspec import Struct

from strandline.cdc.session import TIMEOUT, Session, parse_lsn, quoted
from strandline.errors import (
    CannotReplicate,
    ChangesLost,
    PostgresError,
    PostgresRefused,
    PostgresUnreachable,
    SlotBusy,
    SlotDelayed,
)
from strandline.wire.pgoutput import lsn_text

PLUGIN = "pgoutput"
HEARTBEAT = "strandline.heartbeat"
"""The prefix of messages that say nothing but that time has passed."""
POLL = 0.05

ROLE = """
    select rolname, rolsuper or rolreplication or exists (
        select from pg_roles r where r.rolname in ('rds_replication', 'rds_superuser') and pg_has_role(r.oid, 'member'))
    from pg_roles where rolname = current_user"""
SERVER = """
    select (select system_identifier from pg_control_system()), (select timeline_id from pg_control_checkpoint()),
        current_database(),
        case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_flush_lsn() end"""
SLOT = """
    select slot_type, coalesce(plugin, ''), coalesce(database, ''), coalesce(active_pid, 0),
        coalesce(confirmed_flush_lsn, '0/0'), coalesce(wal_status, ''), {reason}
    from pg_replication_slots where slot_name = $1"""
READER = """
    select coalesce(application_name, ''), coalesce(host(client_addr), 'a local socket'),
        application_name = current_setting('application_name')
    from pg_stat_activity where pid = $1::int"""

BEAT = """
    select case when pg_current_wal_flush_lsn() > $2::pg_lsn then pg_logical_emit_message(false, $1, '') end"""


class SlotIdentity(Struct, frozen=True, kw_only=True):
    """Where a slot is. Positions mean something only there, so this is kept with them and compared."""

    system: str
    timeline: int
    database: str
    slot: str


class SlotState(Struct, frozen=True, kw_only=True):
    """A slot as it stands."""

    identity: SlotIdentity
    confirmed: int
    """What was acknowledged last: nothing before it is sent again."""
    server: int
    """How far the server's log goes."""
    reader: int
    """The process of the server that reads it for somebody, or 0."""

    @property
    def lag(self) -> int:
        """How many bytes of log lie behind what was acknowledged."""
        return max(0, self.server - self.confirmed)


class NewSlot:
    """A slot just made, with the snapshot of the database at its start for as long as this is not closed."""

    def __init__(self, session: Session, slot: str, consistent_point: int, snapshot: str) -> None:
        self._session = session
        self.slot = slot
        self.consistent_point = consistent_point
        self.snapshot = snapshot
        """For SET TRANSACTION SNAPSHOT, in any session of the same database."""

    def close(self) -> None:
        """Give the snapshot up. The slot stays."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_server(session: Session) -> None:
    """Refuse a server that keeps too little in its log, and a role that may not read it."""
    level = session.query("show wal_level")[0][0]
    if level != "logical":
        raise CannotReplicate(
            f"Postgres at {session.address} has wal_level = {level}",
            "run: ALTER SYSTEM SET wal_level = 'logical', and restart it",
        )
    name, may = session.query(ROLE)[0]
    if may != "t":
        raise CannotReplicate(
            f"role '{name}' may not replicate", f"have a superuser run: ALTER ROLE {quoted(name or '')} REPLICATION"
        )


def create_slot(dsn: str, slot: str, *, temporary: bool = False, wait: float = 60.0) -> NewSlot:
    """Make a slot and export its snapshot. It begins when all transactions that run now have ended.

    A temporary one is gone when it is closed.
    """
    session = Session(dsn, replication=True)
    kind = "TEMPORARY LOGICAL" if temporary else "LOGICAL"
    try:
        rows = session.query(
            f"CREATE_REPLICATION_SLOT {quoted(slot)} {kind} {PLUGIN} (SNAPSHOT 'export')", timeout=wait
        )
    except PostgresUnreachable:
        raise _still_waiting(dsn, slot, wait, session.process) from None
    except PostgresRefused as error:
        session.close()
        raise _uncreated(error) from None
    except PostgresError:
        session.close()
        raise
    _, point, snapshot, _ = rows[0]
    return NewSlot(session, slot, parse_lsn(point or ""), snapshot or "")


def _still_waiting(dsn: str, slot: str, wait: float, process: int) -> SlotDelayed:
    with Session(dsn) as other:
        other.query("select pg_terminate_backend($1::int)", process)
        rows = other.query(
            "select pid from pg_stat_activity where backend_xid is not null and pid <> $1::int order by xact_start",
            process,
        )
    pids = ", ".join(row[0] or "" for row in rows[:5])
    return SlotDelayed(
        f"slot '{slot}' could not be created within {wait:g} s: transactions still run (processes {pids or 'unknown'})",
        "wait for them or end them",
    )


def _uncreated(error: PostgresRefused) -> PostgresError:
    match error.code:
        case "42710":
            return SlotBusy(error.problem, "another instance has just made it; start again")
        case "53400":
            return CannotReplicate(
                error.problem, "raise max_replication_slots, or drop slots that nobody reads (pg_replication_slots)"
            )
        case "42602":
            return CannotReplicate(error.problem, "choose another name for the slot")
    return error


def identified(session: Session, slot: str) -> tuple[SlotIdentity, int]:
    """Where a slot of this name is, or would be, and how far the server's log goes."""
    system, timeline, database, server = session.query(SERVER)[0]
    identity = SlotIdentity(system=system or "", timeline=int(timeline or 0), database=database or "", slot=slot)
    return identity, parse_lsn(server or "0/0")


def look(session: Session, slot: str) -> SlotState | None:
    """A slot of this database as it stands, or None where there is none. Refuses one that cannot be read at all."""
    # Why a slot was given up is told from version 17 on.
    reason = "coalesce(invalidation_reason, '')" if session.version >= 17 else "''"
    rows = session.query(SLOT.format(reason=reason), slot)
    if not rows:
        return None
    identity, server = identified(session, slot)
    database = identity.database
    kind, plugin, its_database, reader, confirmed, status, why = (value or "" for value in rows[0])
    if kind != "logical" or plugin != PLUGIN:
        raise CannotReplicate(
            f"slot '{slot}' is of {f'plugin {plugin}' if plugin else 'physical replication'}, not of {PLUGIN}",
            "choose another name for ours, or drop that one",
        )
    if its_database != database:
        raise CannotReplicate(
            f"slot '{slot}' belongs to database '{its_database}', not to '{database}'",
            "connect to that one, or choose another name for ours",
        )
    if status == "lost" or why:
        cause = why or "more log was written than max_slot_wal_keep_size lets it hold, or a standby had to give it up"
        raise ChangesLost(f"slot '{slot}' is lost ({cause}): changes after {confirmed} are gone", slot)
    return SlotState(
        identity=identity,
        confirmed=parse_lsn(confirmed),
        server=server,
        reader=int(reader),
    )


def checked(
    session: Session, slot: str, state: SlotState | None, *, at: int | None, kept: SlotIdentity | None
) -> SlotState:
    """A slot that was looked at, if all changes after `at` can be read from it, and nobody else reads it.

    `at` is the end of what is known to be safe: the last offset, or an idle advance that was recorded. `kept` is the
    identity that was recorded with it.
    """
    if state is None:
        if kept is None and at is None:
            raise CannotReplicate(f"slot '{slot}' does not exist", "have it created, with a snapshot of what is there")
        raise ChangesLost(f"slot '{slot}' is gone: changes after {lsn_text(at or 0)} are lost", slot)
    if kept is not None:
        compare(kept, state, at)
    if at is not None:
        beyond(state, at)
    if state.reader:
        raise busy(session, state)
    return state


def compare(kept: SlotIdentity, state: SlotState, at: int | None) -> None:
    """Refuse a slot in which our positions mean nothing."""
    found, slot = state.identity, state.identity.slot
    since = "" if at is None else f" (changes after {lsn_text(at)} were not read)"
    if kept.system != found.system:
        raise ChangesLost(
            f"this is another Postgres (system identifier {found.system}, ours was {kept.system}){since}", slot
        )
    if kept.database != found.database or kept.slot != slot:
        raise ChangesLost(
            f"slot '{slot}' of database '{found.database}' is not the one that was read, "
            f"'{kept.slot}' of '{kept.database}'{since}",
            slot,
        )
    if kept.timeline != found.timeline:
        raise ChangesLost(
            f"Postgres was promoted or restored meanwhile (timeline {found.timeline}, ours was {kept.timeline}){since}",
            slot,
        )


def beyond(state: SlotState, at: int) -> None:
    """Refuse a slot that has passed what we have, and a server that has not come as far."""
    slot = state.identity.slot
    if state.confirmed > at:
        raise ChangesLost(
            f"slot '{slot}' stands at {lsn_text(state.confirmed)}, beyond {lsn_text(at)}, the last that is known to be "
            f"safe: what lies between ({state.confirmed - at} bytes of log) was acknowledged by somebody else, or the "
            "slot was made anew, and Postgres would pass over it",
            slot,
        )
    if state.server < at:
        raise ChangesLost(
            f"Postgres' log ends at {lsn_text(state.server)}, before {lsn_text(at)}, which was read already: it was "
            "set back to an earlier state",
            slot,
        )


def busy(session: Session, state: SlotState) -> SlotBusy:
    """Who reads the slot."""
    rows = session.query(READER, state.reader)
    who = f"'{rows[0][0]}' at {rows[0][1]}, " if rows else ""
    return SlotBusy(
        f"slot '{state.identity.slot}' is read by somebody else ({who}process {state.reader} of the server)",
        "stop the other instance, or use another slot",
    )


def take_over(session: Session, slot: str, *, wait: float = TIMEOUT) -> None:
    """End who reads the slot, and return when it is free. For a new leader: the lease of the old one is over.

    Whoever has another name than ours (application_name) knows nothing of leases, and is left alone.
    """
    deadline = time.monotonic() + wait
    while (state := look(session, slot)) is not None and state.reader:
        if [is_ours for _, _, is_ours in session.query(READER, state.reader)] == ["f"]:
            raise busy(session, state)
        try:
            session.query("select pg_terminate_backend($1::int)", state.reader)
        except PostgresRefused as error:
            raise SlotBusy(f"slot '{slot}' cannot be taken over: {error.problem}", "read it as the same role") from None
        if time.monotonic() > deadline:
            raise busy(session, state)
        time.sleep(POLL)


def heartbeat(session: Session, *, beyond: int) -> int | None:
    """Write a message to the log that every slot is sent, so that one whose tables rest moves on. Its position.

    None is written where the log ends at `beyond`: there is nothing to move on to, and each would be a reason for the
    next.
    """
    ((found,),) = session.query(BEAT, HEARTBEAT, lsn_text(beyond))
    return None if found is None else parse_lsn(found)
