"""People who write to tables at once, by a seed: transactions of every kind, most of them committed.

Each table has the columns `id`, `version` and `note`, and others that come and go.
"""

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Self

import psycopg

from tests.cdc.support import Place
from tests.support import TIMEOUT

KEYS = 40
# Keys of rows that come many at once, by COPY or in large transactions.
MANY = 1_000
COLUMNS = ("red", "green", "blue")
TYPES = ("int", "bigint", "text")
MOST_TABLES = 3
PAUSE = 0.06
# Of log that the slot has not acknowledged: on a slow machine a long trial would else end with an hour's work to do.
MOST_AHEAD = 32 << 20
AHEAD = """
    select coalesce(max(pg_current_wal_flush_lsn() - confirmed_flush_lsn), 0) from pg_replication_slots
    where slot_name = %s"""

Database = psycopg.Connection[tuple[Any, ...]]
# What happens to those who write side by side: locks that do not come, keys and names taken, columns gone.
CONFLICTS = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.UniqueViolation,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.DuplicateColumn,
    psycopg.errors.DuplicateTable,
    psycopg.errors.FeatureNotSupported,  # a plan of before the table's columns changed
    psycopg.errors.InvalidTextRepresentation,
)


class Load:
    """Writes from two threads until it is left; raises what went wrong in them."""

    def __init__(self, place: Place, seed: int, *, publication: str, writers: int = 2) -> None:
        self._place = place
        self._publication = publication
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(f"{seed} {number}"),)) for number in range(writers)
        ]
        self.committed: Counter[str] = Counter()
        """How many transactions of each kind."""
        self.conflicts = 0

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(TIMEOUT)
            assert not thread.is_alive(), "somebody still writes"
        if self._failure is not None:
            raise self._failure

    def _run(self, chance: random.Random) -> None:
        try:
            while not self._stop.is_set():
                try:
                    # Nobody waits for a lock for ever.
                    with psycopg.connect(
                        self._place.dsn, options="-c lock_timeout=500ms", connect_timeout=5
                    ) as database:
                        self._write(database, chance)
                except psycopg.OperationalError:
                    # The server is away, or has just ended this session.
                    self._stop.wait(0.2)
        except Exception as error:  # noqa: BLE001  (raised where it is left)
            self._failure = error

    def _write(self, database: Database, chance: random.Random) -> None:
        while not self._stop.wait(chance.uniform(0, 2 * PAUSE)):
            if self._is_far_ahead(database):
                continue
            kind = chance.choices(list(KINDS), list(WEIGHTS.values()))[0]
            try:
                writer = Writer(database, chance, self._publication)
                KINDS[kind](writer)
                if chance.random() < 0.15:
                    database.rollback()
                else:
                    database.commit()
                    self.committed[kind] += 1
            except CONFLICTS:
                database.rollback()
                self.conflicts += 1

    def _is_far_ahead(self, database: Database) -> bool:
        ((ahead,),) = database.execute(AHEAD, (self._place.slot,)).fetchall()
        database.rollback()
        return bool(ahead > MOST_AHEAD)


