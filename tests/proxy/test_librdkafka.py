"""librdkafka through the proxy: writing, groups over both clusters, transactions, and what an administrator does."""

import struct
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions

from strandline.stack.kafka import KafkaCluster
from tests.proxy.support import (
    Proxied,
    create,
    level_producer_ids,
    lies_there,
    proxied,
    read,
    record_count,
    take,
    write,
)
from tests.support import TIMEOUT, wait_for
from tests.topics import wait_until_served

Clusters = tuple[KafkaCluster, KafkaCluster]


def values(messages: "list[Message[bytes, bytes]]") -> Counter[str]:
    return Counter((message.value() or b"").decode() for message in messages)


def test_what_is_written_to_topics_of_both_clusters_lies_in_their_owners_and_is_read_as_one(
    proxy: Proxied, clusters: Clusters
) -> None:
    create(proxy.settings(), {"both": 3, "eu.both": 2})
    written = [("both" if n % 2 else "eu.both", f"{n}") for n in range(2000)]
    write(proxy.settings(enable_idempotence=True), written)
    assert values(read(proxy.settings(), ["both", "eu.both"], 2000)) == Counter(value for _, value in written)
    for cluster, topic in zip(clusters, ("both", "eu.both"), strict=True):
        mine = [value for name, value in written if name == topic]
        assert values(read(cluster.settings(), [topic], 1000)) == Counter(mine)
    east, west = (AdminClient({**cluster.settings()}).list_topics(timeout=TIMEOUT).topics for cluster in clusters)
    assert "eu.both" not in east
    assert "both" not in west


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "cooperative-sticky"])
def test_a_group_over_both_clusters_shares_out_all_partitions_and_goes_on_where_it_was(
    proxy: Proxied, assignor: str
) -> None:
    topics = [f"shared-{assignor}", f"eu.shared-{assignor}"]
    create(proxy.settings(), dict.fromkeys(topics, 2))
    write(proxy.settings(), [(topics[n % 2], f"{n}") for n in range(400)])
    settings = proxy.settings(
        group_id=f"g-{assignor}", auto_offset_reset="earliest", partition_assignment_strategy=assignor
    )
    first, second = Consumer(settings), Consumer(settings)
    try:
        first.subscribe(topics)
        seen = values(take(first, 400))
        first.commit(asynchronous=False)
        second.subscribe(topics)

        def all_are_shared_out() -> bool:
            for consumer in (first, second):
                consumer.poll(0.05)
            held = [(p.topic, p.partition) for consumer in (first, second) for p in consumer.assignment()]
            both = all(consumer.assignment() for consumer in (first, second))
            return both and sorted(held) == sorted((topic, n) for topic in topics for n in range(2))

        wait_for(all_are_shared_out, "both members have partitions")
    finally:
        first.close()
        second.close()
    assert seen == Counter(f"{n}" for n in range(400))
    write(proxy.settings(), [(topics[n % 2], f"{n}") for n in range(400, 420)])
    again = Consumer(settings)
    try:
        again.subscribe(topics)
        assert values(take(again, 20)) == Counter(f"{n}" for n in range(400, 420))
        committed = again.committed([TopicPartition(topic, 0) for topic in topics], timeout=TIMEOUT)
        assert all(place.offset >= 0 for place in committed)
    finally:
        again.close()


def test_offsets_are_kept_where_the_topics_are(proxy: Proxied, clusters: Clusters) -> None:
    create(proxy.settings(), {"kept": 1, "eu.kept": 1})
    write(proxy.settings(), [("kept", "a"), ("eu.kept", "b")])
    consumer = Consumer(proxy.settings(group_id="keeper", auto_offset_reset="earliest"))
    consumer.subscribe(["kept", "eu.kept"])
    take(consumer, 2)
    consumer.commit(asynchronous=False)
    consumer.close()
    for cluster, topic in zip(clusters, ("kept", "eu.kept"), strict=True):
        direct = Consumer({**cluster.settings(), "group.id": "keeper"})
        (place,) = direct.committed([TopicPartition(topic, 0)], timeout=TIMEOUT)
        direct.close()
        assert place.offset == 1
    # At home they last while the group does; away from it they say themselves how long.
    assert lifetime(clusters[0], "keeper", "kept") is None
    assert lifetime(clusters[1], "keeper", "eu.kept") == timedelta(days=365)


