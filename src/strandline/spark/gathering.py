"""One row for each request, in the order of its connection: what was sent again is one, what was sent too early shows.

All rows of a connection come to one task, sorted, so each row is looked at beside the one before it and nothing else.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from strandline.report.endpoints import OTHERS
from strandline.spark.comparing import ARROW as COMPARED

KEPT = [name for name in COMPARED.names if name not in {"problem", "shape", "example"}]
ARROW = pa.schema(
    [
        *(COMPARED.field(name) for name in KEPT),
        ("endpoint", pa.string()),
        ("has_example", pa.bool_()),
        ("out_of_order", pa.bool_()),
        ("opens", pa.bool_()),
    ]
)
NEVER = -1
LATEST = 2**61

Numbers = NDArray[np.int64]


def gathered(compared: DataFrame, endpoints: Mapping[str, str]) -> DataFrame:
    """One row for each request.

    A request that was sent again has the first answer that came, for a repeat may find what the first one has made. But
    its place in the order is that of the last sending, behind which the rest of its connection was sent again too.
    """
    rows = compared.where("problem is null").repartition("connection")
    in_order = rows.sortWithinPartitions("connection", "partition", "offset", "ordinal")
    return in_order.mapInArrow(_gathering(dict(endpoints)), from_arrow_schema(ARROW))


def _gathering(endpoints: dict[str, str]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        order = _Order()
        held: pa.RecordBatch | None = None
        for batch in batches:
            if not batch.num_rows:
                continue
            rows = batch if held is None else pa.concat_batches([held, batch])
            starts = _starts(rows)
            # The last request may go on in the next batch.
            held = rows.slice(int(starts[-1]))
            if len(starts) > 1:
                yield _gather(rows.slice(0, int(starts[-1])), starts[:-1], order, endpoints)
        if held is not None:
            yield _gather(held, np.zeros(1, np.int64), order, endpoints)

    return run


def _starts(rows: pa.RecordBatch) -> Numbers:
    """Where a new request begins."""
    is_new = np.ones(rows.num_rows, bool)
    if rows.num_rows > 1:
        ids = rows.column("id")
        is_new[1:] = pc.not_equal(ids.slice(1), ids.slice(0, len(ids) - 1)).to_numpy(zero_copy_only=False)
    return np.flatnonzero(is_new)


def _gather(rows: pa.RecordBatch, starts: Numbers, order: "_Order", endpoints: dict[str, str]) -> pa.RecordBatch:
    sent: Numbers = rows.column("sent_us").fill_null(NEVER).to_numpy()
    answered = rows.column("answered").to_numpy(zero_copy_only=False)
    rank = np.where(answered, 0, 2 * LATEST) + np.where(sent == NEVER, LATEST, sent)
    groups = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, rows.num_rows)))
    best = np.flatnonzero(rank == np.minimum.reduceat(rank, starts)[groups])
    chosen = best[np.unique(groups[best], return_index=True)[1]]
    has_example = rows.column("example").is_valid().to_numpy(zero_copy_only=False)
    kept = rows.take(pa.array(chosen))
    out_of_order, opens = order.look(kept, np.maximum.reduceat(sent, starts))
    names = [endpoints.get(shape, OTHERS) for shape in kept.column("shape").to_pylist()]
    made = [
        pa.array(names, pa.string()),
        pa.array(np.logical_or.reduceat(has_example, starts)),
        pa.array(out_of_order),
        pa.array(opens),
    ]
    return pa.RecordBatch.from_arrays([*(kept.column(name) for name in KEPT), *made], schema=ARROW)


class _Order:
    """Compares each request with the one before it on its connection, over the ends of batches."""

    def __init__(self) -> None:
        self._connection: str | None = None
        self._sent = NEVER

    def look(self, rows: pa.RecordBatch, sent: Numbers) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which rows were sent before their predecessor, and which are the first of their connection."""
        connections = rows.column("connection")
        opens = np.ones(len(sent), bool)
        opens[0] = connections[0].as_py() != self._connection
        if len(sent) > 1:
            before = connections.slice(0, len(sent) - 1)
            opens[1:] = pc.not_equal(connections.slice(1), before).to_numpy(zero_copy_only=False)
        earlier = np.concatenate(([self._sent], sent[:-1]))
        out_of_order = ~opens & (sent != NEVER) & (earlier > sent)
        self._connection, self._sent = connections[-1].as_py(), int(sent[-1])
        return out_of_order, opens
