"""Exchanges judged: noise taken out of what differs, and the verdict on what is left."""

from collections.abc import Callable, Collection, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from strandline.report.differences import Change
from strandline.report.noise import Place
from strandline.report.rules import LatencySection
from strandline.report.summary import Kind
from strandline.report.verdicts import is_slower, judge

TOLD = pa.struct(
    [
        ("kind", pa.string()),
        ("path", pa.string()),
        ("change", pa.string()),
        ("source", pa.string()),
        ("target", pa.string()),
    ]
)
ARROW = pa.schema(
    [
        ("id", pa.string()),
        ("connection", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("ordinal", pa.int32()),
        ("endpoint", pa.string()),
        ("verdict", pa.string()),
        ("source_status", pa.int32()),
        ("target_status", pa.int32()),
        ("source_us", pa.int64()),
        ("target_us", pa.int64()),
        ("source_time_us", pa.int64()),
        ("sent_us", pa.int64()),
        ("lateness_us", pa.int64()),
        ("out_of_order", pa.bool_()),
        ("opens", pa.bool_()),
        ("error", pa.string()),
        ("differences", pa.list_(pa.field("element", TOLD))),
        ("has_example", pa.bool_()),
    ]
)
"""The table `exchanges`."""
NEEDED = [name for name in ARROW.names if name not in {"verdict", "differences"}]


def judged(
    exchanges: DataFrame, noise: Collection[Place], regressed: Collection[str], rules: LatencySection
) -> DataFrame:
    """The table of exchanges, each with its verdict and its differences without noise."""
    columns = [*NEEDED, "answered", "has_source", "differences"]
    return exchanges.select(*columns).mapInArrow(
        _judging(frozenset(noise), frozenset(regressed), rules), from_arrow_schema(ARROW)
    )


def _judging(
    noise: frozenset[Place], regressed: frozenset[str], rules: LatencySection
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    # As plain words: they are looked up for each difference.
    known = {(place.endpoint, place.kind.value, place.path, place.change.value) for place in noise}

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            kept = _without(batch.column("differences"), batch.column("endpoint"), known)
            made = {name: batch.column(name) for name in NEEDED}
            made["differences"] = kept
            made["verdict"] = pa.array(_verdicts(batch, kept, regressed, rules), pa.string())
            yield pa.RecordBatch.from_arrays([made[name] for name in ARROW.names], schema=ARROW)

    return run


def _without(differences: pa.ListArray, endpoints: pa.Array, noise: set[tuple[str, str, str, str]]) -> pa.ListArray:
    """The differences without noise and what rules leave out."""
    flat = differences.flatten()
    rows = pc.list_parent_indices(differences)
    words = [flat.field(name).to_pylist() for name in ("kind", "path", "change")]
    ruled = flat.field("ruled").to_pylist()
    places = zip(pc.take(endpoints, rows).to_pylist(), *words, strict=True)
    keep = np.array([not is_ruled and place not in noise for place, is_ruled in zip(places, ruled, strict=True)], bool)
    counts = np.bincount(rows.to_numpy()[keep], minlength=len(differences)) if len(flat) else np.zeros(len(differences))
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    kept = flat.filter(pa.array(keep, pa.bool_()))
    told = pa.StructArray.from_arrays([kept.field(field.name) for field in TOLD], fields=list(TOLD))
    return pa.ListArray.from_arrays(pa.array(offsets), told, type=ARROW.field("differences").type)


def _verdicts(batch: pa.RecordBatch, kept: pa.ListArray, regressed: frozenset[str], rules: LatencySection) -> list[str]:
    kinds: list[list[Kind]] = [[] for _ in range(batch.num_rows)]
    flat_kinds = kept.flatten().field("kind").to_pylist()
    for row, kind in zip(pc.list_parent_indices(kept).to_pylist(), flat_kinds, strict=True):
        kinds[row].append(Kind(kind))
    columns = [
        batch.column(name).to_pylist() for name in ("answered", "has_source", "endpoint", "source_us", "target_us")
    ]
    return [
        judge(
            is_answered=answered,
            has_source=has_source,
            kinds=of_row,
            is_slower=endpoint in regressed and is_slower(source_us, target_us, rules),
        ).value
        for answered, has_source, endpoint, source_us, target_us, of_row in zip(*columns, kinds, strict=True)
    ]


def place_of(endpoint: str, kind: str, path: str, change: str) -> Place:
    """A place out of a row's words."""
    return Place(endpoint, Kind(kind), path, Change(change))
