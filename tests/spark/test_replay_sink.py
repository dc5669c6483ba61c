"""What the sink takes: rows that rise by time, each in the partition of its connection."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline.core.murmur import share_of
from strandline.errors import OptionError, TargetDown, TargetError
from strandline.spark.replay_sink import COLUMNS, FAILED, ReplayWriter, ordered

TIME = pa.timestamp("us", tz="UTC")


def batch(*rows: tuple[str, int], **changes: Any) -> pa.RecordBatch:
    columns: dict[str, Any] = {name: pa.nulls(len(rows)) for name, _ in COLUMNS}
    columns |= {
        "connection": pa.array([connection for connection, _ in rows]),
        "time": pa.array([at for _, at in rows], TIME),
        "method": pa.array(["GET"] * len(rows)),
        "path": pa.array(["/"] * len(rows)),
        "number": pa.array(range(len(rows))),
    }
    columns |= {name: pa.array([value] * len(rows)) for name, value in changes.items()}
    return pa.RecordBatch.from_pydict(columns)


def test_rows_out_of_order_are_refused_also_from_batch_to_batch() -> None:
    together = [batch(("c", 2), ("c", 1))]
    apart = [batch(("c", 2)), batch(("c", 1))]
    for batches in (together, apart):
        with pytest.raises(OptionError, match=r"out of order.*strandline\.spark\.replay"):
            list(ordered(iter(batches), 0, 1))
    assert [len(found) for found in ordered(iter([batch(("c", 1), ("d", 1)), batch(("c", 1))]), 0, 1)] == [2, 1]


def test_a_connection_that_belongs_to_another_partition_is_refused() -> None:
    home = share_of("c", 5)
    assert list(ordered(iter([batch(("c", 1))]), home, 5))
    with pytest.raises(OptionError, match=r"connection 'c'.*strandline\.spark\.replay"):
        list(ordered(iter([batch(("c", 1))]), (home + 1) % 5, 5))


def test_a_head_that_would_smuggle_lines_is_refused() -> None:
    with pytest.raises(OptionError, match=r"connection 'c' cannot be sent: .* without spaces"):
        list(ordered(iter([batch(("c", 1), path="/ HTTP/1.1\r\nx: y")]), 0, 1))


def test_a_request_is_framed_by_its_body_whatever_its_headers_say() -> None:
    [[found]] = ordered(iter([batch(("c", 1), method="POST", body=b"1234", query="q")]), 0, 1)
    assert found.head == b"POST /?q HTTP/1.1\r\nhost: -\r\ncontent-length: 4\r\n\r\n"
    assert (found.partition, found.offset, found.ordinal) == (0, 0, 0)


def test_a_task_gives_up_on_a_target_that_stays_down_and_one_that_comes_after_it_at_once(tmp_path: Path) -> None:
    options = {"target": "http://127.0.0.1:1", "speed": "1", "reference": "0", "begin": "0", "partitions": "1"}
    options |= {"results": str(tmp_path), "whenDown": "pause"}
    with pytest.raises(TargetDown, match=r"could not be reached for 0\.2 s"):
        ReplayWriter({**options, "downFor": "0.2"}).write(iter([batch(("c", 1))]))
    assert (tmp_path / FAILED).read_text().endswith("; there are no results")
    with pytest.raises(TargetError, match=r"could not be reached for 0\.2 s .*; there are no results"):
        ReplayWriter({**options, "downFor": "86400"}).write(iter([batch(("c", 1))]))


def test_with_a_clock_that_runs_on_requests_to_a_target_that_is_down_fail_one_by_one(tmp_path: Path) -> None:
    options = {"target": "http://127.0.0.1:1", "speed": "1", "reference": "0", "begin": "0", "partitions": "1"}
    options |= {"results": str(tmp_path), "whenDown": "fail", "downFor": "86400"}
    writer = ReplayWriter(options)
    writer.commit([writer.write(iter([batch(("c", 1), ("d", 1))]))])
    lines = (tmp_path / "part-00000.json").read_text().splitlines()
    assert len(lines) == 2
    assert all("cannot connect to http://127.0.0.1:1" in line for line in lines)
