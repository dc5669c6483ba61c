"""The bank of `strandline demo cdc`: what is lost, repeated, out of order or never done is told, nothing else is."""

import json
import random
import re
import sys

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.demo.bank import CREATE, TABLE, Clerk, Step, compared
from strandline.stack import AcceptedRecord
from strandline.stack.postgres import Postgres
from tests.support import TIMEOUT, run_strandline, wait_for

KEPT: dict[int, list[Step]] = {1: [("c", 1), ("u", 2), ("d", 2), ("c", 5)], 2: [("c", 3), ("u", 4)]}


def record(number: int, key: int, step: Step, leadership: int = 1) -> AcceptedRecord:
    row = {"id": key, "change": step[1], "balance": 0}
    event = {
        "leadership": leadership,
        "op": step[0],
        "before": row if step[0] == "d" else None,
        "after": None if step[0] == "d" else row,
        "source": {"lsn": f"0/{number:X}", "ordinal": 1},
    }
    return AcceptedRecord(str(number), 1_000 + number, f"account/{key}", json.dumps(event).encode())


def all_of_it() -> list[AcceptedRecord]:
    steps = [(key, step) for key, steps in KEPT.items() for step in steps]
    return [record(number, key, step) for number, (key, step) in enumerate(steps)]


def test_all_in_order_with_repeats_is_nothing_but_repeats() -> None:
    records = all_of_it()
    found = compared(KEPT, [*records, *records[2:4]])
    assert found[:5] == (8, 2, 0, 0, 0)
    assert found.began == {1: 1_000}


@given(st.sets(st.integers(0, 5)))
def test_every_change_that_is_missing_is_counted(missing: set[int]) -> None:
    found = compared(KEPT, [each for at, each in enumerate(all_of_it()) if at not in missing])
    assert found[:5] == (6 - len(missing), 0, len(missing), 0, 0)


def test_what_is_out_of_order_or_was_never_done_is_counted() -> None:
    first, second, *rest = all_of_it()
    assert compared(KEPT, [second, first, *rest]).disorder == 1
    assert compared(KEPT, [*all_of_it(), record(90, 1, ("u", 77), leadership=2)])[:5] == (7, 0, 0, 1, 0)


def test_what_the_clerk_has_kept_is_what_the_table_holds(postgres: Postgres) -> None:
    name = f"bank_{random.randrange(1 << 40)}"
    with psycopg.connect(postgres.url, autocommit=True) as server:
        server.execute(f"create database {name}".encode())
        dsn = postgres.url.rsplit("/", 1)[0] + f"/{name}"
        try:
            with psycopg.connect(dsn, autocommit=True) as database:
                for statement in CREATE:
                    database.execute(statement.encode())
                with Clerk(dsn, 3) as clerk:
                    wait_for(lambda: (clerk.changes > 300 and clerk.rolled_back) or clerk.failure, "much is done")
                assert clerk.failure is None
                found: dict[int, int] = dict(database.execute(f"select id, change from {TABLE}".encode()).fetchall())
            assert found == {key: steps[-1][1] for key, steps in clerk.kept.items() if steps[-1][0] != "d"}
        finally:
            server.execute(f"drop database {name} with (force)".encode())


@pytest.mark.timeout(12 * TIMEOUT)
def test_the_demo_whole_loses_nothing_though_its_leader_is_killed() -> None:
    result = run_strandline("demo", "cdc", "--seconds", "3", timeout=10 * TIMEOUT)
    sys.stdout.write(result.stdout + result.stderr)
    assert result.returncode == 0
    for name in ("lost", "out of order", "of what was rolled back"):
        assert re.search(rf"{name}\s+[│|]\s+0 ", result.stdout), name
    assert re.search(r"fail-over\s+[│|]\s+[\d.]+ s", result.stdout)