def lifetime(cluster: KafkaCluster, group: str, topic: str) -> timedelta | None:
    """How long an offset is kept from its commit on, as the cluster wrote it down; None: by the broker's rule."""
    key = struct.pack(">hh", 1, len(group)) + group.encode() + struct.pack(">h", len(topic)) + topic.encode()
    consumer = Consumer({**cluster.settings(), "group.id": "lifetimes", "enable.partition.eof": True})
    consumer.assign([TopicPartition("__consumer_offsets", n, OFFSET_BEGINNING) for n in range(4)])
    found = None
    ended: set[int | None] = set()
    while len(ended) < 4:
        message = consumer.poll(TIMEOUT)
        assert message is not None
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF or error.retriable(), error
            if error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
        elif message.key() == key + struct.pack(">i", 0):
            found = message.value()
    consumer.close()
    assert found is not None
    (version,) = struct.unpack_from(">h", found)
    if version != 1:
        return None
    committed, expires = struct.unpack(">qq", found[-16:])
    return timedelta(milliseconds=expires - committed)


def test_a_member_that_was_put_out_of_its_group_commits_nowhere(proxy: Proxied) -> None:
    create(proxy.settings(), {"fenced": 1, "eu.fenced": 1})
    write(proxy.settings(), [("fenced", "a"), ("eu.fenced", "b")])
    settings = proxy.settings(group_id="fence", auto_offset_reset="earliest", enable_auto_commit=False)
    stale = Consumer({**settings, "session.timeout.ms": 6000, "max.poll.interval.ms": 6000})
    stale.subscribe(["fenced", "eu.fenced"])
    take(stale, 2)
    # This one stays, also where the machine stands still for a while.
    fresh = Consumer({**settings, "session.timeout.ms": 120_000})
    fresh.subscribe(["fenced", "eu.fenced"])
    wait_for(lambda: fresh.poll(0.1) is not None and len(fresh.assignment()) == 2, "the other one has all partitions")
    with pytest.raises(KafkaException):
        stale.commit(offsets=[TopicPartition("eu.fenced", 0, 1)], asynchronous=False)
    # Nor does somebody who is no member, while there are members.
    admin = AdminClient(proxy.settings())
    for topic in ("fenced", "eu.fenced"):
        with pytest.raises(KafkaException) as refusal:
            set_offset(admin, "fence", topic, 1)
        assert refusal.value.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID
    (place,) = fresh.committed([TopicPartition("eu.fenced", 0)], timeout=TIMEOUT)
    assert place.offset < 0
    fresh.close()
    stale.close()
    # Once all have left, anybody may.
    for topic in ("fenced", "eu.fenced"):
        set_offset(admin, "fence", topic, 1)
    reader = Consumer(proxy.settings(group_id="fence"))
    places = reader.committed([TopicPartition(topic, 0) for topic in ("fenced", "eu.fenced")], timeout=TIMEOUT)
    reader.close()
    assert [place.offset for place in places] == [1, 1]


def test_nobody_sets_offsets_elsewhere_of_a_group_of_the_new_protocol_that_has_members(proxy: Proxied) -> None:
    create(proxy.settings(), {"modern": 1, "eu.modern": 1})
    write(proxy.settings(), [("modern", "a")])
    member = Consumer(proxy.settings(group_id="modern", group_protocol="consumer", auto_offset_reset="earliest"))
    member.subscribe(["modern"])
    take(member, 1)
    admin = AdminClient(proxy.settings())
    with pytest.raises(KafkaException) as refusal:
        set_offset(admin, "modern", "eu.modern", 1)
    assert refusal.value.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID
    member.close()
    set_offset(admin, "modern", "eu.modern", 1)


