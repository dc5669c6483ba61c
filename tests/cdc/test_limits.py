"""The rate of a stream: each of its shards gets no more than it takes, whatever the others get."""

import asyncio
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import count, islice

import boto3
import pytest

from strandline.cdc import sending
from strandline.cdc.kinesis import Sender
from strandline.cdc.limits import SendOptions, ShardRate
from strandline.cdc.outgoing import Record
from strandline.cdc.sending import FOREVER, Failures, Sending
from strandline.clock import ManualClock
from strandline.core.keyed import Keyed
from strandline.core.shards import HashRange, Shards, even_ranges, hashes_of
from strandline.stack import Kinesis, Refuse, Throttle
from strandline.units import Nanos, nanos
from tests.cdc.test_kinesis import batch_of

FOUR = even_ranges(4)


def keys_of(shard: int, ranges: list[HashRange]) -> Iterator[str]:
    """Keys that belong to a shard."""
    shards = Shards(ranges)
    return (key for key in map(str, count()) if shards.of(hashes_of([key.encode()])) == [shard])


def request(records: int, *, shard: int = 0, ranges: list[HashRange] = FOUR, size: int = 10) -> list[Record]:
    return [Record(key, size, b"", 1, 0) for key in islice(keys_of(shard, ranges), records)]


def test_a_shard_gets_what_one_takes_and_the_others_do_not_wait_for_it() -> None:
    rate = ShardRate(FOUR, shards=4)
    # A quarter of a second's worth goes at once.
    assert [rate.wait(request(250), Nanos(0)) for _ in range(4)] == [0.0, 0.25, 0.5, 0.75]
    assert rate.wait(request(250, shard=3), Nanos(0)) == 0.0
    assert rate.wait(request(1, size=1 << 20, shard=2), Nanos(0)) == 0.75


def test_a_request_waits_for_the_slowest_of_its_shards() -> None:
    rate = ShardRate(FOUR, shards=4)
    rate.wait(request(500), Nanos(0))
    assert rate.wait([*request(100, shard=1), *request(250)], Nanos(0)) == 0.5


def test_fewer_shards_than_there_are_and_several_senders_have_their_part_of_each() -> None:
    for rate in (ShardRate(FOUR, shards=2), ShardRate(FOUR, shards=4, senders=2)):
        assert [rate.wait(request(250), Nanos(0)) for _ in range(2)] == [0.25, 0.75]
    # No shard takes more because more of them are told of.
    assert ShardRate(FOUR, shards=400).wait(request(500), Nanos(0)) == 0.25
    assert ShardRate(FOUR, shards=1, senders=1000).wait(request(1), Nanos(0)) > 0


@pytest.fixture
def stream(kinesis: Kinesis, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in kinesis.settings().items():
        monkeypatch.setenv(name, value)
    name = "paced"
    client = boto3.client("kinesis")
    if name not in client.list_streams()["StreamNames"]:
        client.create_stream(StreamName=name, ShardCount=4)
    kinesis.set_faults(name)
    return name


def test_a_stream_is_not_throttled_though_one_of_its_shards_gets_all(kinesis: Kinesis, stream: str) -> None:
    kinesis.set_faults(stream, Throttle())
    rows = [(key, 7, ordinal) for ordinal, key in enumerate(islice(keys_of(2, FOUR), 1_600))]
    with Sender(stream, options=SendOptions(shards=4)) as sender:
        sent = sender.send([batch_of(rows)], leadership=1, fence=lambda: FOREVER)
    assert (sent.records, sent.throttled) == (1_600, 0)


def test_after_a_stall_what_was_booked_meanwhile_does_not_go_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    monkeypatch.setattr(sending, "clock", clock)
    waits: list[float] = []

    class Told(ShardRate):
        def wait(self, request: Sequence[Keyed], now: Nanos) -> float:
            waits.append(super().wait(request, now))
            return waits[-1]

    async def put(_: list[Record]) -> Failures:
        if len(waits) == 4:
            clock.advance(nanos(timedelta(seconds=10)))
        return []

    rows = [(key, 7, ordinal) for ordinal, key in enumerate(islice(keys_of(0, FOUR), 1_000))]
    options, rate = SendOptions(max_request_records=250), Told(FOUR, shards=4)
    sends = Sending(put, None, options, rate, stream="s", leadership=1, fence=lambda: FOREVER)
    assert asyncio.run(sends.run([batch_of(rows)])).records == 1_000
    assert waits == [0.0, 0.25, 0.5, 0.75, 0.0, 0.25, 0.5]


def test_who_may_not_ask_for_the_shards_takes_them_for_those_of_a_new_stream(kinesis: Kinesis, stream: str) -> None:
    kinesis.set_faults(stream, Refuse(code="AccessDeniedException"), actions=["ListShards"])
    with Sender(stream, options=SendOptions(shards=4)) as sender:
        assert sender.send([batch_of([("a", 1, 0)])], leadership=1, fence=lambda: FOREVER).records == 1
        assert sender._rate is not None
        assert len(sender._rate._buckets) == 4
