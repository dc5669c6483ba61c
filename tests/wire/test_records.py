"""What was written is what is read, and no bytes whatever make the decoder do more than refuse them."""

import random
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.cimpl import NewTopic
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.errors import CorruptBatch
from strandline.stack import KafkaCluster
from strandline.wire.batches import HEADER, LOG_APPEND_TIME, Batch, batches
from strandline.wire.codecs import Bytes
from strandline.wire.gather import Gather
from strandline.wire.records import KEY_START, VALUE_START, columns
from tests.support import TIMEOUT
from tests.topics import create_topics
from tests.wire.encoder import PACK, Record, batch

contents = st.none() | st.binary(max_size=40)
headers = st.lists(st.tuples(st.text(max_size=4).map(str.encode), contents), max_size=3).map(tuple)


@st.composite
def record_lists(draw: st.DrawFn, base: int = 0) -> list[Record]:
    gaps = draw(st.lists(st.integers(1, 2**20), max_size=20))
    offsets = np.cumsum(gaps) - 1 + base
    stamps = st.integers(-1, 2**62)
    return [Record(int(offset), draw(stamps), draw(contents), draw(contents), draw(headers)) for offset in offsets]


def array(data: bytes) -> Bytes:
    return np.frombuffer(data, dtype=np.uint8)


def read(data: bytes) -> list[Record]:
    table = columns(array(data), batches(array(data)))
    return records_of(Gather([("topic", 0)]).batch(np.zeros(len(table), dtype=np.int32), [[table]]))


def records_of(rows: pa.RecordBatch) -> list[Record]:
    """The rows of an Arrow batch as values."""
    return [
        Record(
            row["offset"],
            row["timestamp"],
            row["key"],
            row["value"],
            tuple((header["key"].encode(), header["value"]) for header in row["headers"]),
        )
        for row in rows.set_column(5, "timestamp", rows["timestamp"].cast(pa.int64()).fill_null(-1)).to_pylist()
    ]


@given(st.data(), st.lists(st.sampled_from(sorted(PACK)), max_size=4))
def test_any_batches_of_any_codec_come_back_as_they_were_written(data: st.DataObject, codecs: list[str]) -> None:
    written: list[Record] = []
    wire = b""
    for codec in codecs:
        base = written[-1].offset + 1 if written else data.draw(st.integers(0, 2**40))
        records = data.draw(record_lists(base))
        wire += batch(records, base_offset=base, codec=codec)
        written += records
    assert read(wire) == written


@given(record_lists(), st.integers(0, 2**50))
def test_a_batch_stamped_by_the_broker_has_one_time(records: list[Record], stamp: int) -> None:
    wire = batch(records, base_offset=0, attributes=LOG_APPEND_TIME, max_timestamp=stamp)
    assert [r.timestamp for r in read(wire)] == [stamp] * len(records)


@given(st.lists(record_lists(), min_size=1, max_size=3), st.data())
def test_a_batch_that_is_cut_off_is_left_for_the_next_time(lists: list[list[Record]], data: st.DataObject) -> None:
    *whole, last = [batch(records, base_offset=0) for records in lists]
    kept = data.draw(st.integers(0, len(last) - 1))
    assert len(list(batches(array(b"".join(whole) + last[:kept])))) == len(whole)


@given(record_lists(), st.data())
def test_no_single_byte_can_change_unnoticed(records: list[Record], data: st.DataObject) -> None:
    wire = bytearray(batch(records, base_offset=5))
    place = data.draw(st.integers(16, len(wire) - 1), label="from the format's number on, all is checked")
    wire[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptBatch):
        read(bytes(wire))


