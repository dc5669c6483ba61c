"""A client beside a flood, which must not notice it."""

import json
from threading import Event, Thread
from typing import Self

from confluent_kafka import Producer

from tests.gateway.raw import CLOSE, TEXT, frame, greeted, hear, say
from tests.support import TIMEOUT, wait_for


class Bystander:
    """A well-behaved client, and a producer that writes for it all the time.

    While it is entered, and at its end, it must hear every record once and in order.
    """

    def __init__(self, kafka: str, topic: str, port: int) -> None:
        self._producer = Producer({"bootstrap.servers": kafka, "linger.ms": 1})
        self._topic = topic
        self._raw = greeted(port)
        say(self._raw, "subscribe", channels=["bystander"])
        assert hear(self._raw)["type"] == "subscribed"
        self.seen: list[int] = []
        self.written = 0
        self._stop = Event()
        self._threads = [Thread(target=self._write, daemon=True), Thread(target=self._listen, daemon=True)]
        for thread in self._threads:
            thread.start()

    def _write(self) -> None:
        while not self._stop.wait(0.01):
            self._producer.produce(self._topic, str(self.written), key="bystander", partition=0)
            self.written += 1
            self._producer.poll(0)
        self._producer.flush(TIMEOUT)

    def _listen(self) -> None:
        while (heard := self._raw.hear()) is not None:
            message = json.loads(heard.payload) if heard.opcode == TEXT else {}
            if "offset" in message:
                self.seen.append(message["data"])

    def hears_more(self) -> None:
        """Wait until some more has come."""
        now = len(self.seen)
        wait_for(lambda: len(self.seen) > now + 3, "somebody else hears more")

    def __enter__(self) -> Self:
        self.hears_more()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._stop.set()
            return
        self.hears_more()
        self.finish()

    def finish(self) -> None:
        """All that was written has come, once and in order."""
        self._stop.set()
        self._threads[0].join(TIMEOUT)
        wait_for(lambda: len(self.seen) >= self.written, "somebody else hears all")
        assert self.seen == list(range(self.written))
        self._raw.send(frame(CLOSE))
        self._threads[1].join(TIMEOUT)
        self._raw.socket.close()
