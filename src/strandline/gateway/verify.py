"""Proves that a gateway loses, repeats and reorders nothing: clients that drop, freeze and come back while records are
written, each held against what was written.
"""

import asyncio
import contextlib
import random
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from strandline.core.audience import Wanted
from strandline.core.witness import Witness
from strandline.errors import GatewayRefused

CHANNELS = [f"verify.{name}" for name in "abcdef"]
ALL = "verify.*"
END = "verify.end"
BACK_WITHIN_S = 0.3
LONGEST_FREEZE_S = 2.0
SETTLE_S = 60.0
CREDIT = 500
FLUSH_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What to try."""

    url: str
    kafka: Mapping[str, str]
    topic: str
    clients: int = 200
    seconds: float = 30.0
    rate: int = 500
    deletes: bool = False
    """Whether old records are deleted under the readers now and then."""
    seed: int = 0


@dataclass(slots=True)
class Outcome:
    """What was found."""

    written: int = 0
    seen: int = 0
    gaps: int = 0
    connects: int = 0
    faults: list[str] = field(default_factory=list)


class _Log:
    """What is written, by partition and offset."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._producer = Producer({**trial.kafka, "linger.ms": 2, "enable.idempotence": True})
        self._admin = AdminClient(dict(trial.kafka))
        self._random = random.Random(trial.seed)  # noqa: S311  (a trial, no secret)
        self.channels: dict[int, dict[int, str]] = defaultdict(dict)
        self.starts: dict[int, int] = {}
        self.failures: list[str] = []
        self.partitions = len(self._admin.list_topics(trial.topic, timeout=FLUSH_S).topics[trial.topic].partitions)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failures.append(str(error))
        else:
            self.channels[message.partition()][message.offset()] = message.key().decode()

    async def write(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        written = 0
        while (elapsed := loop.time() - begin) < seconds:
            while written < elapsed * self._trial.rate:
                key = self._random.choice(CHANNELS)
                partition = self._random.randrange(self.partitions)
                self._producer.produce(
                    self._trial.topic, str(written), key=key, partition=partition, on_delivery=self._delivered
                )
                written += 1
            self._producer.poll(0)
            if self._trial.deletes and self._random.random() < 0.02:
                await asyncio.to_thread(self._delete)
            await asyncio.sleep(0.01)
        left = await asyncio.to_thread(self._producer.flush, FLUSH_S)
        if left or self.failures:
            raise GatewayRefused(self._trial.url, f"Kafka did not take all records: {self.failures[:1] or left}")

    def _delete(self) -> None:
        """Delete all but the latest records of a partition, which somebody may have yet to see."""
        partition = self._random.randrange(self.partitions)
        known = self.channels[partition]
        if known:
            up_to = max(known) + 1 - self._random.randrange(20)
            asked = TopicPartition(self._trial.topic, partition, max(up_to, self.starts.get(partition, 0)))
            for future in self._admin.delete_records([asked]).values():
                self.starts[partition] = future.result(FLUSH_S).low_watermark

    async def finish(self) -> dict[int, int]:
        """Write a last record on each partition, which everybody hears; their offsets."""
        for number in range(self.partitions):
            self._producer.produce(self._trial.topic, "end", key=END, partition=number, on_delivery=self._delivered)
        await asyncio.to_thread(self._producer.flush, FLUSH_S)
        return {number: max(offsets) for number, offsets in self.channels.items()}


class _Client:
    """One client: keeps its place itself, and trusts the gateway in nothing."""

    def __init__(self, trial: Trial, number: int, outcome: Outcome) -> None:
        self._trial = trial
        self._random = random.Random(f"{trial.seed}/{number}")  # noqa: S311  (a trial, no secret)
        self.patterns = [ALL] if number % 2 else [*self._random.sample(CHANNELS, 2), END]
        self.name = f"verify-{number}"
        self._outcome = outcome
        self._token: str | None = None
        self.witnesses: dict[int, Witness] = {}
        self.ends: dict[int, int] | None = None
        """The last offsets, once they are known."""

    @property
    def is_done(self) -> bool:
        """Whether it has seen the last records."""
        return self.ends is not None and all(
            number in self.witnesses and self.witnesses[number].next > end for number, end in self.ends.items()
        )

    async def run(self) -> None:
        """Come, stay a while, and go, until all has been seen."""
        while not self.is_done:
            try:
                async with connect(self._trial.url, compression=None, max_size=None) as connection:
                    self._outcome.connects += 1
                    await connection.send(msgspec.json.encode(self._hello()), text=True)
                    await self._listen(connection)
            except (WebSocketException, OSError, TimeoutError):
                await asyncio.sleep(BACK_WITHIN_S * self._random.random())

    def _hello(self) -> dict[str, Any]:
        if not self.witnesses:
            return {"type": "subscribe", "data": {"channels": self.patterns}}
        positions = {str(number): witness.next for number, witness in self.witnesses.items()}
        data: dict[str, Any] = {
            "channels": self.patterns,
            "positions": {self._trial.topic: positions},
            "credit": CREDIT,
            "client_id": self.name,
        }
        if self._token is not None and self._random.random() < 0.5:
            data["token"] = self._token
        return {"type": "resume", "data": data}

    async def _listen(self, connection: ClientConnection) -> None:
        loop = asyncio.get_running_loop()
        lives_until = loop.time() + self._random.expovariate(0.5) if self.ends is None else loop.time() + SETTLE_S
        while not self.is_done:
            try:
                async with asyncio.timeout_at(min(lives_until, loop.time() + 1.0)):
                    text = await connection.recv()
            except TimeoutError:
                if loop.time() < lives_until:
                    continue
                await self._leave(connection)
                return
            await self._hear(connection, msgspec.json.decode(text))

    async def _leave(self, connection: ClientConnection) -> None:
        how = self._random.random()
        if how < 0.4:
            connection.transport.abort()
        elif how < 0.6:
            # Frozen: reads nothing for a while, and what has come meanwhile still counts.
            connection.transport.pause_reading()
            await asyncio.sleep(self._random.random() * LONGEST_FREEZE_S)
            connection.transport.abort()
        else:
            await connection.close()

    async def _hear(self, connection: ClientConnection, heard: dict[str, Any]) -> None:
        match heard:
            case {"offset": offset, "topic": self._trial.topic, "partition": number}:
                self._outcome.seen += 1
                self.witnesses[number].saw(offset)
            case {"type": "gap", "topic": self._trial.topic, "partition": number, "from": first, "to": int(last)}:
                self._outcome.gaps += 1
                self.witnesses[number].missed(first, last)
            case {"type": "subscribed", "positions": positions} if not self.witnesses:
                places = positions[self._trial.topic]
                self.witnesses = {int(number): Witness(int(offset)) for number, offset in places.items()}
            case {"type": "token", "token": token}:
                self._token = token
            case {"type": "resume_ack", "status": "partial"}:
                await connection.send(msgspec.json.encode({"type": "ack", "data": {"credit": CREDIT}}), text=True)
            case {"type": "error", "code": "replay_limited", "retry_after": wait}:
                await asyncio.sleep(wait)
                raise TimeoutError
            case {"type": "error", "code": code, "message": message}:
                self._outcome.faults.append(f"{self.name} was refused: {code}: {message}")
                raise TimeoutError


async def verify(trial: Trial) -> Outcome:
    """Run a trial against a gateway and the Kafka behind it."""
    outcome = Outcome()
    log = await asyncio.to_thread(_Log, trial)
    clients = [_Client(trial, number, outcome) for number in range(trial.clients)]
    running = [asyncio.create_task(client.run()) for client in clients]
    try:
        await log.write(trial.seconds)
        await _settle(log, clients)
    finally:
        for task in running:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*running, return_exceptions=True)
    outcome.written = sum(map(len, log.channels.values()))
    for client in clients:
        outcome.faults += _faults(client, log)
    return outcome


async def _settle(log: _Log, clients: list[_Client]) -> None:
    """Wait until every client has seen the last records, or has had long enough."""
    ends = await log.finish()
    for client in clients:
        client.ends = ends
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SETTLE_S):
            while not all(client.is_done for client in clients):
                await asyncio.sleep(0.05)


def _faults(client: _Client, log: _Log) -> list[str]:
    if not client.witnesses:
        return [f"{client.name} was never served"]
    wanted = Wanted(client.patterns)
    found = []
    for number, witness in client.witnesses.items():
        written = log.channels[number]
        heard = [offset for offset in sorted(written) if wanted.has(written[offset])]
        lost = range(log.starts.get(number, 0))
        faults = witness.check(heard, max(written) + 1, lost)
        found += [f"{client.name}, partition {number}: {fault}" for fault in faults]
    return found
