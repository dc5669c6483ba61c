"""Records in requests: one of a key at a time, in the order of the key, each exactly once."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.keyed import Plan


class Row(NamedTuple):
    key: str
    size: int
    number: int


rows = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 40)), max_size=60)
batches = st.lists(rows, max_size=4)


class Trial:
    """A plan, what is in flight, and what was seen; every law is checked at every step."""

    def __init__(self, max_records: int, max_bytes: int) -> None:
        self.plan: Plan[Row] = Plan(max_records=max_records, max_bytes=max_bytes)
        self.max_records = max_records
        self.max_bytes = max_bytes
        self.offered: list[Row] = []
        self.flying: list[Row] = []
        self.finished: list[Row] = []
        self.failed: list[Row] = []
        self.given: list[Row] = []

    def offer(self, batch: list[tuple[str, int]]) -> None:
        rows = [Row(key, size, len(self.offered) + place) for place, (key, size) in enumerate(batch)]
        self.offered += rows
        self.plan.offer(rows)

    def take(self) -> list[Row]:
        request = self.plan.take()
        assert len(request) <= self.max_records
        assert sum(row.size for row in request) <= self.max_bytes or len(request) == 1
        keys = [row.key for row in [*request, *self.flying]]
        assert len(keys) == len(set(keys))
        done = set(self.finished)
        for row in request:
            assert all(other in done for other in self.offered[: row.number] if other.key == row.key)
            if row in self.failed:
                self.failed.remove(row)
            else:
                assert row not in self.given
                self.given.append(row)
        self.flying += request
        return request

    def end(self, row: Row, *, accepted: bool) -> None:
        self.flying.remove(row)
        if accepted:
            self.finished.append(row)
            self.plan.finished([row])
        else:
            self.failed.append(row)
            self.plan.failed([row])

    def check_held(self) -> None:
        left = set(self.offered) - set(self.finished)
        assert self.plan.records == len(left)
        assert self.plan.bytes == sum(row.size for row in left)


@given(batches, st.integers(1, 7), st.integers(1, 100), st.data())
def test_every_record_is_given_out_once_in_the_order_of_its_key(
    batches: list[list[tuple[str, int]]], max_records: int, max_bytes: int, data: st.DataObject
) -> None:
    trial = Trial(max_records, max_bytes)
    for batch in batches:
        trial.offer(batch)
        for move in data.draw(st.lists(st.sampled_from(["take", "accept", "fail"]), max_size=30)):
            if move == "take":
                trial.take()
            elif trial.flying:
                trial.end(data.draw(st.sampled_from(trial.flying)), accepted=move == "accept")
            trial.check_held()
    # Whatever happened, the rest goes out when it is let.
    while trial.plan.records:
        trial.take()
        assert trial.flying
        for row in list(trial.flying):
            trial.end(row, accepted=True)
        trial.check_held()
    assert sorted(trial.finished) == sorted(trial.offered)
    assert not trial.plan.take()


@given(rows, st.integers(1, 7))
def test_nothing_free_is_held_back(batch: list[tuple[str, int]], max_records: int) -> None:
    """A request that is not full leaves only records whose key is in flight."""
    trial = Trial(max_records, 10_000)
    trial.offer(batch)
    while trial.take():
        pass
    assert {row.key for row in trial.flying} == {key for key, _ in batch}


@given(st.integers(1, 50))
def test_a_single_hot_key_goes_at_one_record_a_request(count: int) -> None:
    trial = Trial(500, 10_000)
    trial.offer([("hot", 1)] * count)
    for number in range(count):
        assert [row.number for row in trial.take()] == [number]
        assert not trial.take()
        trial.end(trial.flying[0], accepted=True)
    assert not trial.plan.records


def test_records_of_other_keys_pass_a_hot_one() -> None:
    trial = Trial(500, 10_000)
    trial.offer([("hot", 1)] * 5 + [("a", 1), ("b", 1)])
    assert [row.key for row in trial.take()] == ["hot", "a", "b"]


@pytest.mark.parametrize(("records", "size"), [(0, 1), (1, 0)])
def test_a_request_for_nothing_is_refused(records: int, size: int) -> None:
    with pytest.raises(ValueError, match="at least one record and one byte"):
        Plan[Row](max_records=records, max_bytes=size)
