"""The source `postgres_wal`: the changes of a Postgres database in the order of their commits, as a stream.

One reader, on the driver, keeps the replication connection from epoch to epoch, and tasks fetch rows from it. The slot
is told of an epoch only when Spark asks for the next: by then it has noted that the epoch is done. An epoch that has to
be read again after a crash is read in a task, before the reader on the driver opens anything.
"""

import dataclasses
import logging
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from msgspec.structs import replace
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import StructType

from strandline.cdc.acknowledged import acknowledged
from strandline.cdc.changes import Changes
from strandline.cdc.keeper import Keeper
from strandline.cdc.mark import Mark
from strandline.cdc.publication import check_publications, full_keys
from strandline.cdc.rows import told_as
from strandline.cdc.session import Session
from strandline.cdc.shelf import Place, Shelf, fetch
from strandline.cdc.slot import SlotIdentity, beyond, check_server, checked, look
from strandline.clock import SystemClock
from strandline.errors import (
    CannotReplicate,
    ConnectionLost,
    PostgresError,
    PostgresHindered,
    PostgresUnreachable,
    RollbackUnclear,
    SlotBusy,
)
from strandline.spark.supervised import stay_supervised
from strandline.spark.wal_options import WalOptions
from strandline.spark.worker import settle
from strandline.units import Nanos, nanos

WAIT_S = 0.2
REST_S = 0.5
GIVE_UP_AFTER = nanos(timedelta(seconds=60))
# Postgres may be away for a while, and gives a slot up only after its own time-out.
PASSING = (ConnectionLost, PostgresHindered, PostgresUnreachable, SlotBusy)

log = logging.getLogger(__name__)
clock = SystemClock()


class PostgresWal(DataSource):
    """`spark.readStream.format("postgres_wal")`."""

    @classmethod
    def name(cls) -> str:
        return "postgres_wal"

    def schema(self) -> str:
        return told_as(WalOptions.parse(self.options).columns)

    def streamReader(self, schema: StructType) -> "WalReader":  # noqa: ARG002, N802
        return WalReader(WalOptions.parse(self.options))


class Epoch(InputPartition):
    """The rows of an epoch, and where they lie ready; None where they have to be read again."""

    def __init__(self, start: Mark, end: Mark, place: Place | None) -> None:
        self.start = start
        self.end = end
        self.place = place


