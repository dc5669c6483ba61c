"""The checker of the trials itself: what is lost, out of order or not the same event is found."""

import json

import pytest

from strandline.stack import AcceptedRecord
from tests.cdc.history import check

HISTORY = [(1, "c", 1), (2, "c", 1), (1, "u", 2), (1, "d", None)]


def record(lsn: str, op: str, key: int, version: int | None) -> AcceptedRecord:
    row = {"id": key, "version": version}
    source = {"table": "item", "lsn": lsn, "ordinal": 1}
    event = {"op": op, "before": row if op == "d" else None, "after": None if op == "d" else row, "source": source}
    return AcceptedRecord(lsn, 0, f"public.item/{key}", json.dumps(event).encode())


STREAM = [
    record("0/1", "c", 1, 1),
    record("0/2", "c", 2, 1),
    record("0/F", "u", 1, 2),
    record("0/10", "d", 1, None),
]


def test_a_stream_that_tells_what_happened_passes_with_its_repeats_counted() -> None:
    assert check(HISTORY, {"a": STREAM}) == 0
    assert check(HISTORY, {"a": [*STREAM[:3], STREAM[0], *STREAM[2:]]}) == 2


@pytest.mark.parametrize("lost", range(4))
def test_a_record_that_is_missing_is_found(lost: int) -> None:
    with pytest.raises(AssertionError):
        check(HISTORY, {"a": STREAM[:lost] + STREAM[lost + 1 :]})


def test_records_of_a_key_out_of_order_are_found() -> None:
    with pytest.raises(AssertionError):
        check(HISTORY, {"a": [STREAM[2], STREAM[1], STREAM[0], STREAM[3]]})


def test_a_repeat_that_is_another_event_is_found() -> None:
    with pytest.raises(AssertionError, match="not the same event"):
        check(HISTORY, {"a": [*STREAM, record("0/1", "c", 1, 7)]})


def test_what_never_happened_is_found() -> None:
    with pytest.raises(AssertionError):
        check(HISTORY, {"a": [*STREAM, record("0/20", "c", 3, 1)]})
