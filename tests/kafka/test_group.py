"""A member of a group loses nothing, repeats only what was not done, and knows when it is no longer one."""

import asyncio
import json
import random
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Self

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from strandline.clock import AwakeClock
from strandline.errors import AuthenticationFailed, BrokerRefused, OptionError, UnknownTopic, WrongListener
from strandline.kafka.events import Assigned, AtEnd, Event, Failed, Lost, Records, Revoked, Taken
from strandline.kafka.group import GroupMember
from strandline.kafka.ownership import Begin
from strandline.kafka.partition import Partition
from strandline.stack import KafkaCluster
from strandline.units import nanos
from tests.ordered.support import create_topic
from tests.support import TIMEOUT, wait_for, write_records

LONG = timedelta(seconds=TIMEOUT)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that leaves waits for its last commit as long as a busy broker may take."""
    monkeypatch.setattr("strandline.kafka.polling.LEAVE_WITHIN", nanos(LONG))


class Reader:
    """A member that keeps all that it was told."""

    def __init__(self, kafka: KafkaCluster, topic: str, begin: Begin | None = None, **settings: object) -> None:
        names = {name.replace("_", "."): value for name, value in settings.items()}
        self.member = GroupMember(
            {**kafka.settings(), "group.id": topic, "heartbeat.interval.ms": 300, **names},
            [topic],
            begin=begin,
            poll_records=50,
            hold_records=100,
            hand_over=LONG,
        )
        self.events: list[Event] = []
        self.taken: dict[int, list[Taken]] = defaultdict(list)

    async def __aenter__(self) -> Self:
        await self.member.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.member.stop(LONG)

    async def read(self) -> None:
        event = await asyncio.wait_for(self.member.next(), TIMEOUT)
        assert not isinstance(event, Failed), event
        self.events.append(event)
        if isinstance(event, Records):
            for record in event.records:
                self.taken[record.partition.number].append(record)

    async def read_until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(TIMEOUT):
            while not condition():
                await self.read()

    def offsets(self, partition: int = 0) -> list[int]:
        return [record.offset for record in self.taken[partition]]

    def finish(self, wanted: Callable[[Taken], bool]) -> None:
        for records in self.taken.values():
            for record in filter(wanted, records):
                self.member.done(record.claim)

    def told(self, *kinds: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kinds)]


def committed(kafka: KafkaCluster, topic: str, partitions: Sequence[int] = (0,)) -> list[int]:
    consumer = Consumer({**kafka.settings(), "group.id": topic})
    try:
        found = consumer.committed([TopicPartition(topic, number) for number in partitions], timeout=TIMEOUT)
        return [place.offset for place in found]
    finally:
        consumer.close()


def fill(kafka: KafkaCluster, topic: str, records: int, partitions: int = 1) -> None:
    create_topic(kafka.address, topic, partitions)
    for number in range(partitions):
        write_records(kafka.address, topic, [b"%d" % n for n in range(records)], number)


def test_records_come_by_offset_and_only_what_is_done_is_committed(kafka: KafkaCluster) -> None:
    fill(kafka, "by-offset", 300)
    place = Partition("by-offset", 0)

    async def read() -> None:
        async with Reader(kafka, "by-offset") as reader:
            await reader.read_until(lambda: reader.told(AtEnd))
            assert isinstance(reader.events[0], Assigned)
            assert reader.events[0].partitions == [place]
            assert reader.offsets() == list(range(300))
            assert [record.value for record in reader.taken[0]] == [b"%d" % n for n in range(300)]
            assert {record.generation for record in reader.taken[0]} == {reader.events[0].generation}
            assert reader.told(AtEnd) == [AtEnd(place, 300, reader.events[0].generation)]
            # No record is done: a proof commits where we began.
            assert await reader.member.prove(LONG)
            assert committed(kafka, "by-offset") == [0]
            reader.finish(lambda record: record.offset % 2 == 1)
            assert await reader.member.prove(LONG)
            assert committed(kafka, "by-offset") == [0]
            reader.finish(lambda record: record.offset < 100)
            await asyncio.to_thread(wait_for, lambda: committed(kafka, "by-offset") == [100], "a commit by itself")
            await asyncio.to_thread(wait_for, lambda: reader.member.ends() == {place: 300}, "the end is known")
            assert reader.member.lag() == {place: 200}
            reader.finish(lambda record: record.offset < 250)

    asyncio.run(read())
    assert committed(kafka, "by-offset") == [250]


def test_who_has_read_nothing_but_the_end_has_no_lag_and_can_prove_it(kafka: KafkaCluster) -> None:
    create_topic(kafka.address, "empty")
    place = Partition("empty", 0)

    async def read() -> None:
        async with Reader(kafka, "empty") as reader:
            await reader.read_until(lambda: reader.told(AtEnd))
            assert await reader.member.prove(LONG)
            assert committed(kafka, "empty") == [0]
            await asyncio.to_thread(wait_for, lambda: reader.member.lag() == {place: 0}, "the end is known")

    asyncio.run(read())


def test_a_lone_record_does_not_wait_for_others(kafka: KafkaCluster) -> None:
    create_topic(kafka.address, "lone")

    async def read() -> None:
        async with Reader(kafka, "lone") as reader:
            await reader.read_until(lambda: reader.told(AtEnd))
            await asyncio.to_thread(write_records, kafka.address, "lone", [b"1"])
            await reader.read_until(lambda: reader.taken[0])
            assert [len(event.records) for event in reader.events if isinstance(event, Records)] == [1]

    asyncio.run(read())


def test_a_partition_is_handed_over_drained_and_committed_and_taken_up_there(kafka: KafkaCluster) -> None:
    fill(kafka, "handed-over", 60, partitions=2)

    async def read() -> None:
        async with Reader(kafka, "handed-over") as first:
            await first.read_until(lambda: len(first.told(AtEnd)) == 2)
            async with Reader(kafka, "handed-over") as second:
                joining = asyncio.create_task(second.read_until(lambda: second.told(AtEnd)))
                await first.read_until(lambda: first.told(Revoked))
                (revoked,) = first.told(Revoked)
                assert isinstance(revoked, Revoked)
                (moved,) = revoked.partitions
                # The partition is ours until it is released, and what is finished now still counts.
                assert not second.told(Assigned)
                first.finish(lambda record: record.partition == moved and record.offset < 40)
                revoked.release()
                await joining
                assert second.offsets(moved.number) == list(range(40, 60))
                assert committed(kafka, "handed-over", [moved.number]) == [40]
                # What it finishes of the partition now is not its own any more.
                first.finish(lambda _: True)
                assert await first.member.prove(LONG)
                second.finish(lambda record: record.offset < 50)
                assert await second.member.prove(LONG)
                assert committed(kafka, "handed-over", [moved.number, 1 - moved.number]) == [50, 60]
            # The second has left in good order, and the first takes up what it has left.
            await first.read_until(lambda: len(first.taken[moved.number]) >= 70)
            assert first.offsets(moved.number) == [*range(60), *range(50, 60)]
            generations = [event.generation for event in first.events if isinstance(event, Assigned)]
            assert generations == sorted(set(generations))
            assert [record.generation for record in first.taken[moved.number][60:]] == [generations[-1]] * 10

    asyncio.run(read())


def test_a_hand_over_that_nobody_answers_ends_and_commits_what_is_done(kafka: KafkaCluster) -> None:
    fill(kafka, "not-released", 30, partitions=2)

    async def read() -> None:
        settings = {**kafka.settings(), "group.id": "not-released", "heartbeat.interval.ms": 300}
        first = GroupMember(settings, ["not-released"], hand_over=timedelta(0))
        await first.start()
        count = 0
        while count < 60:
            event = await asyncio.wait_for(first.next(), TIMEOUT)
            if isinstance(event, Records):
                count += len(event.records)
                for record in event.records:
                    if record.offset < 5:
                        first.done(record.claim)
        async with Reader(kafka, "not-released") as second:
            await second.read_until(lambda: second.told(AtEnd))
            ((number, records),) = second.taken.items()
            assert [record.offset for record in records] == list(range(5, 30))
            assert committed(kafka, "not-released", [number]) == [5]
        await first.stop(LONG)

    asyncio.run(read())


def test_a_frozen_member_is_fenced_knows_it_and_commits_nothing(kafka: KafkaCluster) -> None:
    fill(kafka, "frozen", 10)
    command = [sys.executable, "-m", "tests.kafka.frozen_member", kafka.address, "frozen"]
    pipe, root = subprocess.PIPE, Path(__file__).parents[2]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=root) as child:
        assert child.stdin is not None
        assert child.stdout is not None

        def told(facts: int) -> dict[str, object]:
            """So many lines that it says, as one."""
            lines = [json.loads(child.stdout.readline()) for _ in range(facts) if child.stdout is not None]
            return {key: value for line in lines for key, value in line.items()}

        try:
            assert told(2) == {"assigned": [0], "took": 10, "proved": True}
            assert committed(kafka, "frozen") == [3]
            child.send_signal(signal.SIGSTOP)
            asyncio.run(_take_over(kafka))
            # The group is empty now. It would take a commit from anybody who does not claim to be a member.
            child.stdin.write("finish all\n")
            child.stdin.flush()
            child.send_signal(signal.SIGCONT)
            facts = told(3)
            assert (facts["lost"], facts["assigned"]) == ([0], [0])
            assert facts["stalled"]
            # It may have heard of the loss before it asked. Then there is nothing left to prove.
            assert not facts["proved"] or facts["of"] != [1]
            assert committed(kafka, "frozen") == [6]
        finally:
            child.kill()


async def _take_over(kafka: KafkaCluster) -> None:
    async with Reader(kafka, "frozen") as reader:
        await reader.read_until(lambda: reader.told(AtEnd))
        assert reader.offsets() == list(range(3, 10))
        reader.finish(lambda record: record.offset < 6)


def test_who_takes_nothing_for_long_stays_a_member_and_misses_nothing(kafka: KafkaCluster) -> None:
    fill(kafka, "takes-nothing", 2_000)

    async def read() -> None:
        async with Reader(kafka, "takes-nothing", session_timeout_ms=6000, max_poll_interval_ms=6000) as reader:
            await reader.read_until(lambda: reader.taken[0])
            since = time.monotonic()
            await asyncio.to_thread(wait_for, lambda: time.monotonic() > since + 7, "the longest time between polls")
            # Else the group would have put it out.
            assert reader.member.stalled_for(AwakeClock().monotonic()) < 6e9
            assert await reader.member.prove(LONG)
            await reader.read_until(lambda: reader.told(AtEnd))
            assert reader.offsets() == list(range(2_000))
            assert not reader.told(Lost, Revoked)

    asyncio.run(read())


def test_pausing_and_resuming_loses_and_reorders_nothing(kafka: KafkaCluster) -> None:
    fill(kafka, "paused", 2_000, partitions=3)
    chance = random.Random(5)
    places = [Partition("paused", number) for number in range(3)]

    async def read() -> None:
        async with Reader(kafka, "paused") as reader:
            await reader.read_until(lambda: reader.told(Assigned))
            reader.member.pause([places[0]])
            await reader.read_until(lambda: len(reader.told(AtEnd)) == 2)
            assert [reader.offsets(1), reader.offsets(2)] == [list(range(2_000))] * 2
            assert len(reader.offsets(0)) < 2_000
            while len(reader.offsets(0)) < 2_000:
                reader.member.resume(chance.sample(places, 2))
                reader.member.resume([places[0]])
                await reader.read()
                reader.member.pause(chance.sample(places, 2))
            assert reader.offsets(0) == list(range(2_000))

    asyncio.run(read())


def test_what_kafka_deletes_before_it_is_read_is_told(kafka: KafkaCluster, caplog: pytest.LogCaptureFixture) -> None:
    fill(kafka, "deleted-unread", 2_000)
    place = Partition("deleted-unread", 0)

    async def read() -> None:
        async with Reader(kafka, "deleted-unread") as reader:
            await reader.read_until(lambda: reader.taken[0])
            # As many as may wait for us are taken. Then it is paused, and what was read ahead is thrown away.
            await asyncio.to_thread(wait_for, lambda: reader.member._polling._paused, "it is paused")
            admin = AdminClient({"bootstrap.servers": kafka.address})
            (done,) = admin.delete_records([TopicPartition("deleted-unread", 0, 1_500)]).values()
            await asyncio.to_thread(done.result, TIMEOUT)
            await reader.read_until(lambda: reader.told(AtEnd))
            read = reader.offsets()
            last = max(offset for offset in read if offset < 1_500)
            assert read == [*range(last + 1), *range(1_500, 2_000)]
            assert caplog.messages == [f"{place}: Kafka has deleted {last + 1} to 1499 before they were read"]

    asyncio.run(read())


def test_a_partition_begins_where_it_is_told_the_first_time(kafka: KafkaCluster) -> None:
    fill(kafka, "begins", 20, partitions=2)
    asked: list[list[Partition]] = []

    def begin(partitions: list[Partition]) -> dict[Partition, int]:
        asked.append(sorted(partitions))
        return {Partition("begins", 1): 15}

    async def read() -> None:
        async with Reader(kafka, "begins", begin) as reader:
            await reader.read_until(lambda: len(reader.told(AtEnd)) == 2)
            assert [reader.offsets(0), reader.offsets(1)] == [list(range(20)), list(range(15, 20))]

    asyncio.run(read())
    assert asked == [[Partition("begins", 0), Partition("begins", 1)]]
    assert committed(kafka, "begins", [0, 1]) == [0, 15]


def test_a_broker_that_goes_and_comes_back_is_waited_for(kafka: KafkaCluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="strandline.kafka")
    fill(kafka, "comes-back", 20)
    broker = kafka.brokers[0]

    async def read() -> None:
        async with Reader(kafka, "comes-back", reconnect_backoff_max_ms=200) as reader:
            await reader.read_until(lambda: reader.told(AtEnd))
            reader.finish(lambda record: record.offset < 10)
            broker.stop(signal.SIGKILL, silence_s=0)
            try:
                await asyncio.to_thread(wait_for, lambda: "is away" in caplog.text, "it is missed")
            finally:
                broker.start()
                await asyncio.to_thread(kafka.wait_ready)
            await asyncio.to_thread(write_records, kafka.address, "comes-back", [b"x"] * 5)
            await reader.read_until(lambda: reader.offsets()[-1] == 24)
            told: list[str] = []

            def is_back() -> bool:
                told[:] = re.findall("is away|is back", caplog.text)
                return told[-1:] == ["is back"]

            # A broker that comes up may go again for a moment; what is told is every change, and nothing twice.
            await asyncio.to_thread(wait_for, is_back, "it is found again, and stays")
            assert told == ["is away", "is back"] * (len(told) // 2)

    asyncio.run(read())
    assert committed(kafka, "comes-back") == [10]


def failure_of(settings: Mapping[str, object], topic: str, begin: Begin | None = None) -> Exception:
    async def fail() -> Exception:
        soon = timedelta(seconds=1)
        member = GroupMember({**settings, "group.id": "fails"}, [topic], begin=begin, start_within=soon)
        await member.start()
        while not isinstance(event := await asyncio.wait_for(member.next(), TIMEOUT), Failed):
            pass
        await member.stop()
        return event.error

    return asyncio.run(fail())


def test_a_topic_that_does_not_exist_and_a_start_that_cannot_be_found_end_the_member(kafka: KafkaCluster) -> None:
    assert isinstance(failure_of(kafka.settings(), "not-there"), UnknownTopic)
    create_topic(kafka.address, "no-start")
    error = failure_of({**kafka.settings(), "auto.offset.reset": "error"}, "no-start")
    assert isinstance(error, BrokerRefused)
    assert "_AUTO_OFFSET_RESET" in str(error)
    assert "no-start/0" in str(error)


def test_a_beginning_that_cannot_be_told_ends_the_member_with_the_reason(kafka: KafkaCluster) -> None:
    def begin(_: list[Partition]) -> dict[Partition, int]:
        raise LookupError("nobody knows")

    create_topic(kafka.address, "no-beginning")
    assert isinstance(failure_of(kafka.settings(), "no-beginning", begin), LookupError)


def test_a_wrong_password_ends_the_member(secure_kafka: KafkaCluster) -> None:
    wrong = {**secure_kafka.secure_settings(), "sasl.password": "guessed"}
    error = failure_of(wrong, "not-there")
    assert isinstance(error, AuthenticationFailed)
    assert "guessed" not in str(error)


def test_a_listener_that_the_settings_do_not_fit_ends_the_member(secure_kafka: KafkaCluster) -> None:
    for wrong in (
        {**secure_kafka.settings(), "security.protocol": "ssl"},
        {**secure_kafka.secure_settings(), "security.protocol": "sasl_plaintext"},
    ):
        assert isinstance(failure_of(wrong, "not-there"), WrongListener)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({}, "group.id"),
        ({"group.id": "g", "enable.auto.commit": True}, "enable.auto.commit"),
        ({"group.id": "g", "sesion.timeout.ms": 5}, "sesion.timeout.ms"),
        ({"group.id": "g", "session.timeout.ms": "long"}, "session.timeout.ms"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(settings: dict[str, object], word: str) -> None:
    with pytest.raises(OptionError, match=word):
        asyncio.run(GroupMember(settings, ["t"]).start())
