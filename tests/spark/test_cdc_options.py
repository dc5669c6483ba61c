"""The options of `postgres_wal` and `kinesis`: what is missing, unknown or wrong is told in one line."""

from pathlib import Path

import pytest

from strandline.cdc.assembly import Part
from strandline.cdc.config import (
    CdcConfig,
    DeadLetterSection,
    KafkaPlace,
    KinesisSection,
    PostgresSection,
    SpillSection,
)
from strandline.cdc.rows import SCHEMA, rows, told_as
from strandline.config import Secret
from strandline.errors import OptionError
from strandline.spark.kinesis_options import SinkOptions
from strandline.spark.pipeline import served_at
from strandline.spark.wal_options import WalOptions
from strandline.wire.event import Event, Stamp

SOURCE = {"dsn": "postgresql:///shop", "slot": "s", "publications": "p, q"}
SINK = {"stream": "changes", "checkpointLocation": "here"}


def test_what_is_not_given_is_as_documented() -> None:
    source = WalOptions.parse(SOURCE)
    assert source.publications == ("p", "q")
    assert (source.is_flat, source.markers, source.in_progress) == (False, False, True)
    assert source.ordinals == 'splitKeyChanges=false markers=false publications=["p","q"] partitionKey=null'
    assert source.columns == tuple(SCHEMA.names)
    assert (source.spill_directory, source.max_spill_bytes) == (None, 64 << 30)
    sink = SinkOptions.parse(SINK)
    assert (sink.lease, sink.dead_letters(), sink.sending.in_flight) == (None, None, 8)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"slot": ""}, "option 'slot' is missing"),
        ({"slto": "x"}, "option 'slto' is unknown; did you mean 'slot'?"),
        ({"markers": "yes"}, "option 'markers' is 'yes'"),
        ({"maxRowsPerEpoch": "0"}, "takes a whole number above 0"),
        ({"idleEvery": "often"}, "takes a time such as"),
        ({"form": "round"}, "option 'form' is 'round'"),
        ({"columns": "lsn, evnt"}, "option 'columns': 'evnt' is unknown; did you mean 'event'?"),
    ],
)
def test_a_wrong_option_of_the_source_is_refused(changed: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError) as error:
        WalOptions.parse({**SOURCE, **changed})
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"steram": "x"}, "option 'steram' is unknown; did you mean 'stream'?"),
        ({"deadLetterTopic": "dead"}, "needs 'kafka.bootstrap.servers'"),
        ({"deadLetterTable": "dead"}, "needs 'dsn'"),
        ({"deadLetterTopic": "a", "deadLetterDirectory": "b"}, "exclude each other"),
        ({"leadership": "3"}, "option 'leadership' needs 'lease'"),
        ({"lease": "shop", "leadership": "3"}, "option 'lease' needs 'dsn'"),
        ({"inFlight": "1000"}, "in_flight is from 1 to 256"),
        ({"maxRecordBytes": "99999999999"}, "max_record_bytes is from 1 to"),
    ],
)
def test_a_wrong_option_of_the_sink_is_refused(changed: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError) as error:
        SinkOptions.parse({**SINK, **changed})
    assert problem in str(error.value)


def test_where_large_transactions_are_kept_goes_from_the_file_to_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql:///shop")
    config = CdcConfig(
        postgres=PostgresSection(),
        kinesis=KinesisSection(stream="s"),
        checkpoint="c",
        spill=SpillSection(directory="/large", bytes=1 << 40),
    )
    settings = WalOptions.parse(config.source_options(1)).changes("shop", {})
    assert (settings.spill_directory, settings.max_spill_bytes) == (Path("/large"), 1 << 40)


def test_rows_are_served_at_the_drivers_address_where_tasks_are_elsewhere() -> None:
    for master in ("local[2,4]", "local-cluster[2,1,1024]"):
        assert served_at(master, "db.example") == {}
    for master in ("spark://m.example:7077", "yarn", "k8s://https://m.example"):
        options = {**SOURCE, **served_at(master, "driver.example")}
        assert WalOptions.parse(options).serve_at == "driver.example"


def test_the_settings_of_a_topic_for_dead_letters_reach_the_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql:///shop")
    settings = {"security.protocol": "SASL_SSL", "sasl.password": "hidden"}
    kafka = KafkaPlace(topic="t", brokers="b:1", settings={name: Secret(value) for name, value in settings.items()})
    config = CdcConfig(
        postgres=PostgresSection(),
        kinesis=KinesisSection(stream="s"),
        checkpoint="c",
        dead_letters=DeadLetterSection(kafka=kafka),
    )
    sink = SinkOptions.parse(config.sink_options(1))
    assert dict(sink.kafka) == {"bootstrap.servers": "b:1", **settings}
    assert "hidden" not in f"{config} {sink}"


def test_every_setting_that_numbers_events_is_kept_and_no_other() -> None:
    def ordinals(**changed: str) -> str:
        return WalOptions.parse({**SOURCE, **changed}).ordinals

    split = {"splitKeyChanges": "true"}
    numbered = [{}, {"publications": "p"}, {"markers": "true"}, split, {**split, "partitionKey": "{id}"}]
    assert len({ordinals(**changed) for changed in numbered}) == len(numbered)
    # Without it, an update is one event whatever its key is made of.
    for changed in ({"partitionKey": "{id}"}, {"publications": "q,p"}, {"form": "flat"}, {"maxRowsPerEpoch": "1"}):
        assert ordinals(**changed) == ordinals()


def test_rows_have_the_columns_that_are_wanted_in_their_own_order() -> None:
    wanted = WalOptions.parse({**SOURCE, "columns": "event,lsn"}).columns
    part = Part(Stamp(7, 1, 2, b"", b""), [Event(1, "c", "public", "t", "public.t/1", b"{}")])
    assert told_as(wanted) == "lsn bigint not null, event binary not null"
    assert rows([part], wanted).to_pylist() == [{"lsn": 7, "event": b"{}"}]
    assert rows([part]).select(["lsn", "event"]) == rows([part], wanted)
