"""Instances that wait to lead: what passes they outlive, with a line that says what it is."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psycopg
import pytest

from strandline.cdc.acknowledged import create_acknowledged_table
from strandline.cdc.config import CdcConfig, KinesisSection, PostgresSection
from strandline.cdc.lease import acquire, create_lease_table
from strandline.cdc.session import Session
from strandline.cdc.slot import create_slot
from strandline.cdc.watch import Watch
from strandline.cli.cdc import ASK_EVERY, _serve
from strandline.config import Secret
from strandline.errors import PostgresHindered
from tests.cdc.support import Place
from tests.support import TIMEOUT, wait_for


@pytest.fixture
def config(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CdcConfig:
    """All is there but the slot, and transactions that run are not waited for as long."""
    monkeypatch.setitem(create_slot.__kwdefaults__ or {}, "wait", 0.3)
    place.sql("create table t (id int primary key)", f"create publication {place.publication} for table t")
    with Session(place.dsn) as session:
        create_lease_table(session)
        create_acknowledged_table(session)
    return CdcConfig(
        postgres=PostgresSection(dsn=Secret(place.dsn), slot=place.slot, publication=place.publication),
        kinesis=KinesisSection(stream="s"),
        checkpoint=str(tmp_path / "checkpoint"),
        snapshot="never",
    )


@contextmanager
def read_only(place: Place) -> Iterator[None]:
    place.sql(f"alter database {place.name} set default_transaction_read_only = on")
    yield


@contextmanager
def transaction_that_runs(place: Place) -> Iterator[None]:
    with psycopg.connect(place.dsn) as connection:
        connection.execute("insert into t values (1)")
        yield


@contextmanager
def slot_read_elsewhere(place: Place) -> Iterator[None]:
    place.sql(f"select pg_create_logical_replication_slot('{place.slot}', 'pgoutput')")
    with place.reading(dsn=f"{place.dsn}?application_name=other"):
        yield


@pytest.mark.parametrize(
    ("hindrance", "line"),
    [
        (read_only, "read-only transaction; waiting to lead again"),
        (transaction_that_runs, "transactions still run"),
        (slot_read_elsewhere, "is read by somebody else ('other' at 127.0.0.1"),
    ],
)
def test_who_waits_outlives_what_passes(
    place: Place,
    config: CdcConfig,
    capsys: pytest.CaptureFixture[str],
    *,
    hindrance: Callable[[Place], AbstractContextManager[None]],
    line: str,
) -> None:
    stop, said = threading.Event(), list[str]()

    def has_said() -> bool:
        said.append(capsys.readouterr().err)
        return line in "".join(said) and "waiting to lead again" in "".join(said)

    with hindrance(place), Watch(config) as watch, ThreadPoolExecutor(1) as working:
        instance = working.submit(_serve, config, stop, watch)
        try:
            wait_for(lambda: instance.done() or has_said(), "it says what is in its way")
            assert not instance.done()
        finally:
            stop.set()
        assert instance.result(TIMEOUT) is None


def test_a_server_that_cannot_write_for_a_while_is_told_apart_from_one_that_refuses(
    place: Place, config: CdcConfig
) -> None:
    with read_only(place), pytest.raises(PostgresHindered):
        acquire(place.dsn, config.lease_name, "me", wait=ASK_EVERY)
