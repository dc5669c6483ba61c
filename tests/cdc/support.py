"""What tests of change capture share: a database with tables, a publication and a slot, and readers of it."""

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self

import psycopg

from strandline.cdc.replication import Frame, Replication, ReplicationSettings
from strandline.cdc.session import Session
from strandline.cdc.slot import SlotIdentity, SlotState, checked, look
from strandline.stack.postgres import Postgres
from tests.support import TIMEOUT, wait_for

numbers = itertools.count()


class Place:
    """A database of its own on a server. Its slot is named like it, and all its slots go with it."""

    def __init__(self, server: Postgres) -> None:
        self.server = server
        self.name = f"strand_{os.getpid()}_{next(numbers)}"
        self.slot = self.name
        self.publication = "changes"

    @property
    def dsn(self) -> str:
        """As a superuser."""
        return self.server.url.rsplit("/", 1)[0] + f"/{self.name}"

    def dsn_of(self, role: str) -> str:
        """As a role that `role` has made."""
        return f"postgresql://{role}:secret-of-{role}@{self.server.address}/{self.name}"

    def role(self, suffix: str, *options: str) -> str:
        """A new role that may log in."""
        name = f"{self.name}_{suffix}"
        self.sql(f"create role {name} login password 'secret-of-{name}' {' '.join(options)}")
        return name

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run each statement for itself; the rows of the last."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.cursor()
            for statement in statements:
                cursor.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def in_one(self, *statements: str) -> None:
        """Run all statements in one transaction."""
        self.sql("; ".join(["begin", *statements, "commit"]))

    def prepare(self, *statements: str, plugin: str = "pgoutput", published: str = "all tables") -> None:
        """Tables by the statements given, all of them published, and the slot."""
        self.sql(*statements, f"create publication {self.publication} for {published}")
        self.sql(f"select pg_create_logical_replication_slot('{self.slot}', '{plugin}')")

    def replication(self, *, work_mem: str = "64MB", dsn: str | None = None, **options: Any) -> Replication:
        """A reader of the slot, not yet started."""
        dsn = dsn or f"{self.dsn}?options=-c%20logical_decoding_work_mem%3D{work_mem}"
        return Replication(ReplicationSettings(dsn=dsn, slot=self.slot, publications=[self.publication], **options))

    @contextmanager
    def reading(self, lsn: int = 0, **options: Any) -> Iterator[Replication]:
        """A reader of the slot, started once nobody else reads it: who was closed just now stays for a moment."""
        wait_for(lambda: not self.is_read(), "the slot is free")
        with self.replication(**options) as replication:
            replication.start(lsn)
            yield replication

    def is_read(self) -> bool:
        """Whether somebody reads the slot."""
        return bool(self.sql(f"select 1 from pg_replication_slots where slot_name = '{self.slot}' and active"))

    def has_sent(self, lsn: str) -> bool:
        """Whether the slot's walsender has sent everything up to a position, or has ended."""
        return not self.sql(
            "select 1 from pg_stat_replication r join pg_replication_slots s on s.active_pid = r.pid "
            f"where s.slot_name = '{self.slot}' and r.sent_lsn < '{lsn}'"
        )

    def confirmed(self) -> int:
        """What the slot's reader has acknowledged."""
        (row,) = self.sql(
            f"select (confirmed_flush_lsn - '0/0')::bigint from pg_replication_slots where slot_name = '{self.slot}'"
        )
        return int(row[0])

    def __enter__(self) -> Self:
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            connection.execute(f"create database {self.name}".encode())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            mine = f"from pg_replication_slots where database = '{self.name}' or slot_name = '{self.slot}'"

            def are_gone() -> bool:
                # A reader whose instance was just killed may come back once.
                connection.execute(f"select pg_terminate_backend(active_pid) {mine} and active".encode())
                with suppress(psycopg.errors.ObjectInUse):
                    connection.execute(f"select pg_drop_replication_slot(slot_name) {mine} and not active".encode())
                return not connection.execute(f"select {mine}".encode()).fetchall()

            wait_for(are_gone, "the slots are dropped")
            connection.execute(f"drop database {self.name} with (force)".encode())
            roles = connection.execute(f"select rolname from pg_roles where rolname like '{self.name}\\_%'".encode())
            for (role,) in roles.fetchall():
                connection.execute(f"drop role {role}".encode())


def check_slot(session: Session, slot: str, *, at: int | None = None, kept: SlotIdentity | None = None) -> SlotState:
    """A slot as it stands now, if all changes after `at` can be read from it, and nobody else reads it."""
    return checked(session, slot, look(session, slot), at=at, kept=kept)


def take_until(replication: Replication, kind: bytes, count: int = 1) -> list[Frame]:
    """Frames up to so many messages of a kind."""
    found: list[Frame] = []
    deadline = time.monotonic() + TIMEOUT
    while sum(frame[2][:1] == kind for frame in found) < count:
        assert time.monotonic() < deadline, f"{len(found)} frames after {TIMEOUT:g} s"
        found += replication.take(1.0)
    return found
