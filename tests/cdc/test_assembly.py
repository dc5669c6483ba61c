"""The laws of assembly: however a transaction comes and wherever reading is cut, each event comes once, with one id."""

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from strandline.cdc.assembly import Assembly, Batch, Offset
from strandline.cdc.slot import HEARTBEAT
from strandline.cdc.spill import Spill
from strandline.errors import MalformedChange, RollbackUnclear, SpillFailed
from strandline.wire.change import Events
from strandline.wire.event import Event, EventFormat
from strandline.wire.pgoutput import (
    Begin,
    Column,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    OldKey,
    Relation,
    ReplicaIdentity,
    Row,
    StreamAbort,
    StreamCommit,
    StreamStart,
    StreamStop,
    Truncate,
    Update,
)
from tests.wire.replication import encoded

STEP = 1_000
TEXT, INT = 25, 23
TABLES = {
    oid: Relation(
        oid,
        "public",
        f"t{oid}",
        ReplicaIdentity.DEFAULT,
        (Column("id", INT, -1, True), Column("name", TEXT, -1, False)),
    )
    for oid in (1, 2)
}
FORMAT = EventFormat(database="shop", split_key_changes=True)

Frame = tuple[int, int, bytes]
Change = Insert | Update | Delete | Truncate | LogicalMessage
Told = tuple[int, Event]


class Transaction(Struct, frozen=True):
    """Changes, each of a subtransaction (0: of none), and what of them was rolled back."""

    changes: list[tuple[int, Change]]
    aborted: frozenset[int] = frozenset()
    is_committed: bool = True
    is_streamed: bool = False


class Spoken(Struct, frozen=True):
    """A message outside any transaction."""

    prefix: str


History = list[Transaction | Spoken]


def rows(number: int) -> Row:
    return [str(number).encode(), b"name"]


oids = st.sampled_from([1, 2])
numbers = st.integers(0, 99)
changes = st.one_of(
    st.builds(lambda oid, n: Insert(oid, rows(n)), oids, numbers),
    st.builds(lambda oid, n: Update(oid, None, rows(n)), oids, numbers),
    st.builds(lambda oid, n, m: Update(oid, OldKey([str(m).encode(), None]), rows(n)), oids, numbers, numbers),
    st.builds(lambda oid, n: Delete(oid, OldKey([str(n).encode(), None])), oids, numbers),
    st.just(Truncate((1, 2), False, False)),
    st.builds(lambda n: LogicalMessage(True, 1, "inside", str(n).encode()), numbers),
)
transactions = st.builds(
    Transaction,
    st.lists(st.tuples(st.integers(0, 3), changes), max_size=12),
    st.frozensets(st.integers(1, 3), max_size=2),
    st.sampled_from([True, True, True, False]),
    st.booleans(),
)
histories: st.SearchStrategy[History] = st.lists(
    st.one_of(transactions, st.builds(Spoken, st.sampled_from(["outside", HEARTBEAT]))), max_size=6
)


def xid_of(place: int) -> int:
    return 100 * (place + 1)


def ends(place: int) -> tuple[int, int]:
    """The commit's LSN and its end."""
    return STEP * (place + 1), STEP * (place + 1) + 48


def spoken_at(place: int) -> int:
    """Where a message's record ends, the next one begins: here that is the commit of what follows it."""
    return STEP * (place + 2)


def is_unclear(item: Transaction) -> bool:
    """Whether a stream of it does not tell all: of a message it names the transaction, never the part of it."""
    has_messages = any(isinstance(change, LogicalMessage) for _, change in item.changes)
    return has_messages and bool(item.aborted & {sub for sub, _ in item.changes})


