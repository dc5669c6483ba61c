"""The checker of the trials itself: what is lost, out of order, not the same event or too late is found."""

import json
from typing import Any

import pytest

from strandline.stack import AcceptedRecord
from tests.cdc.history import check


def row(key: int, version: int) -> dict[str, Any]:
    return {"id": key, "version": version, "note": "x"}


HISTORY = [
    ("item", 1, "c", row(1, 1)),
    ("item", 2, "c", row(2, 1)),
    ("item", 1, "u", row(1, 2)),
    ("item", 1, "d", None),
    ("item", None, "t", None),
]


def record(lsn: str, op: str, key: int, after: dict[str, Any] | None, *, leadership: int = 1) -> AcceptedRecord:
    event: dict[str, Any] = {"op": op, "leadership": leadership}
    event["source"] = {"table": "item", "lsn": lsn, "ordinal": 1}
    if op != "t":
        event |= {"before": {"id": key} if op == "d" else None, "after": after}
    partition_key = "public.item" if op == "t" else f"public.item/{key}"
    return AcceptedRecord(lsn, 0, partition_key, json.dumps(event).encode())


STREAM = [
    record("0/1", "c", 1, row(1, 1)),
    record("0/2", "c", 2, row(2, 1)),
    record("0/F", "u", 1, row(1, 2)),
    record("0/10", "d", 1, None),
    record("0/11", "t", 0, None),
]


def test_a_stream_that_tells_what_happened_passes_with_its_repeats_counted() -> None:
    assert check(HISTORY, {"a": STREAM}, epoch_rows=1) == 0
    assert check(HISTORY, {"a": [*STREAM[:3], STREAM[0], *STREAM[2:]]}, epoch_rows=3) == 2


@pytest.mark.parametrize("lost", range(5))
def test_a_record_that_is_missing_is_found(lost: int) -> None:
    with pytest.raises(AssertionError, match=r"steps were taken|arrived"):
        check(HISTORY, {"a": STREAM[:lost] + STREAM[lost + 1 :]})


def test_records_of_a_key_out_of_order_are_found() -> None:
    with pytest.raises(AssertionError, match="step 0 of"):
        check(HISTORY, {"a": [STREAM[2], STREAM[1], STREAM[0], *STREAM[3:]]})


def test_ids_that_do_not_rise_are_found() -> None:
    numbered_anew = record("0/0", "u", 1, row(1, 2))
    with pytest.raises(AssertionError, match="do not rise"):
        check(HISTORY, {"a": [*STREAM[:2], numbered_anew, *STREAM[3:]]})


def test_a_repeat_that_is_another_event_is_found() -> None:
    with pytest.raises(AssertionError, match="not the same event"):
        check(HISTORY, {"a": [*STREAM, record("0/1", "c", 1, row(1, 7))]})


def test_a_repeat_with_another_id_is_found() -> None:
    with pytest.raises(AssertionError, match=r"step 2 of|steps were taken"):
        check(HISTORY, {"a": [*STREAM[:3], record("0/F1", "u", 1, row(1, 2)), *STREAM[3:]]})


def test_what_never_happened_is_found() -> None:
    with pytest.raises(AssertionError, match="0 steps were taken, and 1"):
        check(HISTORY, {"a": [*STREAM, record("0/20", "c", 3, row(3, 1))]})


def test_a_column_that_is_wrong_or_missing_is_found() -> None:
    for after in (row(2, 9), {"id": 2, "version": 1}, {**row(2, 1), "more": 1}):
        with pytest.raises(AssertionError, match="step 0 of"):
            check(HISTORY, {"a": [STREAM[0], record("0/2", "c", 2, after), *STREAM[2:]]})


def test_a_repeat_beyond_an_epoch_is_found() -> None:
    late = [*STREAM, STREAM[1]]
    assert check(HISTORY, {"a": late}, epoch_rows=4) == 1
    with pytest.raises(AssertionError, match="came 3 events late"):
        check(HISTORY, {"a": late}, epoch_rows=3)


def test_what_a_leader_before_had_on_its_way_may_come_later_but_no_more_of_it() -> None:
    newer = [record("0/11", "t", 0, None, leadership=2), record("0/1", "c", 1, row(1, 1))]
    assert check(HISTORY, {"a": [*STREAM, *newer]}, epoch_rows=1) == 2
    with pytest.raises(AssertionError, match="after it was over"):
        check(HISTORY, {"a": [*STREAM, newer[0], *newer[1:] * 501]}, epoch_rows=1, in_flight=1)
