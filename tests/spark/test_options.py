"""Options and times that a source takes, without Spark."""

import pyarrow as pa
import pytest

from strandline.errors import OptionError
from strandline.spark.ordered_options import SourceOptions
from strandline.spark.slice import LAST_MILLISECOND, for_spark
from strandline.wire.gather import SCHEMA

NEEDED = {"kafka.bootstrap.servers": "127.0.0.1:1", "topics": "t"}


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("slices", "10001", "option 'slices' is '10001'; it takes at most 10,000"),
        ("slices", "9" * 5_000, "it takes a whole number above 0"),
        ("slices", "²", "option 'slices' is '²'; it takes a whole number above 0"),
        ("maxAhead", "²s", "option 'maxAhead' is '²s'; it takes a time such as"),
        ("maxSpanPerEpoch", "²s", "option 'maxSpanPerEpoch' is '²s'; it takes a time such as"),
        ("maxSpanPerEpoch", "9" * 5_000 + "s", "it takes a time such as"),
        ("start", "-²h", "'-²h' is no start"),
        ("start", "-" + "9" * 5_000 + "h", "is no start"),
    ],
)
def test_a_number_that_is_none_or_too_large_is_refused_by_name(name: str, value: str, problem: str) -> None:
    with pytest.raises(OptionError) as caught:
        SourceOptions.parse({**NEEDED, name: value})
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"topcis": "t"}, "option 'topcis' is unknown; did you mean 'topics'?"),
        ({"slices": "0"}, "option 'slices' is '0'; it takes a whole number above 0"),
        ({"start": "erliest"}, "did you mean 'earliest'"),
        ({"start": "@"}, "'@' is no start; valid are -1h, 2026-01-01T00:00:00Z, earliest, latest"),
        ({"topics": "t,t"}, "topic 't' is named twice"),
        ({"start": "committed"}, "Spark keeps the position in its checkpoint"),
        ({"kafka.acks": "1"}, "option 'kafka.acks' is unknown"),
        ({"maxSpanPerEpoch": "5 days"}, "it takes a time such as"),
        ({"bufferBytes": "5"}, "a buffer of 5 bytes"),
        ({"isolation": "dirty"}, "option 'isolation' is 'dirty'"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError) as caught:
        SourceOptions.parse({**NEEDED, **options})
    assert problem in str(caught.value)


@pytest.mark.parametrize("end", ["latest", "2026-01-01T00:00:00Z"])
def test_a_stream_takes_no_end(end: str) -> None:
    with pytest.raises(OptionError, match="option 'end' is for a batch; a stream has none"):
        SourceOptions.parse({**NEEDED, "end": end}).for_stream()


def test_as_many_slices_as_may_be_are_taken() -> None:
    assert SourceOptions.parse({**NEEDED, "slices": "10000"}).slices == 10_000


def test_a_time_that_microseconds_cannot_hold_is_null_and_the_others_are_kept() -> None:
    stamps = [0, None, 2**60, LAST_MILLISECOND, LAST_MILLISECOND + 1, 2**63 - 1, 5]
    columns = {
        "key": [None] * 7,
        "value": [None] * 7,
        "topic": ["t"] * 7,
        "partition": [0] * 7,
        "offset": list(range(7)),
        "timestamp": pa.array(stamps, pa.int64()).cast(SCHEMA.field("timestamp").type),
        "headers": [[]] * 7,
    }
    arrays = [pa.array(columns[field.name], field.type) for field in SCHEMA]
    rows = for_spark(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA), pa.array([False] * 7))
    micros = rows["timestamp"].cast(pa.int64()).to_pylist()
    assert micros == [0, None, None, LAST_MILLISECOND * 1_000, None, None, 5_000]