class Server:
    """Sends a history as Postgres would, from a position on: streamed or not, in any interleaving.

    What a stream does not tell is read without one.
    """

    def __init__(self, history: History, random: Random, *, streaming: bool) -> None:
        self.history = history
        self.random = random
        self.streaming = streaming

    def frames(self, start: int) -> list[Frame]:
        wire: list[list[Message]] = [[] for _ in self.history]
        known: set[int] = set()
        for place, item in enumerate(self.history):
            if isinstance(item, Transaction) and self._streams(item) and ends(place)[0] >= start:
                self._stream(place, item, wire)
        sent: list[Message] = []
        for place, item in enumerate(self.history):
            sent += wire[place]
            if isinstance(item, Spoken):
                if spoken_at(place) - 50 >= start:
                    sent.append(LogicalMessage(False, spoken_at(place), item.prefix, b"x"))
            elif ends(place)[0] >= start:
                sent += self._ended(place, item, known)
        return [(0, 0, encoded(message)) for message in sent]

    def _streams(self, item: Transaction) -> bool:
        return self.streaming and item.is_streamed and not is_unclear(item)

    def _stream(self, place: int, item: Transaction, wire: list[list[Message]]) -> None:
        """Blocks of a transaction before its end, among whatever else comes by then."""
        xid, left, at, described = xid_of(place), list(item.changes), 0, set[int]()
        open_ = set(item.aborted) & {sub for sub, _ in left}
        first = True
        while left or first:
            at = self.random.randint(at, place)
            size = self.random.randint(1, 4)
            block, left = left[:size], left[size:]
            wire[at].append(StreamStart(xid, first))
            for sub, change in block:
                wire[at] += self._described(change, described, xid + sub)
                wire[at].append(_within(change, xid if isinstance(change, LogicalMessage) else xid + sub))
            wire[at].append(StreamStop())
            first = False
            for sub in sorted(open_ - {sub for sub, _ in left}):
                if self.random.random() < 0.5:
                    wire[at].append(StreamAbort(xid, xid + sub))
                    open_.discard(sub)
        wire[place] += [StreamAbort(xid, xid + sub) for sub in sorted(open_)]

    def _ended(self, place: int, item: Transaction, known: set[int]) -> list[Message]:
        lsn, end = ends(place)
        xid = xid_of(place)
        if self._streams(item):
            return [StreamCommit(xid, lsn, end, 0) if item.is_committed else StreamAbort(xid, xid)]
        if not item.is_committed:
            return []
        sent: list[Message] = [Begin(lsn, 0, xid)]
        for sub, change in item.changes:
            if sub not in item.aborted:
                sent += [*self._described(change, known, None), change]
        return [*sent, Commit(lsn, end, 0)]

    def _described(self, change: Change, known: set[int], xid: int | None) -> Iterator[Relation]:
        wanted = change.relations if isinstance(change, Truncate) else (getattr(change, "relation", 0),)
        for oid in wanted:
            if oid and oid not in known:
                known.add(oid)
                table = TABLES[oid]
                yield Relation(oid, table.schema, table.name, table.identity, table.columns, xid)


def _within(change: Change, xid: int) -> Change:
    return type(change)(**{**{name: getattr(change, name) for name in change.__struct_fields__}, "xid": xid})


def assembly(start: Offset | None = None, **options: object) -> Assembly:
    return Assembly(Events(FORMAT), start or Offset(), **options)  # type: ignore[arg-type]


def drained(reader: Assembly, frames: list[Frame], random: Random | None = None) -> Iterator[Batch]:
    """All batches of frames, fed some at a time."""
    while frames:
        size = len(frames) if random is None else random.randint(1, 20)
        reader.feed(frames[:size])
        frames = frames[size:]
        while (batch := reader.batch()) is not None:
            yield batch


def told(batches: "list[Batch] | Iterator[Batch]") -> list[Told]:
    return [(part.stamp.lsn, event) for batch in batches for part in batch.parts for event in part.events]


def plain(history: History) -> list[Told]:
    return told(drained(assembly(), Server(history, Random(0), streaming=False).frames(0)))


@given(histories, st.randoms(use_true_random=False), st.sampled_from([0, 200, 1 << 20]))
def test_what_was_streamed_is_what_would_have_come_whole(history: History, random: Random, memory: int) -> None:
    spill = Spill(max_memory=memory)
    reader = assembly(spill=spill)
    found = told(drained(reader, Server(history, random, streaming=True).frames(0), random))
    assert found == plain(history)
    ids = [(lsn, event.ordinal) for lsn, event in found]
    assert ids == sorted(set(ids))
    assert reader.is_idle
    assert (spill.in_memory, spill.on_disk) == (0, 0)


