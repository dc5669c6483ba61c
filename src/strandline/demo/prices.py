"""Prices that tick: a walk at random on each channel, numbered, so that whoever listens can tell what it missed."""

import asyncio
import random
from dataclasses import dataclass, field

import msgspec
from confluent_kafka import Producer

CHANNELS = {"COD": 41.2, "HERRING": 9.6, "LOBSTER": 187.5, "MUSSELS": 5.4, "OYSTER": 63.0, "SEA BASS": 28.9}
"""What is traded, and what it costs at first."""
TICK_S = 0.03
STEP = 0.004
HOME = 0.002
"""How much of the way back to its first price a price is drawn at each tick."""
FLUSH_S = 10.0


@dataclass
class Market:
    """Pure: the next tick of a channel that chance chooses."""

    chance: random.Random
    prices: dict[str, float] = field(default_factory=lambda: dict(CHANNELS))
    numbers: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CHANNELS, 0))

    def tick(self) -> tuple[str, bytes]:
        """A channel, and what is written for it."""
        channel = self.chance.choice(list(CHANNELS))
        price = self.prices[channel]
        price += (CHANNELS[channel] - price) * HOME + price * self.chance.gauss(0, STEP)
        self.prices[channel] = price
        self.numbers[channel] += 1
        return channel, msgspec.json.encode({"n": self.numbers[channel], "price": round(price, 2)})


async def trade(kafka: str, topic: str, market: Market) -> None:
    """Write ticks to a topic until it is cancelled."""
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 5, "enable.idempotence": True, "log_level": 3})
    try:
        while True:
            channel, value = market.tick()
            producer.produce(topic, value, key=channel)
            producer.poll(0)
            await asyncio.sleep(TICK_S)
    finally:
        await asyncio.to_thread(producer.flush, FLUSH_S)
