"""Random faults of clusters, networks and workers under load, for as long as told: nothing is lost or there twice.

`STRANDLINE_SOAK_S=600 pytest -m soak tests/proxy/test_soak.py`; with `STRANDLINE_SOAK_SEED`, the same course again.
"""

import logging
import os
import random
import secrets
import signal
import time
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Self

import pytest
from confluent_kafka import Consumer

from strandline.stack.kafka import KafkaCluster
from strandline.stack.stack import Stack
from tests.proxy.relay import Relay
from tests.proxy.support import Proxied, Writer, create, lies_there, proxied
from tests.support import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)
SECONDS = float(os.environ.get("STRANDLINE_SOAK_S", "60"))
LONGEST_FAULT_S = 8.0
PATIENCE_S = 240.0
TOPICS = ("soak", "soak.more", "eu.soak", "eu.soak.more")
SETTINGS = {
    "workers": 2,
    "timeouts": {"connect_s": 2, "health_s": 2, "answer_s": 5},
    "breaker": {"failures": 2, "pause_s": 0.5},
}


class Reader:
    """A member of a group that reads all topics, and keeps what it has read."""

    def __init__(self, proxy: Proxied, group: str) -> None:
        self.read: set[tuple[str, str]] = set()
        self._stop = Event()
        settings = proxy.settings(group_id=group, auto_offset_reset="earliest", session_timeout_ms=10_000)
        self._consumer = Consumer(settings)
        self._consumer.subscribe(list(TOPICS))
        self._thread = Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            for message in self._consumer.consume(500, 0.2):
                if message.error() is None:
                    self.read.add((message.topic() or "", (message.value() or b"").decode()))


def kill(cluster: KafkaCluster, seconds: float) -> None:
    cluster.brokers[0].stop(signal.SIGKILL, 0.0)
    time.sleep(seconds)
    cluster.brokers[0].start()
    cluster.wait_ready()


def freeze(cluster: KafkaCluster, seconds: float) -> None:
    cluster.brokers[0].send(signal.SIGSTOP)
    time.sleep(seconds)
    cluster.brokers[0].send(signal.SIGCONT)


def slow(relay: Relay, seconds: float) -> None:
    with relay.slow(0.3):
        time.sleep(seconds)


def cut(relay: Relay, seconds: float) -> None:
    with relay.cut():
        time.sleep(seconds)


def signal_worker(proxy: Proxied, chance: random.Random, seconds: float) -> None:
    """Kill a worker, or let it stand still for a while."""
    pid = chance.choice(proxy.workers())
    if chance.random() < 0.5:
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: pid not in proxy.workers(), "it is gone")
    else:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 600)
def test_nothing_is_lost_or_there_twice_whatever_fails(tmp_path: Path) -> None:
    seed = int(os.environ.get("STRANDLINE_SOAK_SEED", secrets.randbelow(1 << 32)))
    log.warning("STRANDLINE_SOAK_SEED=%d", seed)
    chance = random.Random(seed)
    with Stack(["kafka"], kafka_clusters=2) as stack:
        east, west = stack.kafka
        with Relay(east.address) as near, Relay(west.address) as far:
            places: dict[str, Any] = {"east": near.address, "west": far.address}
            with proxied(tmp_path, sections=SETTINGS, **places) as proxy:
                trouble(proxy, (east, west), (near, far), chance)


def trouble(
    proxy: Proxied, clusters: tuple[KafkaCluster, KafkaCluster], relays: tuple[Relay, Relay], chance: random.Random
) -> None:
    create(proxy.settings(), dict.fromkeys(TOPICS, 2))
    # A broker that was killed knows only the last batch of each producer when it is back: of several that it had stored
    # and not acknowledged, it would take the first, sent again, for one out of order, with or without a proxy.
    writers = {topic: Writer(proxy, topic, max_in_flight=1) for topic in TOPICS}
    readers = [Reader(proxy, "soak"), Reader(proxy, "soak")]
    faults: list[tuple[str, Callable[[float], None]]] = [
        ("a worker", partial(signal_worker, proxy, chance)),
        ("a worker", partial(signal_worker, proxy, chance)),
    ]
    for cluster, relay in zip(clusters, relays, strict=True):
        faults += [
            (f"{cluster.name} killed", partial(kill, cluster)),
            (f"{cluster.name} frozen", partial(freeze, cluster)),
        ]
        faults += [(f"{cluster.name} slow", partial(slow, relay)), (f"{cluster.name} cut off", partial(cut, relay))]
    with readers[0], readers[1]:
        for writer in writers.values():
            writer.__enter__()
        end, count = time.monotonic() + SECONDS, 0
        while time.monotonic() < end:
            (name, fault), seconds = chance.choice(faults), chance.random() * LONGEST_FAULT_S
            log.warning("%s, %.1f s", name, seconds)
            fault(seconds)
            count += 1
        before = {topic: writer.acknowledged.total() for topic, writer in writers.items()}
        wait_for(
            lambda: all(writers[topic].acknowledged.total() > before[topic] + 50 for topic in TOPICS),
            "all writers go on when it is over",
            PATIENCE_S,
        )
        for writer in writers.values():
            writer.__exit__()
        written = {(topic, value) for topic, writer in writers.items() for value in writer.acknowledged}
        log.warning("%d faults, %d records acknowledged", count, len(written))
        try:
            wait_for(lambda: written <= readers[0].read | readers[1].read, "the group has read everything", PATIENCE_S)
        except AssertionError:
            missing = sorted(written - readers[0].read - readers[1].read)
            log.warning("%d of them were not read: %s", len(missing), missing[:10])
            raise
    for topic, writer in writers.items():
        assert set(writer.acknowledged.values()) == {1}
        assert lies_there(clusters[topic.startswith("eu.")], topic, writer.acknowledged)
