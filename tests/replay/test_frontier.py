"""The law of the replay: no order of completion, rebalance or failure commits past what is unfinished."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from strandline.kafka.partition import Partition
from strandline.kafka.progress import Progress
from strandline.replay.spool import Spools
from strandline.units import Nanos
from strandline.wire.accumulator import Accumulator
from strandline.wire.traffic import Recording
from strandline.wire.traffic_pb2 import TrafficStream
from strandline.wire.transactions import Cause, ConnectionKey, Record, Transaction

PLACE = Partition("traffic", 0)
EXPIRY = Nanos(50)
REQUEST = b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@dataclass(eq=False)
class Open:
    """A transaction as an engine sees it."""

    transaction: Transaction
    is_over: bool = False
    is_answered: bool = False


class Member:
    """A member without sockets: the accumulator's sink, with claims that go back to Progress."""

    def __init__(
        self,
        progress: Progress,
        finished: Callable[[Transaction], None],
        gave_up: Callable[[ConnectionKey], None] = lambda _: None,
    ) -> None:
        self.progress = progress
        self.finished = finished
        self.gave_up = gave_up
        self.open: dict[Transaction, Open] = {}
        self.accumulator = Accumulator(self, Spools(1 << 20).make, expire_after=EXPIRY)

    def on_request(self, transaction: Transaction) -> None:
        self.open[transaction] = Open(transaction)

    def on_answer(self, transaction: Transaction) -> None:
        found = self.open.get(transaction)
        if found is not None:
            found.is_answered = True
            self.finish(found)

    def on_unsent(self, transaction: Transaction, cause: Cause) -> None:
        if cause is Cause.EXPIRED:
            self.gave_up(transaction.key)
        if cause not in {Cause.REASSIGNED, Cause.END}:
            self.finished(transaction)
            transaction.release()

    def on_close(self, key: ConnectionKey, partition: int, at: Nanos, cause: Cause) -> None:
        pass

    def finish(self, found: Open) -> None:
        if found.is_over and found.is_answered:
            del self.open[found.transaction]
            self.finished(found.transaction)
            found.transaction.release()


class Log(RuleBasedStateMachine):
    """Connections are written to a log in any cut; a member reads it, finishes in any order, loses it, begins again."""

    @initialize(
        connections=st.lists(
            st.tuples(st.integers(1, 4), st.lists(st.integers(0, 400), max_size=8), st.booleans(), st.booleans()),
            min_size=1,
            max_size=4,
        ),
        order=st.randoms(use_true_random=False),
    )
    def write(self, connections: list[tuple[int, list[int], bool, bool]], order: st.DrawFn) -> None:
        queues = [self._records(f"c{n}", *connection) for n, connection in enumerate(connections)]
        self.log: list[bytes] = []
        while any(queues):
            queue = order.choice([queue for queue in queues if queue])  # type: ignore[attr-defined]
            self.log.append(queue.pop(0))
        whole = Progress()
        whole.assign([PLACE])
        wanted: dict[str, set[int]] = defaultdict(set)
        self.progress = whole
        self.member = Member(whole, lambda transaction: None)
        self.next = 0
        while self.next < len(self.log):
            self._read()
        for transaction in self.member.open:
            wanted[transaction.id] = {record.offset for record in transaction.anchors}
        self.connections = {transaction.id: transaction.key for transaction in self.member.open}
        self.pipelined = {
            ConnectionKey("n", f"c{n}") for n, (*_, is_pipelined) in enumerate(connections) if is_pipelined
        }
        self.wanted = wanted
        """Every whole request by its id, with the records that hold it."""
        self.done: set[str] = set()
        self.committed = 0
        self.progress = Progress()
        self._begin()

    @staticmethod
    def _records(name: str, requests: int, cuts: list[int], closes: bool, pipelined: bool) -> list[bytes]:
        recording = Recording("n", name)
        records: list[bytes] = []
        at = 0
        content = [(True, REQUEST), (False, ANSWER)] * requests
        if pipelined:
            content = [(True, REQUEST * requests), (False, ANSWER * requests)]
        for is_read, data in content:
            pieces = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
            for start, stop in pairwise(pieces):
                at += 1
                (recording.read if is_read else recording.write)(Nanos(at), data[start:stop])
                if (start + at) % 3 == 0:
                    records += recording.take()
            if is_read:
                recording.end_of_request(Nanos(at))
        if closes:
            recording.close(Nanos(at))
        return records + recording.take(last=closes)

    def _begin(self) -> None:
        self.progress.assign([PLACE])
        self.member = Member(self.progress, lambda transaction: self.done.add(transaction.id), self._give_up)
        self.next = self.committed

    def _give_up(self, key: ConnectionKey) -> None:
        """A connection went silent inside a request: of what follows it, pipelined requests cannot be told apart."""
        if key in self.pipelined:
            for name in [name for name, owner in self.connections.items() if owner == key]:
                self.wanted.pop(name, None)

    def _read(self) -> None:
        claim = self.progress.register(PLACE, self.next, Nanos(0))
        progress = self.progress
        record = Record(0, self.next, 0, lambda _: progress.done(claim))
        self.member.accumulator.accept(record, TrafficStream.FromString(self.log[self.next]))
        self.next += 1

    @precondition(lambda self: self.next < len(self.log))
    @rule()
    def read(self) -> None:
        self._read()

    @precondition(lambda self: any(not found.is_over for found in self.member.open.values()))
    @rule(data=st.data())
    def target_answers(self, data: st.DataObject) -> None:
        found = data.draw(st.sampled_from([found for found in self.member.open.values() if not found.is_over]))
        found.is_over = True
        self.member.finish(found)

    @rule()
    def commit(self) -> None:
        moved = self.progress.take_commits().get(PLACE)
        if moved is not None:
            assert moved >= self.committed, "a commit went back"
            self.committed = moved

    @rule()
    def time_passes(self) -> None:
        self.member.accumulator.advance(0, Nanos((self.member.accumulator.time(0) or 0) + EXPIRY))

    @rule(in_good_order=st.booleans())
    def partition_goes_and_comes_back(self, in_good_order: bool) -> None:
        if in_good_order:
            self.member.accumulator.drop(0, Cause.REASSIGNED)
            self.commit()
        self.progress.revoke([PLACE])
        old = list(self.member.open.values())
        self._begin()
        # What another generation finishes late changes nothing.
        for found in old:
            found.transaction.release()
        assert not self.progress.take_commits()

    def teardown(self) -> None:
        """Whatever happened: who goes on from what is committed finishes all."""
        if hasattr(self, "wanted"):
            self.progress.revoke([PLACE])
            self._begin()
            while self.next < len(self.log):
                self._read()
            for found in list(self.member.open.values()):
                found.is_over = True
                self.member.finish(found)
            self.member.accumulator.drop(0, Cause.END)
            assert self.wanted.keys() <= self.done

    @invariant()
    def nothing_unfinished_is_committed(self) -> None:
        for name, records in getattr(self, "wanted", {}).items():
            if min(records) < self.committed:
                assert name in self.done, f"{name} in {records}, committed {self.committed}"


TestNoOrderCommitsWhatIsUnfinished = Log.TestCase
TestNoOrderCommitsWhatIsUnfinished.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