class Writer:
    """One transaction."""

    def __init__(self, database: Database, chance: random.Random, publication: str) -> None:
        self._database = database
        self._chance = chance
        self._publication = publication
        rows = self._ask("select tablename from pg_tables where schemaname = 'public' order by 1")
        self._tables = [row[0] for row in rows]
        self._table = chance.choice(self._tables)

    def short(self) -> None:
        for _ in range(self._chance.choice([1, 1, 2, 5])):
            self._change()

    def long(self) -> None:
        """Open while others come and go."""
        for _ in range(self._chance.randrange(5, 20)):
            self._change()
            time.sleep(0.03)

    def with_savepoints(self) -> None:
        """Parts of parts, some of them rolled back."""
        open_: list[str] = []
        names = (f"part_{number}" for number in itertools.count())
        for _ in range(self._chance.randrange(4, 16)):
            match self._chance.randrange(4):
                case 0:
                    open_.append(next(names))
                    self._do(f"savepoint {open_[-1]}")
                case 1 if open_:
                    at = self._chance.randrange(len(open_))
                    self._do(f"rollback to savepoint {open_[at]}")
                    open_ = open_[: at + 1]
                case 2 if open_:
                    self._do(f"release savepoint {open_.pop()}")
                case _:
                    self._change()

    def copied(self) -> None:
        first = MANY * self._chance.randrange(1, 20)
        count = self._chance.randrange(10, 120)
        self._do(f"delete from {self._table} where id between {first} and {first + count}")
        with self._database.cursor().copy(f"copy {self._table} (id, version, note) from stdin".encode()) as copy:
            for key in range(first, first + count):
                copy.write_row((key, 1, "copied"))

    def large(self) -> None:
        """Larger than what Postgres keeps before it streams, and than an epoch."""
        first = MANY * self._chance.randrange(20, 24)
        count = self._chance.randrange(600, 900)
        keys = f"id between {first} and {first + count}"
        self._do(f"delete from {self._table} where {keys}")
        insert = f"insert into {self._table} (id, version, note) select n, 1, repeat('y', 60) from "
        self._do(f"{insert} generate_series({first}, {first + count // 2}) n")
        self._do("savepoint half")
        if self._chance.random() < 0.2:
            # A stream of the transaction does not tell whether it is taken back with what follows.
            self._say()
        self._do(f"{insert} generate_series({first + count // 2 + 1}, {first + count}) n")
        if self._chance.random() < 0.5:
            self._do("rollback to savepoint half")
            self._do(f"update {self._table} set version = 2 where {keys}")
        self._change()

    def truncated(self) -> None:
        self._change()
        self._do(f"truncate {', '.join({self._table, self._chance.choice(self._tables)})}")
        self._change()

    def altered(self) -> None:
        """Columns come, go, are called otherwise and change their type, between changes of rows."""
        self._change()
        columns = self._columns()
        free = [name for name in COLUMNS if name not in columns]
        inside = self._chance.random() < 0.3
        if inside:
            self._do("savepoint before")
        match self._chance.randrange(4):
            case 0 if columns:
                how = f"drop column {self._chance.choice(columns)}"
            case 1 if columns and free:
                how = f"rename column {self._chance.choice(columns)} to {self._chance.choice(free)}"
            case 2 if columns:
                name, type_ = self._chance.choice(columns), self._chance.choice(TYPES)
                how = f"alter column {name} type {type_} using {name}::{type_}"
            case _ if free:
                default = self._chance.choice(["", " default 7", " not null default (random() * 100)::int"])
                how = f"add column {self._chance.choice(free)} int{default}"
            case _:
                how = f"drop column {columns[0]}"
        self._do(f"alter table {self._table} {how}")
        self._change()
        if inside:
            self._do("rollback to savepoint before")
        self._change()

    def joined(self) -> None:
        """A table more, published from its first row on."""
        if len(self._tables) < MOST_TABLES:
            name = f"item_{len(self._tables)}"
            self._do(f"create table {name} (id int primary key, version int not null, note text)")
            self._do(f"select kept.watch('{name}')")
            self._do(f"alter publication {self._publication} add table {name}")
            self._do(f"insert into {name} values (1, 1, 'first')")

    def _columns(self) -> list[str]:
        rows = self._ask(
            "select attname from pg_attribute where attrelid = %s::regclass and attname = any (%s) order by 1",
            self._table,
            list(COLUMNS),
        )
        return [row[0] for row in rows]

    def _change(self) -> None:
        """Of one row."""
        key, other = (self._chance.randrange(KEYS) for _ in range(2))
        table = self._table
        match self._chance.randrange(7):
            case 0 | 1:
                # One in four is stored apart, and not sent again when it does not change.
                note = "x" if self._chance.random() < 0.75 else self._chance.randbytes(4_000).hex()
                self._do(
                    f"insert into {table} (id, version, note) values (%s, 1, %s) "
                    f"on conflict (id) do update set version = {table}.version + 1",
                    key,
                    note,
                )
            case 2:
                self._do(f"update {table} set version = version + 1 where id = %s", key)
            case 3:
                self._do(f"delete from {table} where id = %s", key)
            case 4:
                columns = self._columns()
                if columns:
                    self._do(f"update {table} set {self._chance.choice(columns)} = '{key}' where id < %s", other // 4)
            case 5:
                self._say()
            case _:
                self._do(
                    f"update {table} set id = %s where id = %s and not exists (select from {table} where id = %s)",
                    other,
                    key,
                    other,
                )

    def _say(self) -> None:
        """A message in the log."""
        self._do("select kept.say(%s)", self._chance.randrange(KEYS))

    def _do(self, statement: str, *values: object) -> None:
        self._database.execute(statement.encode(), values or None, prepare=False)

    def _ask(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        return self._database.execute(statement.encode(), values or None, prepare=False).fetchall()


WEIGHTS = {
    "short": 50, "long": 6, "with_savepoints": 10, "copied": 3, "large": 1, "truncated": 2, "altered": 5, "joined": 1,
}  # fmt: skip
KINDS: dict[str, Callable[[Writer], None]] = {name: getattr(Writer, name) for name in WEIGHTS}
