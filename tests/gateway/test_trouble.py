"""The checker while everything goes wrong: leaders move, brokers and the gateway are killed, the topic is made anew.

`STRANDLINE_SEED` repeats a course. `make soak` runs the long one; `STRANDLINE_TURNS` says how long.
"""

import asyncio
import json
import logging
import os
import random
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import ElectionType, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from strandline.gateway.verify import Outcome, Trial
from strandline.gateway.written import Writer
from strandline.stack import KafkaCluster, Stack
from strandline.stack.ports import free_port
from tests.gateway.support import ANYONE, plain, run, serving, verify_until, write
from tests.ordered.support import create_topic
from tests.support import TIMEOUT, wait_for
from tests.topics import create_topics

PARTITIONS = 3
# A question to a broker that is away is asked again, and not waited for.
ADMIN_S = 5.0

log = logging.getLogger(__name__)


@pytest.fixture(scope="module")
def pair() -> Iterator[KafkaCluster]:
    """A cluster of two brokers whose processes are ended and started again."""
    with Stack(["kafka"], kafka_brokers=2) as stack:
        yield stack.kafka[0]


class Stage:
    """A gateway as the command runs it, the brokers behind it, and what is done to them."""

    def __init__(self, pair: KafkaCluster, directory: Path, seed: int) -> None:
        self._pair = pair
        self._topic = topic = f"trouble-{uuid4().hex[:8]}"
        create_topic(pair.address, topic, PARTITIONS, replicas=2)
        self._seed = seed
        self._random = random.Random(seed)
        how = {"log_level": 0, "allow.auto.create.topics": False, "socket.timeout.ms": int(1000 * ADMIN_S)}
        self._admin = AdminClient({**pair.settings(), **how})
        self._process: asyncio.subprocess.Process | None = None
        listen = f"127.0.0.1:{free_port()}"
        self._url = f"ws://{listen}"
        self._file = directory / "gateway.yaml"
        config: dict[str, Any] = {
            **ANYONE,
            "kafka": pair.address,
            "listen": listen,
            "topics": {topic: {}},
            "recent_bytes": 20_000,
            "token_every_s": 0.3,
            # Clients come back to another process with the tokens of the one that was killed.
            "token_keys": {"k1": "a key that is at least thirty-two long"},
            "limits": {"cold_every_s": 0.01},
        }
        self._file.write_text(json.dumps(config))

    def trial(self, *, clients: int, seconds: float, recreates: int) -> Trial:
        """What the checker does meanwhile."""
        return Trial(
            url=self._url,
            kafka=self._pair.settings(),
            topic=self._topic,
            clients=clients,
            seconds=seconds,
            rate=100,
            deletes=True,
            recreates=recreates,
            seed=self._seed,
        )

    async def start(self) -> None:
        """As whoever keeps it would: again while its topic is being made anew, since it serves only what is there."""
        command = [sys.executable, "-m", "strandline", "gateway", "--config", str(self._file)]
        async with asyncio.timeout(TIMEOUT):
            told = b""
            while not told:
                self._process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
                assert self._process.stdout is not None
                told = await self._process.stdout.readline()
        assert told.startswith(b"serving ")

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def kill_the_gateway(self) -> None:
        await self.stop()
        await self.start()

    async def restart_the_second_broker(self) -> None:
        """In good order, so that its leaders are moved away at once, and then back."""
        await self._restart(1, signal.SIGTERM)

    async def kill_a_broker(self) -> None:
        """Any: also the one that all depend on."""
        await self._restart(self._random.randrange(2), signal.SIGKILL)

    async def _restart(self, place: int, how: signal.Signals) -> None:
        broker = self._pair.brokers[place]
        await asyncio.to_thread(broker.stop, how, TIMEOUT)
        await asyncio.sleep(self._random.random())
        broker.start()
        await asyncio.to_thread(self._pair.wait_ready)
        await asyncio.to_thread(wait_for, self._has_leaders_back, "leaders are moved back")

    def _has_leaders_back(self) -> bool:
        try:
            self._admin.elect_leaders(ElectionType.PREFERRED).result(2 * ADMIN_S)
            partitions = self._admin.list_topics(self._topic, timeout=ADMIN_S).topics[self._topic].partitions
        except (KafkaException, TimeoutError):
            return False
        # None while the topic is just made anew.
        return all(found.leader == found.replicas[0] for found in partitions.values())

    async def trouble(self, *kinds: Callable[[], Awaitable[None]]) -> None:
        for kind in self._random.sample(kinds, len(kinds)):
            await asyncio.sleep(self._random.random())
            await kind()