class WalReader(DataSourceStreamReader):
    """Its making opens nothing: it is made also where it is only looked at, and is pickled."""

    def __init__(self, options: WalOptions) -> None:
        self._options = options
        self._changes: Changes | None = None
        self._reached: Mark | None = None
        self._shelf: Shelf | None = None
        self._lying: tuple[Mark, Place] | None = None
        """What was taken last, by its end."""
        self._keeper: Keeper | None = None
        self._away_since: Nanos | None = None
        self._advanced_at: Nanos | None = None
        self._beaten_at: Nanos | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where the slot stands, or behind what was delivered before us though the slot was not told."""
        options = self._options
        with Session(options.dsn) as session:
            check_server(session)
            check_publications(session, options.publications)
            state = look(session, options.slot)
            if state is None:
                how = f"select pg_create_logical_replication_slot('{options.slot}', 'pgoutput')"
                raise CannotReplicate(f"slot '{options.slot}' does not exist", f"create it ({how}), or check its name")
            delivered = self._delivered(session, state.identity)
            if delivered is not None:
                beyond(state, delivered)
            keys = full_keys(session, options.publications)
        return Mark.at(state, options.ordinals, keys).behind(delivered or 0).told()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limits are our own."""
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802
        """What has come since. While Postgres is away nothing comes, but not for ever."""
        stay_supervised(self._options.frozen_after)
        mark = Mark.read(start, self._options.ordinals)
        try:
            changes, keeper, at = self._at(mark)
            if at != mark:
                # Spark notes what another leader has delivered, and keys that are others now, as an epoch without rows.
                return at.told()
            # Spark asks from here on only when it has noted that all before is done.
            keeper.note(mark.end)
            changes.acknowledge(mark.end)
            taken = changes.take(WAIT_S)
            reached = self._idle(changes, keeper, mark) if taken is None else mark.moved(taken.reached, taken.committed)
        except PASSING as error:
            self._be_patient(error)
            return start
        except RollbackUnclear as error:
            self._close()
            self._options = self._whole()
            log.warning("%s; from here on, large transactions come when they have ended", error)
            return start
        self._away_since = None
        self._reached = reached
        if taken is not None:
            self._shelf = self._shelf or Shelf(self._options.serve_at)
            self._shelf.clear()
            self._lying = reached, self._shelf.put(taken.batches)
        return reached.told()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One: the order of an epoch is its rows' order."""
        first, last = (Mark.read(told, self._options.ordinals) for told in (start, end))
        if (first.lsn, first.ordinal) == (last.lsn, last.ordinal):
            return []
        lying = self._lying
        return [Epoch(first, last, lying[1] if lying is not None and lying[0] == last else None)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of an epoch; in a task. Those that are read again come in the same order."""
        # Where there is nothing to read, Spark makes a partition of its own.
        if isinstance(partition, Epoch):
            settle()
            stay_supervised(self._options.frozen_after)
            if partition.place is not None:
                yield from fetch(partition.place)
            else:
                begin = self._checked(partition.start, partition.end)
                # All of it was delivered by another leader, where that has come as far.
                if not partition.end.is_within(begin):
                    settings = self._whole().changes(begin.database, begin.keys or {})
                    with Changes(settings, begin.offset, partition.end.offset) as changes:
                        self._check_taken(begin)
                        yield from changes.all()

    def commit(self, end: dict[str, Any]) -> None:
        """An epoch is done. `latestOffset` was asked from its end on before this, and has told the slot."""

    def stop(self) -> None:
        """Give the slot back."""
        self._close()
        if self._shelf is not None:
            self._shelf.close()

    def _at(self, mark: Mark) -> tuple[Changes, Keeper, Mark]:
        """What reads on, and from where: from the mark, or behind what another leader has delivered since."""
        if self._changes is not None and self._reached != mark:
            self._close()
        if self._changes is None or self._keeper is None or self._reached is None:
            begin = self._checked(mark)
            self._changes = Changes(self._options.changes(begin.database, begin.keys or {}), begin.offset)
            self._check_taken(begin)
            self._keeper = Keeper(self._options.dsn, mark.identity, self._options.leadership)
            self._reached = begin
        return self._changes, self._keeper, self._reached

    def _checked(self, start: Mark, end: Mark | None = None) -> Mark:
        """Where to begin, once it is sure that all after `start` can still be had or was delivered by another.

        What was numbered before, an epoch up to `end` or a part of a transaction, is numbered by the same keys again.
        """
        options = self._options
        with Session(options.dsn) as session:
            check_server(session)
            check_publications(session, options.publications)
            # The row is written before the slot is told, so it is read behind it: another may be at that just now.
            state = look(session, options.slot)
            begin = start.behind(self._delivered(session, start.identity) or 0)
            checked(session, options.slot, state, at=begin.end, kept=start.identity)
            before = end or (begin if begin.is_cut else None)
            if before is not None and before.keys is not None:
                return begin.known_by(before.keys)
            return begin.known_by(full_keys(session, options.publications))

    def _check_taken(self, begin: Mark) -> None:
        """Refuse a slot that somebody has moved after it was looked at and before it was ours: now nobody can."""
        with Session(self._options.dsn) as session:
            state = look(session, self._options.slot)
            delivered = self._delivered(session, begin.identity) or 0
        if state is not None:
            beyond(state, max(begin.end, delivered))

    def _whole(self) -> WalOptions:
        """The same, without transactions in progress."""
        return dataclasses.replace(self._options, in_progress=False)

    def _delivered(self, session: Session, identity: SlotIdentity) -> int | None:
        return None if self._options.leadership is None else acknowledged(session, identity)

    def _idle(self, changes: Changes, keeper: Keeper, mark: Mark) -> Mark:
        """The mark, moved on now and then while nothing of ours is written: Postgres need not keep what others write.

        Spark notes it like an epoch before the slot is told, so it is never taken for a loss.
        """
        position, now, pause = changes.idle_at(), clock.monotonic(), nanos(self._options.idle_every)
        if self._advanced_at is None or self._beaten_at is None:
            self._advanced_at = self._beaten_at = now
        if now - self._beaten_at >= pause:
            self._beaten_at = now
            keeper.beat(mark.end)
        if position is None or position <= mark.end or now - self._advanced_at < pause:
            return mark
        self._advanced_at = now
        return mark.moved(replace(mark.offset, end=position), clock.wall() // 1_000)

    def _be_patient(self, error: PostgresError) -> None:
        """Pass over what will pass; raises what has lasted for too long."""
        self._close()
        now = clock.monotonic()
        if self._away_since is None:
            self._away_since = now
            log.warning("%s; trying again", error)
        elif now - self._away_since > GIVE_UP_AFTER:
            raise error
        time.sleep(REST_S)

    def _close(self) -> None:
        changes, self._changes, self._reached = self._changes, None, None
        keeper, self._keeper = self._keeper, None
        if changes is not None:
            changes.close()
        if keeper is not None:
            keeper.close()
