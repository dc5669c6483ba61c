"""What Prometheus and OpenTelemetry are told of an instance: counts of the sink, lag of the slot, who leads."""

import re
import socket
import tempfile
import threading
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from strandline.cdc.config import CdcConfig, DeadLetterSection, KinesisSection, PostgresSection
from strandline.cdc.figures import Figures, Listening, summed, tell
from strandline.cdc.lease import acquire, create_lease_table
from strandline.cdc.sending import Sent
from strandline.cdc.session import Session
from strandline.cdc.snapshot import make_slot
from strandline.cdc.snapshot_record import SnapshotRecord
from strandline.cdc.watch import Watch
from strandline.config import Secret
from strandline.errors import CannotListen
from tests.cdc.support import Place
from tests.support import TIMEOUT, wait_for

PROGRESS = {
    "batchId": 7,
    "numInputRows": 12,
    "timestamp": "2026-11-16T09:17:43.250Z",
    "durationMs": {"triggerExecution": 200},
}


def config(place: Place, observe: str | None = "127.0.0.1:0") -> CdcConfig:
    return CdcConfig(
        postgres=PostgresSection(dsn=Secret(place.dsn), slot=place.slot),
        kinesis=KinesisSection(stream="s"),
        checkpoint="nowhere",
        observe=observe,
    )


def page(watch: Watch, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"{watch.address}{path}", timeout=TIMEOUT) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def figure(watch: Watch, name: str) -> float | None:
    found = re.search(rf"^strandline_cdc_{name} (\S+)$", page(watch, "/metrics")[1], re.MULTILINE)
    return float(found[1]) if found else None


def test_what_the_sink_tells_is_counted_and_what_the_slot_lags_is_seen(place: Place) -> None:
    place.prepare("create table t (id int primary key)")
    with Session(place.dsn) as session:
        create_lease_table(session)
    leadership = acquire(place.dsn, "s", "me", wait=timedelta(seconds=TIMEOUT), term=timedelta(minutes=2))
    assert leadership is not None
    with leadership, Watch(config(place)) as watch:
        assert page(watch, "/readyz") == (503, "it has not begun\n")
        watch.waits(None)
        assert page(watch, "/readyz") == (200, "ok\n")
        assert (figure(watch, "leading"), figure(watch, "leadership")) == (0, None)
        place.sql("insert into t select generate_series(1, 1000)")
        wait_for(lambda: (figure(watch, "lag_bytes") or 0) > 50_000, "the lag is seen")
        wait_for(lambda: (figure(watch, "lag_seconds") or 0) > 0, "it grows older")
        wait_for(lambda: figure(watch, "postgres_up") == 1, "Postgres answers")
        with watch.leading(leadership):
            assert page(watch, "/readyz") == (503, "Spark starts, or the rows that are there are sent first\n")
            told = Figures(
                epoch=1, records=10, bytes=900, requests=4, retried=3, throttled=2, dead_lettered=1, delay_s=0.5
            )
            for _ in range(2):
                tell(watch.figures, told)
            wait_for(lambda: figure(watch, "events_total") == 20, "both are heard")
            watch.epoch(PROGRESS)
            assert page(watch, "/readyz")[0] == 200
            for name, value in {
                "bytes_total": 1800,
                "requests_total": 8,
                "retries_total": 6,
                "throttled_total": 4,
                "dead_letters_total": 2,
                "leading": 1,
                "leadership": leadership.number,
                "leaderships_total": 1,
                "delay_seconds": 0.5,
                "epoch_seconds_count": 1,
                "epoch_seconds_sum": 0.2,
            }.items():
                assert figure(watch, name) == value, name
            assert (figure(watch, "frontier_age_seconds") or -1) >= 0
            assert 0 < (figure(watch, "lease_seconds") or 0) <= 120
        assert figure(watch, "leading") == 0


