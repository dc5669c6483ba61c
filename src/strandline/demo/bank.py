"""A small bank whose accounts change: what was done to them, and whether a stream of changes tells the same.

Every change has a number of its own, which its row holds, so that each can be found again.
"""

import random
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, Self

import msgspec
import psycopg

from strandline.errors import Stalled
from strandline.stack import AcceptedRecord
from strandline.stack.processes import OVERLOADED

TABLE = "account"
# With all of a row before a change, a delete tells which change it undid.
CREATE = (
    "create table account (id int primary key, balance int not null, change int not null)",
    "alter table account replica identity full",
)
INSERT = b"insert into account values (%(id)s, %(more)s, %(change)s)"
UPDATE = b"update account set balance = balance + %(more)s, change = %(change)s where id = %(id)s"
DELETE = b"delete from account where id = %(id)s"
ACCOUNTS = 60
PAUSE = 0.01
ROLLED_BACK = 0.15
END_WITHIN = 300.0
"""The clerk ends after the transaction that it is at, of which nothing can be seen."""

Step = tuple[str, int]
"""What was done, and its number; a delete has the number of the change that it undid."""


class Clerk:
    """Inserts, updates and deletes accounts while it is entered; some of it is rolled back."""

    def __init__(self, dsn: str, seed: int) -> None:
        self._dsn = dsn
        self._chance = random.Random(seed)  # noqa: S311  (any changes will do)
        self._number = 0
        self._held: dict[int, int] = {}
        """Accounts that there are, each with the number of its last change."""
        self.kept: dict[int, list[Step]] = defaultdict(list)
        """What was done to each account and committed, in order."""
        self.rolled_back = 0
        self.failure: psycopg.Error | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="strandline-clerk", daemon=True)

    @property
    def changes(self) -> int:
        """How many were committed."""
        return sum(map(len, list(self.kept.values())))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(END_WITHIN)
        if error is None and self._thread.is_alive():
            raise Stalled("a transaction of the demo", f"took {END_WITHIN:g} s", OVERLOADED)

    def _work(self) -> None:
        try:
            with psycopg.connect(self._dsn) as database:
                while not self._ended.wait(PAUSE):
                    self._transaction(database)
        except psycopg.Error as error:
            self.failure = error

    def _transaction(self, database: "psycopg.Connection[tuple[object, ...]]") -> None:
        held, done = dict(self._held), list[tuple[int, Step]]()
        for _ in range(self._chance.choice((1, 2, 12))):
            done.append(self._change(database, held))
        if self._chance.random() < ROLLED_BACK:
            database.rollback()
            self.rolled_back += len(done)
            return
        database.commit()
        self._held = held
        for account, step in done:
            self.kept[account].append(step)

    def _change(self, database: "psycopg.Connection[tuple[object, ...]]", held: dict[int, int]) -> tuple[int, Step]:
        account = self._chance.randrange(ACCOUNTS)
        self._number += 1
        values = {"id": account, "change": self._number, "more": self._chance.randrange(-50, 100)}
        if account not in held:
            database.execute(INSERT, values)
            step = ("c", self._number)
        elif self._chance.random() < 0.25:
            database.execute(DELETE, values)
            return account, ("d", held.pop(account))
        else:
            database.execute(UPDATE, values)
            step = ("u", self._number)
        held[account] = self._number
        return account, step


class _Row(msgspec.Struct):
    id: int
    change: int


class _Source(msgspec.Struct):
    lsn: str
    ordinal: int


class _Event(msgspec.Struct):
    op: str
    before: _Row | None
    after: _Row | None
    source: _Source
    leadership: int


EVENT = msgspec.json.Decoder(_Event)


class Outcome(NamedTuple):
    """What arrived, held against what was done."""

    arrived: int
    """Records, repeats included."""
    repeats: int
    lost: int
    strange: int
    """Events of what was never committed."""
    disorder: int
    """First arrivals of a key before one that was done earlier."""
    began: Mapping[int, int]
    """When the first record of each leadership arrived, in milliseconds since 1970."""


def compared(kept: Mapping[int, Sequence[Step]], records: Iterable[AcceptedRecord]) -> Outcome:
    """Hold what arrived, shard by shard in order, against what was done."""
    places = {(key, step): at for key, steps in kept.items() for at, step in enumerate(steps)}
    seen: set[tuple[str, int]] = set()
    last: dict[int, int] = {}
    began: dict[int, int] = {}
    arrived = repeats = strange = disorder = 0
    for record in records:
        event = EVENT.decode(record.data)
        arrived += 1
        began[event.leadership] = min(record.arrived_ms, began.get(event.leadership, record.arrived_ms))
        id_ = (event.source.lsn, event.source.ordinal)
        if id_ in seen:
            repeats += 1
            continue
        seen.add(id_)
        row = event.after or event.before
        at = None if row is None else places.pop((row.id, (event.op, row.change)), None)
        if row is None or at is None:
            strange += 1
            continue
        disorder += at < last.get(row.id, -1)
        last[row.id] = max(at, last.get(row.id, -1))
    return Outcome(arrived, repeats, len(places), strange, disorder, began)
