"""A topic of captured traffic whose connections are scattered over its partitions, as a reader gives it."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pyarrow as pa

from strandline.capture.imports.items import Broken, Item, Unreadable, parse
from strandline.cli.settings import START_WITHIN
from strandline.kafka.partition import Partition
from strandline.ordered import Earliest, OrderedConsumer, Topic

# A record may have a megabyte.
BATCH_ROWS = 64
BUFFER_BYTES = 64 << 20


class Scattered:
    """Reads the topic up to its end at the first reading, as often as it is asked to."""

    def __init__(self, settings: Mapping[str, str], topic: str) -> None:
        self._settings = settings
        self._topic = topic
        self._ends: dict[Partition, int] | None = None

    def check(self) -> None:
        """Raise what keeps it from being read."""
        with self._consumer():
            pass

    def _consumer(self) -> OrderedConsumer:
        return OrderedConsumer(
            self._settings,
            [Topic(self._topic, Earliest())],
            batch_rows=BATCH_ROWS,
            buffer_bytes=BUFFER_BYTES,
            on_missing="error",
            start_within=START_WITHIN,
        )

    def read(self) -> Iterator[Item]:
        """Its records, by their time. What the brokers delete meanwhile is an error."""
        with self._consumer() as consumer:
            for batch in consumer.until_live():
                yield from self._items(batch)
            if self._ends is None:
                self._ends = consumer.positions()

    def _items(self, batch: pa.RecordBatch) -> Iterator[Item]:
        columns = ("partition", "offset", "value", "headers")
        lists = [batch[name].to_pylist() for name in columns]
        stamps = batch["timestamp"].cast(pa.int64()).to_pylist()
        for number, offset, value, headers, stamp in zip(*lists, stamps, strict=True):
            partition = Partition(self._topic, number)
            if self._ends is not None and offset >= self._ends.get(partition, 0):
                continue
            try:
                record = parse(value or b"")
            except Unreadable as error:
                yield Broken(f"{partition}@{offset}", str(error))
                continue
            pairs = tuple((header["key"], header["value"]) for header in headers)
            yield replace(record, headers=pairs, stamp_ms=record.stamp_ms if stamp is None else stamp)
