"""Records written to Kafka from asyncio, each told to its writer when it is safe or has failed.

Delivery reports are fetched on the loop itself, by a timer that runs while any is awaited. A thread that waits for them
costs about as much and reports a millisecond or two earlier, but takes the interpreter from the loop as it likes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from confluent_kafka import KafkaError as Code
from confluent_kafka import KafkaException, Message, Producer

from strandline.errors import KafkaError, OptionError, PublisherFull
from strandline.kafka.librdkafka import SAFE, client, translated

Done = Callable[[Any, KafkaError | None], object]
"""Called with what the record is about, and with None when all replicas have it."""
Headers = list[tuple[str, str | bytes | None]]

DEFAULTS = {"queue.buffering.max.kbytes": 64 << 10, "linger.ms": 2}
CLOSE_WITHIN = 2.0


class Publisher:
    """Writes records with acks from all replicas, in order, none twice.

    At most `queue.buffering.max.kbytes` (64 MiB) wait to be written, each for `delivery.timeout.ms` at the longest.
    """

    def __init__(self, settings: Mapping[str, object], *, report_every: timedelta = timedelta(milliseconds=2)) -> None:
        for name in sorted(SAFE.keys() & settings.keys()):
            raise OptionError(f"'{name}' cannot be set for a publisher; it is {str(SAFE[name]).lower()}")
        self._producer = client(Producer, {**DEFAULTS, **settings, **SAFE})
        self._address = str(settings.get("bootstrap.servers"))
        self._every = report_every.total_seconds()
        self._outstanding = 0
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._freed = asyncio.Event()
        self._is_awaited = False

    @property
    def outstanding(self) -> int:
        """How many records are not yet reported on."""
        return self._outstanding

    def publish(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        *,
        on_done: Done | None = None,
        about: object = None,
    ) -> None:
        """Write a record soon. `on_done` is called once, on the loop: with `about`, and None when all replicas have it.

        Raises PublisherFull, and has taken nothing, when too much waits already: await `room` and try again.
        """
        try:
            reported = partial(self._reported, on_done, about)
            self._producer.produce(topic, value, key, headers=headers, on_delivery=reported)
        except BufferError:
            raise PublisherFull(topic) from None
        except KafkaException as error:
            raise translated(error.args[0], topic, self._address) from None
        self._outstanding += 1
        if self._timer is None:
            self._timer = self._loop.call_later(self._every, self._serve)

    def _reported(self, on_done: Done | None, about: object, error: Code | None, message: Message) -> None:
        self._outstanding -= 1
        if self._is_awaited:
            self._freed.set()
        if on_done is not None:
            on_done(about, None if error is None else translated(error, message.topic() or "", self._address))

    def _serve(self) -> None:
        try:
            self._producer.poll(0)
        finally:
            self._timer = self._loop.call_later(self._every, self._serve) if self._outstanding else None

    def room(self) -> Awaitable[object]:
        """Wait until a record that was waiting is written or has failed; at once when none waits."""
        # No time-out: every record is reported on within `delivery.timeout.ms`.
        if self._outstanding:
            self._is_awaited = True
            self._freed.clear()
        else:
            self._freed.set()
        return self._freed.wait()

    def close(self) -> None:
        """Give up what is not written yet; those who wait for it are told so."""
        if self._timer is not None:
            self._timer.cancel()
        self._producer.purge()
        self._producer.flush(CLOSE_WITHIN)