@given(histories, st.randoms(use_true_random=False), st.integers(1, 10), st.integers(1, 3_000))
def test_cut_anywhere_and_resumed_each_event_comes_once_with_its_id(
    history: History, random: Random, max_rows: int, max_bytes: int
) -> None:
    reached, found = Offset(), list[Told]()
    limits = {"max_rows": max_rows, "max_bytes": max_bytes}
    for _ in range(200):
        server = Server(history, random, streaming=random.random() < 0.5)
        reader = assembly(reached, **limits)
        before = reached
        for batch in drained(reader, server.frames(reached.end), random):
            found += told([batch])
            reached = batch.reached
            if random.random() < 0.5:
                break
        else:
            break
        assert reached != before
    assert found == plain(history)


def told_after(everything: list[Told], delivered: list[Told], reached: Offset) -> list[Told]:
    """What would never come again, were this acknowledged: by its commit, or by its own place."""
    rest = everything[len(delivered) :]
    return [(lsn, event) for lsn, event in rest if lsn < reached.end or (lsn == reached.end and not event.ordinal)]


@given(histories, st.randoms(use_true_random=False), st.integers(1, 10))
def test_a_batch_is_whole_or_alone_and_acknowledges_nothing_that_is_not_delivered(
    history: History, random: Random, max_rows: int
) -> None:
    everything = plain(history)
    delivered: list[Told] = []
    reader = assembly(max_rows=max_rows)
    for batch in drained(reader, Server(history, random, streaming=True).frames(0), random):
        delivered += told([batch])
        lsn, last = delivered[-1]
        is_whole = not last.ordinal or all(told_lsn != lsn for told_lsn, _ in everything[len(delivered) :])
        assert is_whole or len(batch.parts) == 1
        assert batch.rows == sum(len(part.events) for part in batch.parts)
        # The split of one update, or one truncate, is not taken apart.
        assert batch.rows <= max(max_rows, 2)
        assert (batch.reached.lsn, batch.reached.ordinal) == (lsn, last.ordinal)
        assert not told_after(everything, delivered, batch.reached)
        if is_whole:
            assert batch.reached.end >= lsn
        # What is read already and not given counts for nothing.
        assert not told_after(everything, delivered, reader.reached)


@given(histories, st.randoms(use_true_random=False), st.integers(1, 10))
def test_a_batch_read_again_has_the_same_events(history: History, random: Random, max_rows: int) -> None:
    reached = Offset()
    for batch in drained(assembly(max_rows=max_rows), Server(history, random, streaming=True).frames(0)):
        again = assembly(reached, stop=batch.reached, max_rows=1)
        server = Server(history, random, streaming=random.random() < 0.5)
        found = list(drained(again, server.frames(reached.end), random))
        assert told(found) == told([batch])
        assert again.done
        assert found[-1].reached == batch.reached
        reached = batch.reached


@given(histories, st.randoms(use_true_random=False))
def test_markers_frame_every_transaction_and_are_counted(history: History, random: Random) -> None:
    found = told(drained(assembly(markers=True), Server(history, random, streaming=True).frames(0)))
    committed = [
        ends(place)[0] for place, item in enumerate(history) if isinstance(item, Transaction) and item.is_committed
    ]
    for lsn in committed:
        events = [event for told_lsn, event in found if told_lsn == lsn and event.ordinal]
        assert events[0].op == "begin"
        assert events[-1].op == "commit"
        assert [event.ordinal for event in events] == list(range(1, len(events) + 1))


def inserts(xid: int | None, *ids: int) -> list[Message]:
    return [Insert(1, rows(n), xid) for n in ids]


def fed(reader: Assembly, *messages: Message) -> list[Told]:
    return told(drained(reader, [(0, 0, encoded(message)) for message in messages]))


def described(*names: str, xid: int | None = None) -> Relation:
    return Relation(1, "public", "t", ReplicaIdentity.FULL, tuple(Column(n, TEXT, -1, True) for n in names), xid)


def test_a_table_described_in_a_rolled_back_subtransaction_stays_described() -> None:
    found = fed(
        assembly(),
        StreamStart(7, True), described("a", "b", xid=8), *inserts(8, 1), StreamStop(), StreamAbort(7, 8),
        StreamStart(7, False), *inserts(7, 2), StreamStop(), StreamCommit(7, 1000, 1048, 0),
    )  # fmt: skip
    assert [event.ordinal for _, event in found] == [1]


