"""kafka-python through the proxy: writing, groups over both clusters, transactions, and what an administrator does."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from threading import Event
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.admin import ConfigResource, OffsetSpec
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.errors import GroupSubscribedToTopicError, KafkaError, NoError

from strandline.stack.kafka import KafkaCluster
from tests.proxy.support import Proxied
from tests.support import TIMEOUT, wait_for
from tests.topics import wait_until_served

Clusters = tuple[KafkaCluster, KafkaCluster]
ASSIGNORS = (
    RangePartitionAssignor,
    RoundRobinPartitionAssignor,
    StickyPartitionAssignor,
    CooperativeStickyAssignor,
)


@contextmanager
def administrator(address: str) -> Iterator[Any]:
    """Their client for administrators."""
    with closing(KafkaAdminClient(bootstrap_servers=address)) as admin:
        yield admin


def create(address: str, topics: dict[str, int]) -> None:
    with administrator(address) as admin:
        wanted = {name: {"num_partitions": count, "replication_factor": 1} for name, count in topics.items()}
        admin.create_topics(wanted, wait_for_metadata=True)
    wait_until_served({"bootstrap.servers": address}, topics)


def write(address: str, records: Iterable[tuple[str, str]], **options: Any) -> None:
    """Write values, and wait until all are acknowledged."""
    with closing(KafkaProducer(bootstrap_servers=address, **options)) as producer:
        sent = [producer.send(topic, value.encode(), key=value.encode()) for topic, value in records]
        producer.flush(TIMEOUT)
        for future in sent:
            future.get(TIMEOUT)


def consumer_of(address: str, *topics: str, **options: Any) -> Any:
    known = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "bootstrap_servers": address}
    consumer = KafkaConsumer(*topics, **{**known, **options})
    for topic in topics:
        # Its sticky assignor shares out nothing, and never again, when it is asked before the topics are known.
        consumer.partitions_for_topic(topic)
    return consumer


def take(consumer: Any, count: int) -> Counter[str]:
    """So many records of a consumer."""
    found: Counter[str] = Counter()
    deadline = time.monotonic() + TIMEOUT
    while found.total() < count:
        assert time.monotonic() < deadline, f"{found.total()} of {count} records came"
        found += Counter(one.value.decode() for batch in consumer.poll(200).values() for one in batch)
    return found


@contextmanager
def at_work(*members: Any) -> Iterator[list[set[Any]]]:
    """What each member of a group holds, kept up to date while each is polled in a thread of its own.

    Their client drops a join that ends between two polls and begins another, which disturbs all members again. Polled
    in turns, each is away while the other waits, and that may go on for ever.
    """
    held: list[set[Any]] = [set() for _ in members]
    ended = Event()

    def poll(number: int, member: Any) -> None:
        while not ended.is_set():
            member.poll(1_000)
            held[number] = member.assignment()

    with ThreadPoolExecutor(len(members)) as threads:
        polls = [threads.submit(poll, number, member) for number, member in enumerate(members)]
        try:
            yield held
        finally:
            ended.set()
            for done in polls:
                done.result(TIMEOUT)


def test_an_idempotent_producer_writes_to_both_clusters_and_nothing_is_lost(proxy: Proxied, clusters: Clusters) -> None:
    create(proxy.address, {"kp-both": 3, "eu.kp-both": 2})
    written = [("kp-both" if n % 2 else "eu.kp-both", f"{n}") for n in range(400)]
    write(proxy.address, written[:200])
    write(proxy.address, written[200:300], enable_idempotence=False, acks=1)
    write(proxy.address, written[300:], enable_idempotence=False, acks=0)
    with closing(consumer_of(proxy.address, "kp-both", "eu.kp-both", group_id=None)) as consumer:
        assert take(consumer, 400) == Counter(value for _, value in written)
    for cluster, topic in zip(clusters, ("kp-both", "eu.kp-both"), strict=True):
        with closing(consumer_of(cluster.address, topic, group_id=None)) as consumer:
            assert take(consumer, 200) == Counter(value for name, value in written if name == topic)


@pytest.mark.parametrize("assignor", ASSIGNORS, ids=lambda assignor: assignor.name)
def test_a_group_over_both_clusters_shares_out_all_partitions_and_goes_on_where_it_was(
    proxy: Proxied, assignor: Any
) -> None:
    topics = [f"kp-{assignor.name}", f"eu.kp-{assignor.name}"]
    create(proxy.address, dict.fromkeys(topics, 2))
    write(proxy.address, [(topics[n % 2], f"{n}") for n in range(100)])
    options: dict[str, Any] = {"group_id": f"kp-{assignor.name}", "heartbeat_interval_ms": 200}
    options["partition_assignment_strategy"] = [assignor]
    with closing(consumer_of(proxy.address, *topics, **options)) as first:
        seen = take(first, 100)
        first.commit()
        second = consumer_of(proxy.address, *topics, **options)
        with closing(second), at_work(first, second) as held:
            every = sorted((topic, n) for topic in topics for n in range(2))
            wait_for(lambda: all(held) and sorted([*held[0], *held[1]]) == every, "both members have partitions")
    assert seen == Counter(f"{n}" for n in range(100))
    write(proxy.address, [(topics[n % 2], f"{n}") for n in range(100, 110)])
    with closing(consumer_of(proxy.address, *topics, **options)) as again:
        assert take(again, 10) == Counter(f"{n}" for n in range(100, 110))
        assert all(again.committed(TopicPartition(topic, n)) is not None for topic in topics for n in range(2))


def test_a_consumer_seeks_in_both_clusters(proxy: Proxied) -> None:
    create(proxy.address, {"kp-seek": 1, "eu.kp-seek": 1})
    write(proxy.address, [(topic, f"{topic}-{n}") for n in range(5) for topic in ("kp-seek", "eu.kp-seek")])
    places = [TopicPartition("kp-seek", 0), TopicPartition("eu.kp-seek", 0)]
    with closing(consumer_of(proxy.address, group_id="kp-seek")) as consumer:
        consumer.assign(places)
        assert consumer.beginning_offsets(places) == dict.fromkeys(places, 0)
        assert consumer.end_offsets(places) == dict.fromkeys(places, 5)
        assert {
            place: found.offset for place, found in consumer.offsets_for_times(dict.fromkeys(places, 0)).items()
        } == (dict.fromkeys(places, 0))
        for place in places:
            consumer.seek(place, 3)
        assert take(consumer, 4) == Counter(f"{place.topic}-{n}" for place in places for n in (3, 4))
        consumer.seek_to_beginning()
        assert take(consumer, 10).total() == 10
        consumer.commit()
        assert [consumer.committed(place) for place in places] == [5, 5]


@pytest.mark.parametrize(("name", "topic"), [("us-kp", "kp-txn"), ("eu-kp", "eu.kp-txn")])
def test_a_transaction_is_read_when_it_is_committed_and_its_offsets_with_it(
    proxy: Proxied, name: str, topic: str
) -> None:
    create(proxy.address, {topic: 1})
    place, group = TopicPartition(topic, 0), f"{name}-group"
    with closing(KafkaProducer(bootstrap_servers=proxy.address, transactional_id=name)) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"aborted").get(TIMEOUT)
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send(topic, b"committed")
        producer.send_offsets_to_transaction({place: OffsetAndMetadata(1, "", -1)}, group)
        producer.commit_transaction()
    with closing(consumer_of(proxy.address, topic, group_id=None, isolation_level="read_committed")) as consumer:
        assert take(consumer, 1) == Counter(["committed"])
    with administrator(proxy.address) as admin:
        # The coordinator of the group hears of the commit after the producer has.
        offsets = wait_for(
            lambda: [
                one.offset for one in admin.list_group_offsets({group: [place]})[group].values() if one.offset >= 0
            ],
            "the offset is committed",
        )
        assert offsets == [1]
        assert name in admin.describe_transactions([name])
        assert name in {one.transactional_id for found in admin.list_transactions().values() for one in found}


def test_a_transaction_that_touches_another_cluster_fails(proxy: Proxied) -> None:
    create(proxy.address, {"eu.kp-touch": 1})
    with closing(KafkaProducer(bootstrap_servers=proxy.address, transactional_id="us-kp-touch")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        with pytest.raises(KafkaError) as failure:
            producer.send("eu.kp-touch", b"abroad").get(TIMEOUT)
        assert "InvalidTxnState" in repr(failure.value)


def test_an_administrator_sees_one_cluster(proxy: Proxied) -> None:
    topics = ["kp-adm", "eu.kp-adm"]
    create(proxy.address, dict.fromkeys(topics, 1))
    write(proxy.address, [(topic, f"{n}") for n in range(4) for topic in topics])
    with administrator(proxy.address) as admin:
        assert set(topics) <= set(admin.list_topics())
        assert {node["broker_id"] for node in admin.describe_cluster()["brokers"]} == {1, 1_000_001}
        admin.create_partitions({"eu.kp-adm": 3})
        wait_until_served(proxy.settings(), {"eu.kp-adm": 3})
        assert len(admin.describe_topics(["eu.kp-adm"])[0]["partitions"]) == 3
        leaders: dict[tuple[str, int], int] = {}
        cursor = None
        while cursor is not None or not leaders:
            page = admin.describe_topic_partitions(topics, response_partition_limit=2, cursor=cursor)
            leaders |= {
                (one["name"], p["partition_index"]): p["leader_id"] for one in page["topics"] for p in one["partitions"]
            }
            cursor = page["next_cursor"]
        assert leaders == {("kp-adm", 0): 1, **{("eu.kp-adm", n): 1_000_001 for n in range(3)}}
        admin.alter_configs([ConfigResource("topic", "eu.kp-adm", {"retention.ms": "1234567"})])

        def configured() -> tuple[str, str]:
            asked = [ConfigResource("topic", "eu.kp-adm"), ConfigResource("broker", "1000001")]
            found = admin.describe_configs(asked, config_filter="all")
            shown = found["topic"]["eu.kp-adm"]["retention.ms"], found["broker"]["1000001"]["node.id"]
            return shown[0]["value"], shown[1]["value"]

        # The controller answers before the broker knows of it.
        wait_for(lambda: configured() == ("1234567", "1"), "the broker shows the new configuration")
        assert set(topics) <= set(admin.list_config_resources(["TOPIC"])["topic"])
        logs = {one["broker"]: one["log_dirs"][0]["log_dir"] for one in admin.describe_log_dirs(topics)}
        assert logs.keys() == {1, 1_000_001}
        here = {("kp-adm", 0, 1): logs[1], ("eu.kp-adm", 0, 1_000_001): logs[1_000_001]}
        assert set(admin.alter_replica_log_dirs(here).values()) == {NoError}
        places = {TopicPartition(topic, 0): 2 for topic in topics}
        admin.delete_records(places)
        begins = admin.list_partition_offsets(dict.fromkeys(places, OffsetSpec.EARLIEST))
        assert {place: one.offset for place, one in begins.items()} == places
        assert admin.list_partition_reassignments() == {}
        assert set(admin.describe_producers(places)) == set(places)
        admin.elect_leaders(0, {topic: [0] for topic in topics}, raise_errors=False)
        admin.delete_topics(topics)
        wait_for(lambda: not set(topics) & set(admin.list_topics()), "the topics are gone")


def test_an_administrator_resets_and_deletes_the_offsets_of_a_group_over_both_clusters(
    proxy: Proxied, clusters: Clusters
) -> None:
    topics = ["kp-reset", "eu.kp-reset"]
    create(proxy.address, dict.fromkeys(topics, 1))
    write(proxy.address, [(topic, f"{n}") for n in range(4) for topic in topics])
    places = [TopicPartition(topic, 0) for topic in topics]
    with closing(consumer_of(proxy.address, *topics, group_id="kp-reset")) as consumer:
        take(consumer, 8)
        consumer.commit()
        # While a member reads them, nobody takes its offsets away, wherever they are kept.
        with administrator(proxy.address) as admin:
            refused = dict.fromkeys(places, GroupSubscribedToTopicError)
            assert admin.delete_group_offsets("kp-reset", places) == refused
            assert [consumer.committed(place) for place in places] == [4, 4]
    with administrator(proxy.address) as admin:
        assert [one["group_id"] for one in admin.list_groups()].count("kp-reset") == 1
        assert admin.describe_groups(["kp-reset"])["kp-reset"]["group_state"] == "Empty"
        reset = admin.reset_group_offsets("kp-reset", dict.fromkeys(places, OffsetSpec.EARLIEST))
        assert {place: (one["error"], one["offset"]) for place, one in reset.items()} == (
            dict.fromkeys(places, (NoError, 0))
        )
        altered = admin.alter_group_offsets("kp-reset", dict.fromkeys(places, OffsetAndMetadata(3, "", -1)))
        assert altered == dict.fromkeys(places, NoError)
        assert {place: one.offset for place, one in admin.list_group_offsets("kp-reset")["kp-reset"].items()} == (
            dict.fromkeys(places, 3)
        )
        with closing(consumer_of(proxy.address, *topics, group_id="kp-reset")) as consumer:
            assert take(consumer, 2) == Counter({"3": 2})
        assert admin.delete_group_offsets("kp-reset", places[1:]) == {places[1]: NoError}
        assert set(admin.list_group_offsets("kp-reset")["kp-reset"]) == {places[0]}
        assert admin.delete_groups(["kp-reset"]) == {"kp-reset": "OK"}
    for cluster in clusters:
        with administrator(cluster.address) as admin:
            assert "kp-reset" not in [one["group_id"] for one in admin.list_groups()]