def set_offset(admin: AdminClient, group: str, topic: str, offset: int) -> None:
    """Commit as one who is no member; an error on the partition is raised too."""
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, offset)])
    (future,) = admin.alter_consumer_group_offsets([wanted], request_timeout=TIMEOUT).values()
    for partition in future.result(TIMEOUT).topic_partitions:
        if partition.error is not None:
            raise KafkaException(partition.error)


def test_offsets_of_a_group_that_its_home_does_not_know_can_be_deleted(proxy: Proxied, clusters: Clusters) -> None:
    create(proxy.settings(), {"eu.forgotten": 1})
    admin, west = AdminClient(proxy.settings()), AdminClient({**clusters[1].settings()})
    set_offset(admin, "forgotten", "eu.forgotten", 3)

    def known() -> bool:
        listed = west.list_consumer_groups(request_timeout=TIMEOUT).result(TIMEOUT).valid
        return "forgotten" in {group.group_id for group in listed}

    assert known()
    admin.delete_consumer_groups(["forgotten"], request_timeout=TIMEOUT)["forgotten"].result(TIMEOUT)
    assert not known()
    with pytest.raises(KafkaException) as failure:
        admin.delete_consumer_groups(["forgotten"], request_timeout=TIMEOUT)["forgotten"].result(TIMEOUT)
    assert failure.value.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND


def test_where_a_partition_was_cut_is_asked_of_its_leader(proxy: Proxied) -> None:
    create(proxy.settings(), {"eu.epoch": 1})
    write(proxy.settings(), [("eu.epoch", f"{n}") for n in range(3)])
    consumer = Consumer(proxy.settings(group_id="eu-epoch"))
    # With the epoch of what was read last, a client makes sure that it is still there.
    consumer.assign([TopicPartition("eu.epoch", 0, 1, leader_epoch=0)])
    assert values(take(consumer, 2)) == Counter(["1", "2"])
    consumer.close()
    assert any(api == "offset_for_leader_epoch" and cluster == "west" for cluster, api, _ in proxy.requests())


def test_producers_of_two_proxies_with_another_primary_each_never_meet_a_stranger_with_their_id(
    proxy: Proxied, clusters: Clusters, tmp_path: Path
) -> None:
    east, west = clusters
    create(proxy.settings(), {"eu.sides": 1})
    # The same clusters the other way round: each proxy takes its ids from its own primary.
    with proxied(tmp_path, west=west.address, east=east.address) as other:
        for number in range(2):
            level_producer_ids(clusters)
            for side in (proxy, other):
                write(side.settings(enable_idempotence=True), [("eu.sides", f"{number} by {side.address}")])
        expected = Counter(f"{number} by {side.address}" for number in range(2) for side in (proxy, other))
        shown = {AdminClient(side.settings()).list_topics(timeout=TIMEOUT).cluster_id for side in (proxy, other)}
    assert lies_there(west, "eu.sides", expected)
    # And the clusters have one id, which is neither's own.
    assert len(shown) == 1
    assert not shown & {east.cluster_id, west.cluster_id, None}


def test_a_transaction_stays_in_its_cluster(proxy: Proxied) -> None:
    create(proxy.settings(), {"txn": 1, "eu.txn": 1})
    for name, topic in (("us-1", "txn"), ("eu-1", "eu.txn")):
        producer = Producer(proxy.settings(transactional_id=name))
        producer.init_transactions(TIMEOUT)
        producer.begin_transaction()
        producer.produce(topic, "aborted")
        producer.flush(TIMEOUT)
        producer.abort_transaction(TIMEOUT)
        producer.begin_transaction()
        producer.produce(topic, "committed")
        producer.commit_transaction(TIMEOUT)
        found = read(proxy.settings(isolation_level="read_committed"), [topic], 1)
        assert [message.value() for message in found] == [b"committed"]