@settings(max_examples=500)
@given(record_lists(), st.sampled_from(sorted(PACK)), st.data())
def test_garbage_behind_a_right_checksum_is_refused_or_read_within_its_bounds(
    records: list[Record], codec: str, data: st.DataObject
) -> None:
    wire = bytearray(batch(records, base_offset=0, codec=codec))
    for _ in range(data.draw(st.integers(1, 8))):
        wire[data.draw(st.integers(12, len(wire) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = list(batches(array(bytes(wire)), check=False))
        table = columns(array(bytes(wire)), found)
    except CorruptBatch:
        return
    for field in (KEY_START, VALUE_START):
        start, length = table.table[field : field + 2]
        assert ((start >= 0) & (length >= -1) & (start + np.maximum(length, 0) <= len(table.arena))).all()
    assert (np.diff(table.offset) > 0).all()


@pytest.mark.parametrize(
    ("wire", "problem"),
    [
        (struct.pack(">qi", 9, 3) + bytes(3), "at offset 9: a length of 3 bytes"),
        (struct.pack(">qi", 9, -1), "at offset 9: a length of -1 bytes"),
        (struct.pack(">qiib", 9, 60, 0, 1) + bytes(60), "at offset 9: message format 1; only format 2 is read"),
    ],
)
def test_a_header_that_cannot_be_is_refused_by_its_offset(wire: bytes, problem: str) -> None:
    with pytest.raises(CorruptBatch, match=problem):
        list(batches(array(wire)))


def test_a_batch_that_unpacks_beyond_all_bounds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.wire.records.MAX_ARENA_BYTES", 1 << 20)
    bomb = batch([Record(0, 0, None, bytes(8 << 20))], base_offset=3, codec="zstd", last_offset=3)
    with pytest.raises(CorruptBatch, match="at offset 3: unpacks to more than 1,048,576 bytes"):
        read(bomb)


def test_more_records_than_its_bytes_can_hold_are_refused_before_room_is_made_for_them() -> None:
    wire = bytearray(batch([Record(0, 0, None, b"x")], base_offset=0))
    wire[HEADER.size - 4 : HEADER.size] = struct.pack(">i", 2**31 - 1)
    with pytest.raises(CorruptBatch, match="2147483647 records in"):
        columns(array(bytes(wire)), batches(array(bytes(wire)), check=False))


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_a_real_broker_keeps_is_read_as_it_was_produced(kafka: KafkaCluster, codec: str) -> None:
    topic = f"wire-{codec}"
    create_topics(kafka.settings(), NewTopic(topic, 1))
    # A batch that packing does not shrink is sent as it is. So batches leave when they are full, or at the flush, and
    # never because time has passed; only the very first record may still be sent alone, and is left out below.
    settings = {"compression.type": codec, "linger.ms": 60_000, "batch.num.messages": 1000}
    producer = Producer({"bootstrap.servers": kafka.address, **settings})
    written = [
        Record(
            number,
            1_700_000_000_000 + number * 3 % 50,
            None if number % 7 == 0 else f"key-{number}".encode(),
            None if number % 11 == 0 else b"value" * (number % 40),
            ((b"tide", b"high"), (b"none", None)) if number % 5 == 0 else (),
        )
        for number in range(3000)
    ]
    for r in written:
        headers: list[tuple[str, str | bytes | None]] = [(key.decode(), value) for key, value in r.headers]
        producer.produce(topic, r.value, r.key, timestamp=r.timestamp, headers=headers)
    assert producer.flush(TIMEOUT) == 0
    (segment,) = Path(kafka.directory, "broker-1", f"{topic}-0").glob("*.log")
    stored = segment.read_bytes()
    found: list[Batch] = list(batches(array(stored)))
    assert {b.codec for b in found if b.records > 1} == {PACK[codec][0]}
    assert read(stored) == written


def test_a_header_key_that_is_no_text_is_shown_as_far_as_it_is() -> None:
    wire = batch([Record(0, 0, None, None, ((b"ti\xffde", b"high"),))], base_offset=0)
    assert read(wire)[0].headers == (("ti\N{REPLACEMENT CHARACTER}de".encode(), b"high"),)


@given(st.lists(record_lists(), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_rows_of_several_partitions_are_gathered_in_any_order(lists: list[list[Record]], chance: random.Random) -> None:
    numbers = [number for number, records in enumerate(lists) for _ in records]
    chance.shuffle(numbers)
    sources = []
    for records in lists:
        wire = array(batch(records, base_offset=0))
        whole = columns(wire, batches(wire))
        cut = chance.randint(0, len(whole))
        sources.append([whole.between(0, cut), whole.between(cut, len(whole))])
    names = [("even" if number % 2 == 0 else "odd", number) for number in range(len(lists))]
    found = Gather(names).batch(np.array(numbers, dtype=np.int32), sources)
    found.validate(full=True)
    left = [iter(records) for records in lists]
    assert records_of(found) == [next(left[number]) for number in numbers]
    assert found["partition"].to_pylist() == numbers
    assert found["topic"].to_pylist() == [names[number][0] for number in numbers]
