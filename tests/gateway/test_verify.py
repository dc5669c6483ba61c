"""The checker: it finds nothing wrong with the gateway, and each of four gateways out that cheat by one record."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import uuid4

import pytest

from strandline.core.gap import Gap
from strandline.core.witness import Witness
from strandline.gateway import session
from strandline.gateway.feed import Feed, Record
from strandline.gateway.hub import Hub, gap_frame
from strandline.gateway.verify import Outcome, Trial, verify
from strandline.stack import KafkaCluster
from tests.gateway.support import delete, plain, run, serving, write
from tests.ordered.support import create_topic

Send = Callable[[Sequence[Record]], list[Record]]


def tried(
    kafka: KafkaCluster, *, clients: int = 12, seconds: float = 3.0, rate: int = 300, deletes: bool = False
) -> Outcome:
    topic = f"verify-{uuid4().hex[:8]}"
    create_topic(kafka.address, topic, 3)
    outcomes = []

    async def test() -> None:
        limits = {"cold_every_s": 0.01}
        async with serving(kafka.address, [topic], recent_bytes=50_000, token_every_s=0.3, limits=limits) as gateway:
            settings = {"bootstrap.servers": kafka.address}
            trial = Trial(
                url=gateway.address,
                kafka=settings,
                topic=topic,
                clients=clients,
                seconds=seconds,
                rate=rate,
                deletes=deletes,
            )
            outcomes.append(await verify(trial))

    run(test)
    return outcomes[0]


def test_every_client_sees_every_record_once_in_order_or_an_exact_gap(kafka: KafkaCluster) -> None:
    outcome = tried(kafka, clients=100, seconds=15.0, rate=400, deletes=True)
    assert outcome.faults == []
    assert outcome.connects > 200
    assert outcome.gaps
    assert outcome.seen > outcome.written


def _once(change: Callable[[list[Record]], list[Record]]) -> Callable[[Sequence[Record]], list[Record]]:
    """A change to one run of records only: the first long enough after some that are as they should be."""
    left = [20]

    def changed(records: Sequence[Record]) -> list[Record]:
        left[0] -= 1
        return change(list(records)) if left[0] <= 0 and len(records) > 1 else list(records)

    return changed


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("drops", lambda records: records[1:]),
        ("repeats", lambda records: [*records, records[-1]]),
        ("reorders", lambda records: records[::-1]),
    ],
)
def test_a_gateway_that_cheats_is_found_out(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[list[Record]], list[Record]]
) -> None:
    send, cheat = Hub._send, _once(change)

    def cheating(self: Hub, feed: Feed, records: Sequence[Record], to: Sequence[session.Session]) -> None:
        send(self, feed, cheat(records), to)

    monkeypatch.setattr(Hub, "_send", cheating)
    assert tried(kafka).faults, name


@pytest.mark.parametrize("by", [-1, 0, 1])
def test_a_gap_that_is_misstated_by_one_is_found_out(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch, by: int
) -> None:
    def misstated(feed: Feed, gap: Gap) -> bytes:
        return gap_frame(feed, replace(gap, end=gap.end + by))

    monkeypatch.setattr(session, "gap_frame", misstated)
    topic = f"verify-{uuid4().hex[:8]}"
    create_topic(kafka.address, topic)
    write(kafka.address, topic, [(0, "a", n) for n in range(30)])
    delete(kafka.address, topic, 20)
    witness = Witness(5)

    async def test() -> None:
        async with serving(kafka.address, [topic]) as gateway, plain(gateway) as client:
            await client.say("resume", channels=["a"], positions={topic: {"0": witness.start}})
            for heard in await client.until("resume_ack"):
                if heard["type"] == "gap":
                    witness.missed(heard["from"], heard["to"])
                elif "offset" in heard:
                    witness.saw(heard["offset"])

    run(test)
    assert bool(witness.check(range(30), 30, lost=range(20))) == bool(by)