def test_a_transaction_that_touches_another_cluster_fails_whole(proxy: Proxied) -> None:
    create(proxy.settings(), {"touch": 1, "eu.touch": 1})
    producer = Producer(proxy.settings(transactional_id="us-2"))
    producer.init_transactions(TIMEOUT)
    producer.begin_transaction()
    producer.produce("touch", "home")
    producer.produce("eu.touch", "abroad")
    with pytest.raises(KafkaException) as failure:
        producer.commit_transaction(TIMEOUT)
    assert failure.value.args[0].code() in {KafkaError.INVALID_TXN_STATE, KafkaError._INCONSISTENT, KafkaError._FATAL}
    # What is given up holds back readers of committed records until the next of the same id has it aborted.
    Producer(proxy.settings(transactional_id="us-2")).init_transactions(TIMEOUT)
    write(proxy.settings(), [("touch", "after"), ("eu.touch", "after")])
    for topic in ("touch", "eu.touch"):
        found = read(proxy.settings(isolation_level="read_committed"), [topic], 1)
        assert [message.value() for message in found] == [b"after"]


def test_offsets_in_a_transaction_are_committed_with_it(proxy: Proxied) -> None:
    create(proxy.settings(), {"source": 1, "sink": 1})
    write(proxy.settings(), [("source", "a")])
    consumer = Consumer(proxy.settings(group_id="eos", auto_offset_reset="earliest", enable_auto_commit=False))
    consumer.subscribe(["source"])
    take(consumer, 1)
    producer = Producer(proxy.settings(transactional_id="us-3"))
    producer.init_transactions(TIMEOUT)
    producer.begin_transaction()
    producer.produce("sink", "a")
    producer.send_offsets_to_transaction(
        consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), TIMEOUT
    )
    producer.commit_transaction(TIMEOUT)
    (place,) = consumer.committed([TopicPartition("source", 0)], timeout=TIMEOUT)
    consumer.close()
    assert place.offset == 1


def test_producers_of_both_clusters_never_meet_a_stranger_with_their_id(proxy: Proxied, clusters: Clusters) -> None:
    _, west = clusters
    create(proxy.settings(), {"eu.ids": 1})
    level_producer_ids(clusters)
    write({**west.settings(), "enable.idempotence": True}, [("eu.ids", "direct")])
    write(proxy.settings(enable_idempotence=True), [("eu.ids", "proxied")])
    found = read(west.settings(), ["eu.ids"], record_count(west.settings(), "eu.ids"))
    assert values(found) == Counter(["direct", "proxied"])


def test_an_administrator_sees_one_cluster(proxy: Proxied) -> None:
    admin = AdminClient(proxy.settings())
    create(proxy.settings(), {"adm": 1, "eu.adm": 1})
    listed = admin.list_topics(timeout=TIMEOUT)
    assert sorted(listed.brokers) == [1, 1_000_001]
    assert listed.topics["eu.adm"].partitions[0].leader == 1_000_001
    described = admin.describe_cluster(request_timeout=TIMEOUT).result(TIMEOUT)
    assert sorted(node.id for node in described.nodes) == [1, 1_000_001]
    for future in admin.create_partitions([NewPartitions("adm", 2), NewPartitions("eu.adm", 3)]).values():
        future.result(TIMEOUT)
    wait_until_served(proxy.settings(), {"adm": 2, "eu.adm": 3})
    # By this client too: it asks the leaders that it knows.
    assert len(admin.list_topics(timeout=TIMEOUT).topics["eu.adm"].partitions) == 3
    topic = ConfigResource(ResourceType.TOPIC, "eu.adm")
    topic.add_incremental_config(ConfigEntry("retention.ms", "1234567", incremental_operation=AlterConfigOpType.SET))
    for future in admin.incremental_alter_configs([topic]).values():
        future.result(TIMEOUT)
    broker = ConfigResource(ResourceType.BROKER, "1000001")

    def configured() -> tuple[str, str]:
        answers = admin.describe_configs([ConfigResource(ResourceType.TOPIC, "eu.adm"), broker])
        found = {resource.name: future.result(TIMEOUT) for resource, future in answers.items()}
        return found["eu.adm"]["retention.ms"].value, found["1000001"]["node.id"].value

    # The controller answers before the broker knows of it.
    wait_for(lambda: configured() == ("1234567", "1"), "the broker shows the new configuration")
    write(proxy.settings(), [("eu.adm", "x")])
    spec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    ends = admin.list_offsets({TopicPartition("eu.adm", n): spec for n in range(3)})
    assert sum(future.result(TIMEOUT).offset for future in ends.values()) == 1
    for future in admin.delete_topics(["adm", "eu.adm"]).values():
        future.result(TIMEOUT)
    wait_for(lambda: not {"adm", "eu.adm"} & admin.list_topics(timeout=TIMEOUT).topics.keys(), "the topics are gone")


