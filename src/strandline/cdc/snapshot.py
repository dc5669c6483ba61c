"""A snapshot of the rows that are there before a slot's changes: when one is due, and who holds it.

The law, whoever fails when:

- All rows of the snapshot are accepted before the first change of the slot is sent, and nothing of the slot is
  acknowledged before that.
- The slot that changes will be read from stays, whatever becomes of the snapshot. Its own snapshot is the state exactly
  at its start: the rows, then the changes since, with no gap and no overlap.
- A snapshot lives as long as its holder, and shows nothing of a table that was rewritten. Where it is lost, the same
  leader or the next takes another one, by a temporary slot of which nothing but the snapshot and its LSN is used, and
  reads the tables again that were not finished. Changes between the slot's start and that LSN then come after rows that
  have them already. Whether a reader goes by the order of arrival, or by the highest id of each key, what is left in
  the end is the table.
- A new slot in the place of the first would lose: a row that was sent under the first snapshot and deleted before the
  second is told as deleted by the first slot alone; and so are all changes of tables that were finished.
- That a snapshot is due is written down before the slot is made (`snapshot_record.py`): a slot that is there, with
  nothing said about it, needs none.
"""

import secrets
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from strandline.cdc.chunk import View, join
from strandline.cdc.publication import full_keys
from strandline.cdc.published import SnapshotTable, published_tables
from strandline.cdc.session import Session
from strandline.cdc.slot import NewSlot, beyond, create_slot, look
from strandline.cdc.snapshot_record import SnapshotRecord, SnapshotState
from strandline.errors import PostgresError, SnapshotLost

ABOUT = """
    select pg_export_snapshot(), (extract(epoch from clock_timestamp()) * 1000000)::bigint, current_database()"""


class HeldSnapshot:
    """A snapshot that others can read from until it is closed. No table is locked by it."""

    def __init__(self, dsn: str, made: NewSlot) -> None:
        """Take over what was exported with a slot."""
        self._session = Session(dsn)
        try:
            join(self._session, made.snapshot)
            ((name, taken, database),) = self._session.query(ABOUT)
        except (PostgresError, SnapshotLost):
            self._session.close()
            raise
        self.view = View(
            snapshot=name or "", point=made.consistent_point, taken=int(taken or 0), database=database or ""
        )

    def tables(self, publication: str) -> list[SnapshotTable]:
        """What is published, as it was then."""
        return published_tables(self._session, publication)

    def full_keys(self, publication: str) -> dict[str, list[str]]:
        """What rows of tables with replica identity FULL are known by: as their changes are."""
        return full_keys(self._session, [publication])

    def close(self) -> None:
        """Give it up."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def left_to_read(published: Sequence[SnapshotTable], state: SnapshotState | None) -> list[SnapshotTable]:
    """The tables that are not finished, the smallest first.

    A table that was renamed since is the same, and its rows came under its old name, as they would have before a
    renaming later on. One that was made anew under an old name is another: its rows may be older than its place in
    the publication, and the slot has nothing of them.
    """
    finished = {table.oid for table in state.tables if table.finished} if state else set()
    # Most tables that are emptied often are small, and are read before it happens again.
    return sorted((table for table in published if table.oid not in finished), key=lambda table: table.blocks)


def make_slot(dsn: str, record: SnapshotRecord) -> HeldSnapshot:
    """Make the slot that changes will be read from, and hold the snapshot of its start."""
    record.want()
    with create_slot(dsn, record.slot) as made:
        record.start(made.consistent_point)
        return HeldSnapshot(dsn, made)


def take_again(dsn: str, record: SnapshotRecord) -> HeldSnapshot:
    """Hold another snapshot for a slot whose own was lost; raises ChangesLost where the slot is not as it was made."""
    with Session(dsn) as session:
        state = look(session, record.slot)
    if state is None:
        raise SnapshotLost(f"slot '{record.slot}' was dropped before its snapshot was finished")
    start = record.take_over(state.confirmed)
    beyond(state, start)
    # Of its own: a session that was closed may live on in the server for a moment, and its slot with it.
    name = f"{record.slot[:40]}_snapshot_{secrets.token_hex(4)}"
    with create_slot(dsn, name, temporary=True) as made:
        return HeldSnapshot(dsn, made)