@pytest.mark.parametrize("rolled_back", [101, 102])
def test_a_streamed_message_that_may_be_of_a_part_rolled_back_is_not_guessed_at(rolled_back: int) -> None:
    reader = assembly()
    message = LogicalMessage(True, 1, "inside", b"x", 100)
    sent: list[Message] = [StreamStart(100, True), message, StreamStop(), StreamAbort(100, rolled_back)]
    reader.feed([(0, 0, encoded(each)) for each in sent])
    with pytest.raises(RollbackUnclear, match="a part of transaction 100, which has messages, was rolled back"):
        reader.batch()


def test_a_streamed_message_goes_with_all_of_its_transaction() -> None:
    reader = assembly()
    message = LogicalMessage(True, 1, "inside", b"x", 100)
    sent: list[Message] = [StreamStart(100, True), message, StreamStop(), StreamAbort(100, 100)]
    assert list(drained(reader, [(0, 0, encoded(each)) for each in sent])) == []
    sent[-1] = StreamCommit(100, 1_000, 1_048, 0)
    assert [event.op for _, event in told(drained(reader, [(0, 0, encoded(each)) for each in sent]))] == ["m"]


def test_a_table_described_anew_meanwhile_is_not_set_back_by_a_streamed_transaction() -> None:
    found = fed(
        assembly(),
        StreamStart(7, True), described("a", "b", xid=7), *inserts(7, 1), StreamStop(),
        Begin(500, 0, 9), described("a", "c"), *inserts(None, 2), Commit(500, 548, 0),
        StreamCommit(7, 1000, 1048, 0),
        Begin(2000, 0, 10), *inserts(None, 3), Commit(2000, 2048, 0),
    )  # fmt: skip
    assert [b'"c":' in event.event for _, event in found] == [True, False, True]


def test_a_heartbeat_moves_the_end_and_is_no_event() -> None:
    reader = assembly(Offset(end=10, lsn=5, ordinal=3))
    assert fed(reader, LogicalMessage(False, 900, HEARTBEAT, b"")) == []
    assert reader.reached == Offset(end=900, lsn=5, ordinal=3)


def test_it_is_idle_only_when_nothing_is_half_here() -> None:
    reader = assembly()
    fed(reader, Begin(1000, 0, 9), described("a", "b"), *inserts(None, 1))
    inside = reader.is_idle
    # What is streamed is sent again whole, until its commit is acknowledged.
    fed(reader, Commit(1000, 1048, 0), StreamStart(7, True), StreamStop())
    reader.batch()
    assert (inside, reader.is_idle) == (False, True)
    assert reader.reached == Offset(end=1048, lsn=1000, ordinal=1)


def test_a_transaction_in_progress_goes_to_disk_beyond_the_bound_and_is_refused_beyond_the_next() -> None:
    spill = Spill(max_memory=1_000, max_disk=5_000)
    reader = assembly(spill=spill)
    fed(reader, StreamStart(7, True), described("a", "b", xid=7), *inserts(7, *range(50)), StreamStop())
    assert spill.in_memory <= 1_000
    assert spill.on_disk > 0
    with pytest.raises(SpillFailed, match="more than 5000 bytes on disk"):
        fed(reader, StreamStart(7, False), *inserts(7, *range(500)), StreamStop())
    reader.close()
    assert (spill.in_memory, spill.on_disk) == (0, 0)


@pytest.mark.parametrize(
    "messages",
    [
        inserts(None, 1),
        [Commit(1, 2, 0)],
        [StreamCommit(7, 1000, 1048, 0)],
        [Begin(1000, 0, 9), *inserts(None, 1)],
        [StreamStop()],
        [Truncate((1,), False, False)],
    ],
)
def test_messages_out_of_place_are_refused(messages: list[Message]) -> None:
    with pytest.raises(MalformedChange):
        fed(assembly(), *messages)


def test_a_batch_that_cannot_be_read_again_is_an_error_and_no_other_batch() -> None:
    reader = assembly(stop=Offset(end=1_048, lsn=1_000, ordinal=3))
    with pytest.raises(MalformedChange, match="cannot be read again"):
        fed(reader, Begin(2000, 0, 9), described("a", "b"), *inserts(None, 1), Commit(2000, 2048, 0))