@pytest.fixture
def stage(pair: KafkaCluster, tmp_path: Path) -> Stage:
    seed = int(os.environ.get("STRANDLINE_SEED") or random.randrange(1 << 32))
    log.warning("STRANDLINE_SEED=%d", seed)
    return Stage(pair, tmp_path, seed)


def endured(
    stage: Stage,
    trial: Trial,
    *kinds: Callable[[], Awaitable[None]],
    within: float,
    until: Callable[[Outcome], bool] = lambda _: True,
) -> Outcome:
    outcomes = []

    async def test() -> None:
        await stage.start()
        try:
            outcomes.append(await verify_until(trial, until, partial(stage.trouble, *kinds)))
        finally:
            await stage.stop()

    run(test, within=within)
    return outcomes[0]


def test_whatever_is_killed_or_moved_every_client_sees_every_record_once_or_an_exact_gap(stage: Stage) -> None:
    trial = stage.trial(clients=60, seconds=8, recreates=1)
    outcome = endured(
        stage,
        trial,
        stage.kill_the_gateway,
        stage.restart_the_second_broker,
        within=4 * TIMEOUT,
        until=lambda so_far: so_far.connects > 2 * trial.clients and so_far.gaps > 0 and so_far.seen > so_far.written,
    )
    assert outcome.faults == []
    assert outcome.connects > 2 * trial.clients
    assert outcome.gaps
    assert outcome.seen > outcome.written


def test_a_partition_without_a_leader_keeps_nobody_from_the_others_and_is_told_all_the_while(
    pair: KafkaCluster,
) -> None:
    lone, shared = (f"{name}-{uuid4().hex[:8]}" for name in ("lone", "shared"))
    second = pair.brokers[1]
    topics = [NewTopic(lone, 1, replica_assignment=[[2]]), NewTopic(shared, 1, replica_assignment=[[2, 1]])]
    create_topics(pair.settings(), *topics)
    for name in (lone, shared):
        write(pair.address, name, [(0, "a", 0)])

    async def test() -> None:
        async with serving(pair.address, [lone, shared]) as gateway, plain(gateway) as client:
            await client.say("subscribe", channels=["a"])
            await client.until("subscribed")
            await asyncio.to_thread(second.stop, signal.SIGTERM, TIMEOUT)
            try:
                for number in (1, 2):
                    # The other broker leads this one now; of the lone one there is nobody.
                    await asyncio.to_thread(write, pair.address, shared, [(0, "a", number)])
                    assert [(m["topic"], m["data"]) for m in await client.records(1)] == [(shared, number)]
                    assert gateway.not_ready()
            finally:
                second.start()
                await asyncio.to_thread(pair.wait_ready)
            await asyncio.to_thread(write, pair.address, lone, [(0, "a", 1)])
            assert [(m["topic"], m["data"]) for m in await client.records(1)] == [(lone, 1)]
            while gateway.not_ready():
                await asyncio.sleep(0.01)

    run(test)


def test_a_deletion_that_does_not_come_to_all_brokers_keeps_the_checker_from_nothing_else(
    pair: KafkaCluster,
) -> None:
    topic, second = f"trouble-{uuid4().hex[:8]}", pair.brokers[1]
    create_topics(pair.settings(), NewTopic(topic, 1, replica_assignment=[[1, 2]]))
    write(pair.address, topic, [(0, "a", n) for n in range(100)])
    second.send(signal.SIGSTOP)
    try:
        os.waitid(os.P_PID, second.pid, os.WSTOPPED | os.WNOWAIT)
        # Not before: a client that is connected to both may ask the one that stands still, whatever the other does.
        writer = Writer({"bootstrap.servers": pair.address.split(",")[0]}, topic, rate=1, deletes=True, seed=0)
        writer.logs[-1].channels[0] = dict.fromkeys(range(100), "a")
        writer._delete()
        assert topic in writer._admin.list_topics(timeout=ADMIN_S).topics
    finally:
        second.send(signal.SIGCONT)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_for_long(stage: Stage) -> None:
    turns = int(os.environ.get("STRANDLINE_TURNS") or 5)
    kinds = (stage.kill_the_gateway, stage.restart_the_second_broker, stage.kill_a_broker)
    trial = stage.trial(clients=200, seconds=20.0 * turns, recreates=turns)
    outcome = endured(stage, trial, *kinds * turns, within=TIMEOUT * (turns + 4))
    assert outcome.faults == []
