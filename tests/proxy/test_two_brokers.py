"""Clusters of two brokers each behind the proxy: leaders and coordinators move, clients go on; and three clusters."""

import asyncio
import signal
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient, TopicPartition
from kio.schema.errors import ErrorCode

from strandline.proxy.rules.admin import BROKER, BROKER_LOGGER
from strandline.stack.kafka import KafkaCluster
from strandline.stack.stack import Stack
from tests.proxy.support import Proxied, Writer, configuration_of, create, lies_there, proxied, read, take, write
from tests.support import TIMEOUT, wait_for

FIRST, SECOND = 1_000_001, 1_000_002


@pytest.fixture(scope="module")
def pair() -> Iterator[list[KafkaCluster]]:
    """Two clusters of two brokers each."""
    with Stack(["kafka"], kafka_clusters=2, kafka_brokers=2) as stack:
        yield stack.kafka


@pytest.fixture(scope="module")
def west(pair: list[KafkaCluster]) -> KafkaCluster:
    return pair[1]


@pytest.fixture(scope="module")
def proxy(pair: list[KafkaCluster], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    directory = Path(tmp_path_factory.mktemp("two-brokers"))
    with proxied(directory, east=pair[0].address, west=pair[1].address) as running:
        yield running


def leaders(settings: Mapping[str, Any], topic: str) -> list[int]:
    """Who leads each partition, as clients see it."""
    partitions = AdminClient({**settings}).list_topics(topic, timeout=TIMEOUT).topics[topic].partitions
    return [partitions[n].leader for n in sorted(partitions)]


def both_coordinate(west: KafkaCluster) -> bool:
    """Give each broker its part of the groups again; False while one that came back is not up to date."""
    with closing(KafkaAdminClient(bootstrap_servers=west.address)) as admin:
        admin.elect_leaders(0, {"__consumer_offsets": range(4)}, raise_errors=False)
    return set(leaders(west.settings(), "__consumer_offsets")) == {1, 2}


def move(proxy: Proxied, topic: str, replicas: list[list[int]]) -> None:
    """Give every partition other replicas, the first of them to lead."""
    with closing(KafkaAdminClient(bootstrap_servers=proxy.address)) as admin:
        wanted = {TopicPartition(topic, n): nodes for n, nodes in enumerate(replicas)}
        assert admin.alter_partition_reassignments(wanted) == dict.fromkeys(wanted)
        wait_for(lambda: not admin.list_partition_reassignments(), "they have moved")

        def they_lead() -> bool:
            # Asked for each time: one that came back is not elected before it is up to date.
            admin.elect_leaders(0, {topic: range(len(replicas))}, raise_errors=False)
            return leaders(proxy.settings(), topic) == [nodes[0] for nodes in replicas]

        wait_for(they_lead, "the others lead")


def test_a_leader_that_is_killed_is_followed_and_nothing_acknowledged_is_lost_or_there_twice(
    proxy: Proxied, west: KafkaCluster
) -> None:
    create(proxy.settings(), {"two": 1})
    create(proxy.settings(), {"eu.two": 2}, replication_factor=2)
    move(proxy, "eu.two", [[FIRST, SECOND], [SECOND, FIRST]])
    reader = Consumer(proxy.settings(group_id="eu-two", auto_offset_reset="earliest"))
    reader.subscribe(["two", "eu.two"])
    with Writer(proxy, "eu.two") as writer:
        wait_for(lambda: writer.acknowledged.total() > 100, "the writer is at work")
        found = take(reader, 50)
        west.brokers[1].stop(signal.SIGKILL, 0.0)
        wait_for(lambda: leaders(proxy.settings(), "eu.two") == [FIRST, FIRST], "the other broker leads all")
        before = writer.acknowledged.total()
        wait_for(lambda: writer.acknowledged.total() > before + 100, "the writer goes on")
        west.brokers[1].start()
        west.wait_ready()
        move(proxy, "eu.two", [[SECOND, FIRST], [SECOND, FIRST]])
        before = writer.acknowledged.total()
        wait_for(lambda: writer.acknowledged.total() > before + 100, "the writer goes on again")
    write(proxy.settings(), [("two", "last")])
    # Where a coordinator was killed before a commit came to it, records are read again: how many is not known.
    written = {b"last"} | {value.encode() for value in writer.acknowledged}
    seen = {message.value() for message in found}
    while not written <= seen:
        seen |= {message.value() for message in take(reader, 1)}
    reader.close()
    assert seen == written
    assert lies_there(west, "eu.two", writer.acknowledged)


def test_groups_and_partitions_of_both_brokers_are_seen_at_their_places(proxy: Proxied, west: KafkaCluster) -> None:
    create(proxy.settings(), {"eu.places": 2})
    move(proxy, "eu.places", [[FIRST], [SECOND]])
    write(proxy.settings(), [("eu.places", f"{n}") for n in range(50)])
    wait_for(lambda: both_coordinate(west), "both brokers coordinate groups")
    groups = {f"eu-places-{n}" for n in range(6)}
    for group in groups:
        assert len(read(proxy.settings(), ["eu.places"], 50, **{"group.id": group})) == 50
    with closing(KafkaAdminClient(bootstrap_servers=proxy.address)) as admin:
        listed = [group["group_id"] for group in admin.list_groups() if group["group_id"] in groups]
        assert sorted(listed) == sorted(groups)

        def kept() -> set[tuple[int, int]]:
            return {
                (log["broker"], partition["partition_index"])
                for log in admin.describe_log_dirs(["eu.places"])
                for directory in log["log_dirs"]
                for topic in directory["topics"]
                for partition in topic["partitions"]
            }

        # A broker that has given a partition away deletes it a moment later.
        wait_for(lambda: kept() == {(FIRST, 0), (SECOND, 1)}, "each broker keeps its own partition")
    librdkafka = AdminClient(proxy.settings())
    described = librdkafka.describe_consumer_groups(sorted(groups), request_timeout=TIMEOUT)
    assert {future.result(TIMEOUT).coordinator.id for future in described.values()} == {FIRST, SECOND}


@pytest.mark.parametrize("kind", [BROKER, BROKER_LOGGER])
def test_what_is_configured_of_a_broker_is_asked_of_that_very_one(proxy: Proxied, kind: int) -> None:
    def configured(node: int) -> bool:
        return asyncio.run(configuration_of(proxy, kind, str(node))) == (str(node), ErrorCode.none)

    # The proxy may have yet to see that one is back which a test before has killed.
    for node in (FIRST, SECOND):
        wait_for(partial(configured, node), f"broker {node} is asked, and answers")


def test_three_clusters_are_one_also_while_a_broker_of_them_is_killed(
    clusters: tuple[KafkaCluster, KafkaCluster], west: KafkaCluster, tmp_path: Path
) -> None:
    east, north = clusters
    routes = {
        "topics": [{"match": "eu.*", "cluster": "west"}, {"match": "no.*", "cluster": "north"}],
        "groups": [{"match": "no-*", "cluster": "north"}],
    }
    topics = {"three": east, "eu.three": west, "no.three": north}
    given: dict[str, Any] = {"east": east.address, "west": west.address, "north": north.address}
    with proxied(tmp_path, sections={"routes": routes}, **given) as proxy:
        create(proxy.settings(), {"three": 2, "no.three": 2})
        create(proxy.settings(), {"eu.three": 2}, replication_factor=2)
        listed = AdminClient(proxy.settings()).list_topics(timeout=TIMEOUT)
        assert set(listed.brokers) == {1, FIRST, SECOND, 2_000_001}
        assert {node // 1_000_000 for topic in topics for node in leaders(proxy.settings(), topic)} == {0, 1, 2}
        reader = Consumer(proxy.settings(group_id="no-three", auto_offset_reset="earliest"))
        reader.subscribe(list(topics))
        writers = [Writer(proxy, topic) for topic in topics]

        def all_write_on() -> bool:
            return all(writer.acknowledged.total() > count + 50 for writer, count in zip(writers, before, strict=True))

        with writers[0], writers[1], writers[2]:
            before = [0, 0, 0]
            wait_for(all_write_on, "the writers are at work")
            west.brokers[1].stop(signal.SIGKILL, 0.0)
            before = [writer.acknowledged.total() for writer in writers]
            wait_for(all_write_on, "all go on, those by the other broker too")
            west.brokers[1].start()
            west.wait_ready()
        # One producer for all of them: its id is a stranger's to none.
        write(proxy.settings(enable_idempotence=True), [(topic, f"last-{n}") for n in range(50) for topic in topics])
        for (topic, cluster), writer in zip(topics.items(), writers, strict=True):
            assert set(writer.acknowledged.values()) == {1}
            writer.acknowledged.update(f"last-{n}" for n in range(50))
            assert lies_there(cluster, topic, writer.acknowledged)
        found = take(reader, sum(writer.acknowledged.total() for writer in writers))
        reader.commit(asynchronous=False)
        reader.close()
        assert {message.topic() for message in found} == topics.keys()
        for topic, cluster in topics.items():
            direct = Consumer({**cluster.settings(), "group.id": "no-three"})
            kept = direct.committed([KafkaPartition(topic, n) for n in range(2)], timeout=TIMEOUT)
            direct.close()
            assert sum(place.offset for place in kept) == sum(1 for message in found if message.topic() == topic)
