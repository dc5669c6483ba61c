"""The small tables of a report and their columns, as Parquet for whoever wants to ask more of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from strandline.report.summary import Curve, Endpoint, Summary

CURVE = pa.list_(pa.struct([("share", pa.float64()), ("us", pa.int64())]))
DIFFERENCES = pa.schema(
    [
        ("endpoint", pa.string()),
        ("kind", pa.string()),
        ("path", pa.string()),
        ("change", pa.string()),
        ("count", pa.int64()),
        ("source", pa.string()),
        ("target", pa.string()),
        ("example", pa.string()),
    ]
)
ENDPOINTS = pa.schema(
    [
        ("endpoint", pa.string()),
        ("count", pa.int64()),
        ("verdicts", pa.map_(pa.string(), pa.int64())),
        ("source", CURVE),
        ("target", CURVE),
        ("slower", pa.float64()),
        ("regressed", pa.bool_()),
        ("p_value", pa.float64()),
    ]
)
TIMELINE = pa.schema(
    [
        ("start_us", pa.int64()),
        ("sent", pa.int64()),
        ("mismatches", pa.int64()),
        ("late_p50_us", pa.int64()),
        ("late_p99_us", pa.int64()),
    ]
)
FIDELITY = pa.schema(
    [
        ("late_p50_us", pa.int64()),
        ("late_p99_us", pa.int64()),
        ("late_max_us", pa.int64()),
        ("drift_us_per_s", pa.float64()),
        ("order_violations", pa.int64()),
        ("connections", pa.int64()),
        ("reuse", pa.float64()),
    ]
)


def write_small_tables(summary: Summary, differences: Sequence[Mapping[str, Any]], directory: Path) -> None:
    """Write all tables but `exchanges`; each is a directory, as that is, which Spark writes."""
    tables = {
        "differences": pa.Table.from_pylist([{**row, "example": row["id"]} for row in differences], DIFFERENCES),
        "endpoints": pa.Table.from_pylist([_endpoint(each) for each in summary.endpoints], ENDPOINTS),
        "timeline": pa.Table.from_pylist([msgspec.structs.asdict(each) for each in summary.timeline], TIMELINE),
        "fidelity": pa.Table.from_pylist([msgspec.structs.asdict(summary.fidelity)], FIDELITY),
    }
    for name, table in tables.items():
        (directory / name).mkdir(parents=True, exist_ok=True)
        pq.write_table(table, directory / name / "part-0.parquet")


def _endpoint(endpoint: Endpoint) -> dict[str, Any]:
    return {
        "endpoint": endpoint.name,
        "count": endpoint.count,
        "verdicts": [(verdict.value, count) for verdict, count in endpoint.verdicts.items()],
        "source": _curve(endpoint.source),
        "target": _curve(endpoint.target),
        "slower": endpoint.slower,
        "regressed": endpoint.regressed,
        "p_value": endpoint.p_value,
    }


def _curve(curve: Curve) -> list[dict[str, float]]:
    return [{"share": share, "us": micros} for share, micros in curve]
