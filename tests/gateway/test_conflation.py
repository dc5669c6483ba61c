"""What a slow client gets: the latest of each key and exact gaps for the rest, or a close with a code."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.gap import Gap, Reason
from strandline.gateway.feed import Feed, Record
from strandline.gateway.kept import LOOSE, Kept
from strandline.kafka.partition import Partition
from strandline.stack import KafkaCluster
from tests.gateway.bystander import Bystander
from tests.gateway.raw import CLOSE, PING, beside, greeted, hear, say
from tests.gateway.support import NAMING, write
from tests.ordered.support import create_topic
from tests.support import wait_for

LIMITS = {"queue_bytes": 20_000}
ROOM = 500
# More than the kernel takes for a client that reads nothing, twice.
COUNT = max(12_000, 2 * int(Path("/proc/sys/net/ipv4/tcp_wmem").read_text().split()[2]) // ROOM)


def feed() -> Feed:
    return Feed(Partition("t", 0), "id", NAMING, 0, most_bytes=1000)


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from("abcd")), min_size=1, max_size=3 * LOOSE))
def test_each_record_is_kept_or_lies_in_one_gap_and_all_of_it_is_in_order(came: list[tuple[int, str]]) -> None:
    kept, one, offset, records = Kept(), feed(), 0, []
    for step, channel in came:
        offset += step
        records.append(Record(offset, channel, b"frame"))
        kept.put(one, records[-1])
    assert kept.firsts() == {one: records[0].offset}
    items = [item for _, item in kept.take()]
    assert not kept
    assert kept.nbytes == 0
    latest = {record.channel: record for record in records}
    assert {item.channel: item for item in items if isinstance(item, Record)} == latest
    reached, told = 0, set()
    for item in items:
        first, end = (item.first, item.end) if isinstance(item, Gap) else (item.offset, item.offset + 1)
        assert first >= reached
        reached = end
        told |= set(range(first, end)) if isinstance(item, Gap) else set()
    assert {record.offset for record in records} - {record.offset for record in latest.values()} <= told
    assert told.isdisjoint(record.offset for record in latest.values())


@pytest.mark.parametrize("gap", [Gap(3, 9, Reason.DELETED), Gap(1, 3, Reason.TRUNCATED), Gap(3, 3, Reason.RECREATED)])
def test_what_is_told_while_a_client_is_slow_comes_behind_what_came_before_it(gap: Gap) -> None:
    kept, old, new = Kept(), feed(), feed()
    before = [Record(1, "a", b""), Record(2, "b", b"")]
    for record in before:
        kept.put(old, record)
    kept.miss(old, gap)
    after = Record(9, "a", b"") if gap.reason is Reason.DELETED else Record(0, "a", b"")
    kept.put(old if gap.reason is Reason.DELETED else new, after)
    items = [item for _, item in kept.take()]
    if gap.reason is Reason.DELETED:
        assert items == [Gap(1, 2, Reason.CONFLATED), before[1], gap, after]
    else:
        assert items == [*before, gap, after]


@contextmanager
def _serving(kafka: str, topic: str, conflate: str) -> Iterator[tuple[int, Bystander]]:
    """The port of a gateway, and a well-behaved client, which hears every record of a topic of its own."""
    other = f"{topic}-other"
    create_topic(kafka, topic)
    create_topic(kafka, other)
    with (
        beside(kafka, [topic, other], conflate=[conflate], limits=LIMITS) as port,
        Bystander(kafka, other, port) as bystander,
    ):
        yield port, bystander


def _slow(kafka: str, topic: str, served: tuple[int, Bystander], keys: Sequence[str]) -> list[object]:
    """What a client of some channels hears that reads nothing while records are written, and then all of it."""
    port, bystander = served
    with greeted(port, receive_bytes=4096) as raw:
        say(raw, "subscribe", channels=[f"{keys[0][0]}*"])
        assert hear(raw)["type"] == "subscribed"
        write(kafka, topic, [(0, keys[n % len(keys)], {"n": n, "room": "x" * ROOM}) for n in range(COUNT)])
        wait_for(lambda: _end(port, topic) == COUNT, "all that was written has come to the gateway")
        bystander.hears_more()
        heard: list[object] = []
        latest = set(range(COUNT - len(keys), COUNT))
        while latest:
            found = raw.hear()
            assert found is not None
            if found.opcode == CLOSE:
                return [*heard, int.from_bytes(found.payload[:2])]
            if found.opcode == PING:
                continue
            message = json.loads(found.payload)
            if "offset" in message:
                heard.append(message["offset"])
                latest.discard(message["offset"])
            elif message["type"] == "gap":
                assert message["reason"] == "conflated"
                heard.append((message["from"], message["to"]))
        return heard


def _end(port: int, topic: str) -> int:
    """How far a gateway has read."""
    with greeted(port) as raw:
        say(raw, "subscribe", channels=["nothing"])
        return int(hear(raw)["positions"][topic]["0"])


def test_a_slow_client_gets_the_latest_of_each_key_and_is_told_exactly_what_it_missed(kafka: KafkaCluster) -> None:
    topic = f"conflate-{uuid4().hex[:8]}"
    with _serving(kafka.address, topic, "price.*") as served:
        heard = _slow(kafka.address, topic, served, ["price.a", "price.b", "price.c"])
    place, lost = 0, 0
    for item in heard:
        first, last = item if isinstance(item, tuple) else (item, item)
        assert first == place
        place, lost = last + 1, lost + (last - first + 1 if isinstance(item, tuple) else 0)
    assert place == COUNT
    assert lost > 0


def test_a_slow_client_of_other_channels_is_closed_with_a_code_and_has_all_until_then(kafka: KafkaCluster) -> None:
    topic = f"conflate-{uuid4().hex[:8]}"
    with _serving(kafka.address, topic, "price.*") as served:
        *heard, code = _slow(kafka.address, topic, served, ["trade.a"])
    assert code == 4008
    assert heard == list(range(len(heard)))


def test_more_keys_than_there_is_room_for_close_the_connection(kafka: KafkaCluster) -> None:
    topic = f"conflate-{uuid4().hex[:8]}"
    with _serving(kafka.address, topic, "k*") as served:
        *heard, code = _slow(kafka.address, topic, served, [f"k{n}" for n in range(COUNT)])
    assert code == 4008
    assert heard == list(range(len(heard)))