def test_what_may_be_done_is_told_where_it_is_asked_for(proxy: Proxied, clusters: Clusters) -> None:
    create(proxy.settings(), {"ours": 1, "eu.ours": 1})
    through = AdminClient(proxy.settings())
    for cluster, topic in zip(clusters, ("ours", "eu.ours"), strict=True):
        direct = AdminClient({**cluster.settings()})
        told, expected = (operations(admin, topic) for admin in (through, direct))
        assert told == expected
        assert all(told)
    described = through.describe_topics(TopicCollection(["ours", "eu.ours"]), request_timeout=TIMEOUT)
    assert {future.result(TIMEOUT).authorized_operations for future in described.values()} == {None}


def operations(admin: AdminClient, topic: str) -> list[set[object]]:
    """What may be done to a topic and to the cluster."""
    asked = {"include_authorized_operations": True, "request_timeout": TIMEOUT}
    topics = admin.describe_topics(TopicCollection([topic]), **asked)
    cluster = admin.describe_cluster(**asked)
    return [set(one.result(TIMEOUT).authorized_operations) for one in (topics[topic], cluster)]


def test_a_group_is_shown_once_and_deleted_with_its_offsets_everywhere(proxy: Proxied, clusters: Clusters) -> None:
    create(proxy.settings(), {"gone": 1, "eu.gone": 1})
    write(proxy.settings(), [("gone", "a"), ("eu.gone", "b")])
    consumer = Consumer(proxy.settings(group_id="goner", auto_offset_reset="earliest"))
    consumer.subscribe(["gone", "eu.gone"])
    take(consumer, 2)
    consumer.commit(asynchronous=False)
    consumer.close()
    admin = AdminClient(proxy.settings())
    groups = admin.list_consumer_groups(request_timeout=TIMEOUT).result(TIMEOUT).valid
    assert [group.group_id for group in groups].count("goner") == 1
    described = admin.describe_consumer_groups(["goner"], request_timeout=TIMEOUT)["goner"].result(TIMEOUT)
    assert described.state.name == "EMPTY"
    direct = [AdminClient({**cluster.settings()}) for cluster in clusters]

    def known() -> list[bool]:
        listed = [one.list_consumer_groups(request_timeout=TIMEOUT).result(TIMEOUT).valid for one in direct]
        return ["goner" in {group.group_id for group in groups} for groups in listed]

    assert known() == [True, True]
    for future in admin.delete_consumer_groups(["goner"], request_timeout=TIMEOUT).values():
        future.result(TIMEOUT)
    assert known() == [False, False]


def test_a_topic_is_created_by_writing_to_it_and_only_at_its_owner(proxy: Proxied, clusters: Clusters) -> None:
    write(proxy.settings(), [("eu.made-by-writing", "a")])
    east, west = (AdminClient({**cluster.settings()}).list_topics(timeout=TIMEOUT).topics for cluster in clusters)
    assert "eu.made-by-writing" in west
    assert "eu.made-by-writing" not in east
