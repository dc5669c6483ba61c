"""The snapshot of `strandline cdc` on Spark: chunks of tables read and sent side by side, before the stream begins.

A task reads its chunk inside the leader's snapshot and sends it, all in one Python process. A task that is lost is run
again, inside the same snapshot: its rows come again with the same ids. All tasks share one claim of the lease, the
lowest that there is: the first epoch of the stream supersedes it, and waits until none of them can still send.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from datetime import timedelta
from threading import Event
from typing import Any

from pyspark import SparkContext

from strandline.cdc.chunk import View, read_chunk
from strandline.cdc.config import CdcConfig
from strandline.cdc.fence import Fence
from strandline.cdc.figures import summed, tell
from strandline.cdc.lease import Leadership
from strandline.cdc.limits import SHARD_RECORDS
from strandline.cdc.published import Chunk, chunks
from strandline.cdc.sending import Sent
from strandline.cdc.snapshot import HeldSnapshot, left_to_read
from strandline.cdc.snapshot_record import SnapshotRecord
from strandline.clock import SystemClock
from strandline.core.chunks import waves
from strandline.core.lease import SNAPSHOT
from strandline.errors import OptionError
from strandline.spark.kinesis import in_order, sender_of
from strandline.spark.kinesis_options import SinkOptions
from strandline.spark.supervised import stay_supervised
from strandline.spark.wal_options import WalOptions
from strandline.spark.worker import settle
from strandline.units import nanos
from strandline.wire.event import EventFormat

CHUNK_BLOCKS = 512
"""4 MiB, a second's work or so: as much is sent again when a task is lost."""
CHUNKS_A_CORE = 8
"""In a job of Spark, between two looks at how far it is: enough that its cores seldom wait for each other."""
LOOK_EVERY = 0.1
CANCEL_WITHIN = 10.0
TELL_EVERY = nanos(timedelta(seconds=10))

clock = SystemClock()

Delivered = tuple[int, Sent]
"""Of a chunk: its table's oid, and what became of its rows."""


@dataclass(frozen=True, kw_only=True)
class Errand:
    """What every task is given."""

    dsn: str = field(repr=False)
    view: View
    events: EventFormat
    sink: SinkOptions

    def __call__(self, given: Iterable[Chunk]) -> Iterator[Delivered]:
        """Read and send chunks; each is delivered when it is told."""
        settle()
        stay_supervised(self.sink.frozen_after)
        lease = self.sink.lease
        if lease is None:
            raise OptionError("a snapshot is sent under a lease only")
        with Fence(lease.dsn, lease.name, lease.leadership, *SNAPSHOT, is_shared=True) as fence:
            for chunk in given:
                rows = read_chunk(self.dsn, self.view, chunk, self.events)
                sent = sender_of(self.sink).send(in_order(rows), leadership=lease.leadership, fence=fence)
                yield chunk.table.oid, sent


class Snapshot:
    """The rows of all tables that are not finished, from a snapshot that we hold to the stream."""

    def __init__(self, context: SparkContext, config: CdcConfig, held: HeldSnapshot, leadership: Leadership) -> None:
        self._context = context
        self._leadership = leadership
        self._held = held
        self._publication = config.postgres.publication
        dsn = config.postgres.url()
        self._record = SnapshotRecord(dsn, config.postgres.slot, leadership.number, leadership.name)
        sink = SinkOptions.parse(config.sink_options(leadership.number))
        self._at_once = context.defaultParallelism
        self._is_paced = sink.sending.shards is not None
        if self._is_paced:
            # A sender keeps to what the shards take, and each task has one: so they share it out.
            self._at_once = min(self._at_once, SHARD_RECORDS)
            sink = replace(sink, sending=replace(sink.sending, senders=self._at_once))
        keys = held.full_keys(self._publication)
        events = WalOptions.parse(config.source_options(leadership.number)).changes(held.view.database, keys).events
        self._errand = Errand(dsn=dsn, view=held.view, events=events, sink=sink)

    def send(self, stop: Event, say: Callable[[str], None], figures: str | None = None) -> None:
        """Send them, and note how far it is. Returns early when told to stop; raises NotLeading when another leads.

        `figures` is where it is told what became of them, a few chunks at a time.
        """
        todo, told = self._begin(), clock.monotonic()
        for wave in waves(todo, self._at_once * CHUNKS_A_CORE):
            delivered = self._run(wave, stop)
            if delivered is None:
                return
            for table, count in Counter(table for table, _ in delivered).items():
                rows = sum(sent.records + sent.dead_lettered for its, sent in delivered if its == table)
                self._record.add(table, rows=rows, chunks=count)
            if figures is not None:
                tell(figures, summed(None, [sent for _, sent in delivered]))
            now = clock.monotonic()
            if now - told >= TELL_EVERY:
                told = now
                say(f"snapshot: {self._record.state()}")
        self._record.finish()
        say(f"the snapshot is finished: {self._record.state()}")

    def _begin(self) -> list[Chunk]:
        """What is left to do, noted down."""
        published = self._held.tables(self._publication)
        tables = left_to_read(published, self._record.state())
        todo = chunks(tables, CHUNK_BLOCKS)
        counts = Counter(chunk.table.oid for chunk in todo)
        self._record.begin_tables(self._held.view.point, [(table, counts[table.oid]) for table in tables], published)
        return todo

    def _run(self, wave: Sequence[Chunk], stop: Event) -> list[Delivered] | None:
        """One job of Spark; None when told to stop."""
        tasks: Any = self._context.parallelize(wave, min(self._at_once, len(wave)) if self._is_paced else len(wave))
        pool = ThreadPoolExecutor(1, "strandline-snapshot")
        job: Future[list[Delivered]] = pool.submit(tasks.mapPartitions(self._errand).collect)
        try:
            while not wait([job], LOOK_EVERY).done:
                if stop.is_set():
                    return None
                self._leadership.check(sign=job)
            return job.result()
        finally:
            if not job.done():
                self._context.cancelAllJobs()
                wait([job], CANCEL_WITHIN)
            pool.shutdown(wait=False)
