"""Results compared, record by record, in Arrow batches: one small row for each exchange, and nothing else is kept.

The first exchanges of each place that differs carry their texts with them as examples, so results are read only once.
"""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from strandline.errors import MalformedResult
from strandline.report.compare import Compared, compare
from strandline.report.exchange import Exchange, read_exchange
from strandline.report.rules import Rules
from strandline.report.summary import Verdict
from strandline.report.texts import example_of
from strandline.spark.worker import settle

ROWS = 5_000
EXAMPLES_A_PLACE = 2
MOST_EXAMPLES = 400
"""For each task, at most 16 KiB of text each side."""

DIFFERENCE = pa.struct(
    [
        ("kind", pa.string()),
        ("path", pa.string()),
        ("change", pa.string()),
        ("source", pa.string()),
        ("target", pa.string()),
        ("source_hash", pa.int64()),
        ("target_hash", pa.int64()),
        ("ruled", pa.bool_()),
    ]
)
ARROW = pa.schema(
    [
        ("problem", pa.string()),
        ("id", pa.string()),
        ("connection", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("ordinal", pa.int32()),
        ("shape", pa.string()),
        ("question", pa.int64()),
        ("answered", pa.bool_()),
        ("has_source", pa.bool_()),
        ("compared", pa.bool_()),
        ("source_status", pa.int32()),
        ("target_status", pa.int32()),
        ("source_us", pa.int64()),
        ("target_us", pa.int64()),
        ("source_time_us", pa.int64()),
        ("sent_us", pa.int64()),
        ("lateness_us", pa.int64()),
        ("error", pa.string()),
        ("differences", pa.list_(pa.field("element", DIFFERENCE))),
        ("example", pa.binary()),
    ]
)
MAX_NAME = 1_000
MAX_ERROR = 500


def schema() -> StructType:
    """The same for Spark."""
    return from_arrow_schema(ARROW)


def compared(results: DataFrame, rules: Rules) -> DataFrame:
    """One row for each record of `results.value`. A record that is no result has its `problem` alone."""
    return results.select("value").mapInArrow(_comparing(rules), schema())


def _comparing(rules: Rules) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        examples = _Examples()
        for batch in batches:
            for at in range(0, batch.num_rows, ROWS):
                values = batch.column(0).slice(at, ROWS).to_pylist()
                rows = [_row(value, rules, examples) for value in values]
                columns = zip(*rows, strict=True)
                arrays = [pa.array(column, field.type) for column, field in zip(columns, ARROW, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=ARROW)

    return run


def _row(value: bytes | None, rules: Rules, examples: "_Examples") -> tuple[Any, ...]:
    try:
        exchange = read_exchange(value)
        found = compare(exchange, rules)
        example = examples.take(exchange, found)
    except MalformedResult as error:
        return (str(error)[:MAX_ERROR], *([None] * (len(ARROW) - 1)))
    source, target = exchange.source_response, exchange.target_response
    return (
        None,
        exchange.id[:MAX_NAME],
        exchange.connection[:MAX_NAME],
        exchange.partition,
        exchange.offset,
        exchange.ordinal,
        found.shape,
        found.question,
        found.is_answered,
        found.has_source,
        found.is_compared,
        None if source is None else source.status,
        None if target is None else target.status,
        exchange.source_us,
        exchange.target_us,
        exchange.source_time_us,
        exchange.sent_us,
        exchange.lateness_us,
        None if exchange.error is None else exchange.error[:MAX_ERROR],
        [
            (
                each.kind.value,
                each.path,
                each.change.value,
                each.source,
                each.target,
                each.source_hash,
                each.target_hash,
                each.is_ruled,
            )
            for each in found.differences
        ],
        example,
    )


class _Examples:
    """Chooses the exchanges of one task that keep their texts."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, ...], int] = {}
        self._left = MOST_EXAMPLES

    def take(self, exchange: Exchange, found: Compared) -> bytes | None:
        """The texts, if the exchange is among the first of its shape, of those that failed, or of a difference."""
        keys: list[tuple[str, ...]] = [(found.shape,)]
        if not found.is_answered:
            keys.append((found.shape, "failed"))
        keys += [(found.shape, each.kind.value, each.path, each.change.value) for each in found.differences]
        wanting = [key for key in keys if self._counts.get(key, 0) < EXAMPLES_A_PLACE]
        if not wanting or not self._left:
            return None
        self._left -= 1
        for key in wanting:
            self._counts[key] = self._counts.get(key, 0) + 1
        return msgspec.json.encode(example_of(exchange, Verdict.SAME))