def test_rows_of_a_snapshot_are_counted_and_how_far_it_is_can_be_seen_by_all(place: Place) -> None:
    place.sql("create table a (id int primary key)", "create table b (id int primary key)")
    place.sql("create publication changes for table a, b")
    with Watch(config(place)) as watch:
        wait_for(lambda: figure(watch, "postgres_up") == 1, "it has looked")
        assert (figure(watch, "snapshot_tables"), figure(watch, "snapshot_rows_total")) == (None, 0)
        record = SnapshotRecord(place.dsn, place.slot, 1, "lease")
        with make_slot(place.dsn, record) as snapshot:
            published = snapshot.tables("changes")
            record.begin_tables(snapshot.view.point, [(table, 2) for table in published], published)
        record.add(published[0].oid, rows=10, chunks=2)
        record.add(published[1].oid, rows=5, chunks=1)
        wait_for(lambda: figure(watch, "snapshot_chunks_done") == 3, "it is seen")
        found = [figure(watch, f"snapshot_{name}") for name in ("tables", "tables_finished", "chunks", "finished")]
        assert found == [2, 1, 4, 0]
        record.finish()
        wait_for(lambda: figure(watch, "snapshot_finished") == 1, "its end is seen")
        tell(watch.figures, summed(None, [Sent(records=9, bytes=90), Sent(records=5, dead_lettered=1)]))
        wait_for(lambda: figure(watch, "snapshot_rows_total") == 15, "they are counted")
        assert [figure(watch, f"{name}_total") for name in ("events", "bytes", "dead_letters")] == [14, 90, 1]


def test_dead_letters_are_told_of_though_nobody_observes(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    settings = msgspec.structs.replace(config(place, None), dead_letters=DeadLetterSection(directory="dead"))
    sent = [Sent(records=1), Sent(dead_lettered=1, first_letter="0/12 3: too large"), Sent(dead_lettered=2)]
    with Watch(settings) as watch:
        tell(watch.figures, summed(1, sent))
        wait_for(lambda: caplog.messages, "it is told")
        # Within the time of one line: it waits, and is told at the end at the latest.
        tell(watch.figures, summed(2, sent[:2]))
    told = "records that the stream does not take, put away in directory dead: "
    assert caplog.messages == [
        f"{told}3; the first is 0/12 3: too large",
        f"{told}1, 4 since the start; the first is 0/12 3: too large",
    ]


def test_its_making_opens_nothing_and_what_cannot_be_served_leaves_nothing_open(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def opened() -> list[str]:
        threads = [thread.name for thread in threading.enumerate() if thread.name == "strandline-figures"]
        return threads + [each.name for each in tmp_path.iterdir()]

    with socket.create_server(("127.0.0.1", 0)) as taken:
        watch = Watch(config(place, f"127.0.0.1:{taken.getsockname()[1]}"))
        assert opened() == []
        with pytest.raises(CannotListen, match=r"; change observe in the file$"), watch:
            pass
    assert opened() == []


def test_a_postgres_that_is_away_is_told_and_the_pages_stay(place: Place) -> None:
    absent = CdcConfig(
        postgres=PostgresSection(dsn=Secret("postgresql://u@127.0.0.1:1/none")),
        kinesis=KinesisSection(stream="s"),
        checkpoint="nowhere",
        observe="127.0.0.1:0",
    )
    with Watch(absent) as watch:
        wait_for(lambda: figure(watch, "postgres_up") == 0, "it is told")
        assert figure(watch, "lag_bytes") is None


def test_a_postgres_that_answers_is_up_though_the_slot_cannot_be_read(place: Place) -> None:
    place.prepare(plugin="$libdir/pgoutput")
    with Watch(config(place)) as watch:
        wait_for(lambda: figure(watch, "postgres_up") == 1, "it is told")
        assert figure(watch, "lag_bytes") is None


def test_an_epoch_is_a_span_where_somebody_traces(place: Place) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with Watch(config(place, None), provider.get_tracer("test")) as watch:
        assert watch.address is None
        watch.epoch(PROGRESS)
    (span,) = exporter.get_finished_spans()
    assert (span.attributes or {})["strandline.epoch"] == 7
    begun = datetime(2026, 11, 16, 9, 17, 43, 250_000, tzinfo=UTC)
    assert span.start_time == int(begun.timestamp() * 1e6) * 1_000
    assert (span.end_time or 0) - (span.start_time or 0) == 200_000_000


def test_figures_that_nobody_hears_or_that_are_none_do_no_harm() -> None:
    heard: list[Figures] = []
    with Listening(heard.append) as listening:
        tell(listening.place, Figures(epoch=1))
        wait_for(lambda: heard, "it is heard")
    tell(listening.place, Figures(epoch=2))
    assert [figures.epoch for figures in heard] == [1]
