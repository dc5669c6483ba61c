"""The options of `postgres_wal` and `kinesis`: what is missing, unknown or wrong is told in one line."""

import pytest

from strandline.cdc.assembly import Part
from strandline.cdc.rows import SCHEMA, rows, told_as
from strandline.errors import OptionError
from strandline.spark.kinesis_options import SinkOptions
from strandline.spark.wal_options import WalOptions
from strandline.wire.event import Event, Stamp

SOURCE = {"dsn": "postgresql:///shop", "slot": "s", "publications": "p, q"}
SINK = {"stream": "changes", "checkpointLocation": "here"}


def test_what_is_not_given_is_as_documented() -> None:
    source = WalOptions.parse(SOURCE)
    assert source.publications == ("p", "q")
    assert (source.is_flat, source.markers, source.in_progress) == (False, False, True)
    assert source.ordinals == "splitKeyChanges=false markers=false"
    assert source.columns == tuple(SCHEMA.names)
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


def test_rows_have_the_columns_that_are_wanted_in_their_own_order() -> None:
    wanted = WalOptions.parse({**SOURCE, "columns": "event,lsn"}).columns
    part = Part(Stamp(7, 1, 2, b"", b""), [Event(1, "c", "public", "t", "public.t/1", b"{}")])
    assert told_as(wanted) == "lsn bigint not null, event binary not null"
    assert rows([part], wanted).to_pylist() == [{"lsn": 7, "event": b"{}"}]
    assert rows([part]).select(["lsn", "event"]) == rows([part], wanted)
