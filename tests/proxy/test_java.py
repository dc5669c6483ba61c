"""Kafka's Java tools through the proxy: writing, groups of every kind, transactions, and what administrators do."""

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from kio.schema.alter_share_group_offsets.v0.request import AlterShareGroupOffsetsRequest
from kio.schema.alter_share_group_offsets.v0.request import AlterShareGroupOffsetsRequestPartition as ResetPartition
from kio.schema.alter_share_group_offsets.v0.request import AlterShareGroupOffsetsRequestTopic as ResetTopic
from kio.schema.delete_share_group_offsets.v0.request import DeleteShareGroupOffsetsRequest
from kio.schema.delete_share_group_offsets.v0.request import DeleteShareGroupOffsetsRequestTopic as DeletedTopic
from kio.schema.describe_share_group_offsets.v1.request import DescribeShareGroupOffsetsRequest
from kio.schema.describe_share_group_offsets.v1.request import DescribeShareGroupOffsetsRequestGroup as DescribedGroup
from kio.schema.errors import ErrorCode
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32, i64

from strandline.proxy.cluster import Cluster
from strandline.stack.kafka import KafkaCluster
from tests.proxy.java import (
    CONFIGS,
    CONSUMER,
    GROUPS,
    LOOKS_AGAIN,
    REASSIGN,
    SHARE_CONSUMER,
    SHARE_GROUPS,
    complaints,
    console_consume,
    console_produce,
    running,
    tool,
)
from tests.proxy.raw import at_bootstrap, coordinator
from tests.proxy.support import PATIENT, Proxied, create, level_producer_ids, read, record_count, write
from tests.support import TIMEOUT, wait_for

Clusters = tuple[KafkaCluster, KafkaCluster]
PATIENT_MS = str(int(1000 * TIMEOUT))
ASSIGNORS = ("RangeAssignor", "RoundRobinAssignor", "StickyAssignor", "CooperativeStickyAssignor")


def prepared(clusters: Clusters, name: str, partitions: int = 1) -> list[str]:
    """A topic in each cluster, made without the proxy: it counts what Java asks it and nothing else."""
    topics = [name, f"eu.{name}"]
    for cluster, topic in zip(clusters, topics, strict=True):
        create(cluster.settings(), {topic: partitions})
    return topics


def shares(cluster: KafkaCluster, group: str) -> list[int]:
    """How many partitions each member of a group has, as its coordinator sees it."""
    admin = AdminClient({**cluster.settings()})
    described = admin.describe_consumer_groups([group], request_timeout=TIMEOUT)[group].result(TIMEOUT)
    if described.state.name != "STABLE":
        return []
    return sorted(len(member.assignment.topic_partitions) for member in described.members)


def offsets(proxy: Proxied, group: str) -> dict[tuple[str, int], int]:
    """Where a group is, as ConsumerGroupCommand shows it."""
    shown = tool(proxy.address, GROUPS, "--describe", "--group", group, "--offsets").splitlines()
    rows = [line.split()[1:4] for line in shown if line.startswith(group)]
    return {(topic, int(partition)): int(offset) for topic, partition, offset in rows}


def test_a_group_over_both_clusters_reads_what_idempotent_producers_wrote_and_its_offsets_are_reset(
    proxy: Proxied, clusters: Clusters
) -> None:
    topics = prepared(clusters, "java", 2)
    for topic in topics:
        console_produce(proxy.address, topic, [f"{topic}-{n}" for n in range(20)])
    expected = Counter(f"{topic}-{n}" for topic in topics for n in range(20))
    assert Counter(console_consume(proxy.address, r"(eu\.)?java", 40, "--group", "java")) == expected
    kept = offsets(proxy, "java")
    assert kept.keys() == {(topic, n) for topic in topics for n in range(2)}
    assert sum(kept.values()) == 40
    tool(proxy.address, GROUPS, "--group", "java", "--reset-offsets", "--to-earliest", "--all-topics", "--execute")
    assert Counter(console_consume(proxy.address, r"(eu\.)?java", 40, "--group", "java")) == expected
    asked = ("--topic", "eu.java", "--num-records", "20", "--group", "eu-java-perf", "--timeout", PATIENT_MS)
    measured = tool(proxy.address, "ConsumerPerformance", *asked)
    assert measured.splitlines()[-1].split(", ")[4] == "20", measured
    tool(proxy.address, GROUPS, "--group", "java", "--delete-offsets", "--topic", "eu.java")
    assert offsets(proxy, "java").keys() == {("java", 0), ("java", 1)}
    tool(proxy.address, GROUPS, "--delete", "--group", "java")
    assert "java" not in tool(proxy.address, GROUPS, "--list").split()


@pytest.mark.parametrize(
    "assignor", [*(pytest.param(name, marks=pytest.mark.soak) for name in ASSIGNORS[1:]), ASSIGNORS[0]]
)
def test_members_share_out_the_partitions_of_both_clusters_and_who_is_left_gets_all(
    proxy: Proxied, clusters: Clusters, assignor: str
) -> None:
    group, name = f"java-{assignor}", f"java-{assignor.lower()}"
    prepared(clusters, name, 2)
    strategy = f"partition.assignment.strategy=org.apache.kafka.clients.consumer.{assignor}"
    asked = (CONSUMER, "--include", rf"(eu\.)?{name}", "--group", group, *LOOKS_AGAIN, "--command-property", strategy)
    with running(proxy.address, *asked):
        with running(proxy.address, *asked):
            wait_for(lambda: shares(clusters[0], group) == [2, 2], "each member has two partitions")
        wait_for(lambda: shares(clusters[0], group) == [4], "who is left has all")


def test_a_transaction_stays_in_the_cluster_of_its_id(proxy: Proxied, clusters: Clusters) -> None:
    prepared(clusters, "java-txn")
    rate = ("--num-records", "300", "--record-size", "20", "--throughput", "-1", "--transaction-duration-ms", "50")
    tool(proxy.address, "ProducerPerformance", "--topic", "eu.java-txn", *rate, "--transactional-id", "eu-java")
    abroad = (*rate, "--transactional-id", "us-java")
    told = complaints(proxy.address, "ProducerPerformance", "--topic", "eu.java-txn", *abroad)
    assert "InvalidTxnStateException" in told
    committed = ("--isolation-level", "read_committed")
    assert len(console_consume(proxy.address, r"eu\.java-txn", 300, "--group", "eu-java", *committed)) == 300

    def states() -> dict[str, str]:
        return dict(line.split()[0::3] for line in tool(proxy.address, "TransactionsCommand", "list").splitlines()[1:])

    # A transaction is complete a moment after its last partition is.
    wait_for(lambda: states()["eu-java"] == "CompleteCommit", "it is complete")
    assert states()["us-java"] in {"Empty", "CompleteAbort"}
    asked = ("describe", "--transactional-id", "eu-java")
    assert tool(proxy.address, "TransactionsCommand", *asked).splitlines()[1].split()[:2] == ["1000001", "eu-java"]


def test_java_producers_of_both_clusters_never_meet_a_stranger_with_their_id(
    proxy: Proxied, clusters: Clusters
) -> None:
    _, west = clusters
    create(west.settings(), {"eu.java-ids": 1})
    level_producer_ids(clusters)
    console_produce(west.address, "eu.java-ids", ["direct"])
    console_produce(proxy.address, "eu.java-ids", ["proxied"])
    found = read(west.settings(), ["eu.java-ids"], record_count(west.settings(), "eu.java-ids"))
    assert sorted(message.value() or b"" for message in found) == [b"direct", b"proxied"]


def test_the_new_groups_work_in_one_cluster_and_are_refused_over_two(proxy: Proxied, clusters: Clusters) -> None:
    topics = prepared(clusters, "java-848")
    for cluster, topic in zip(clusters, topics, strict=True):
        write(cluster.settings(), [(topic, "a"), (topic, "b")])
    new = ("--command-property", "group.protocol=consumer")
    assert console_consume(proxy.address, r"eu\.java-848", 2, "--group", "eu-848", *new) == ["a", "b"]
    over = ("--include", r"(eu\.)?java-848", "--group", "java-848", "--timeout-ms", PATIENT_MS, *LOOKS_AGAIN, *new)
    assert "only groups with group.protocol=classic" in complaints(proxy.address, CONSUMER, *over)
    assert offsets(proxy, "eu-848") == {("eu.java-848", 0): 2}


def test_a_share_group_works_in_one_cluster_and_its_offsets_are_shown_reset_and_deleted(
    proxy: Proxied, clusters: Clusters
) -> None:
    prepared(clusters, "java-share")
    write(clusters[1].settings(), [("eu.java-share", value) for value in "abc"])
    entity = ("--entity-type", "groups", "--entity-name", "eu-share")
    tool(proxy.address, CONFIGS, "--alter", *entity, "--add-config", "share.auto.offset.reset=earliest")
    asked = ("--topic", "eu.java-share", "--group", "eu-share", "--max-messages", "3", "--timeout-ms", PATIENT_MS)
    assert tool(proxy.address, SHARE_CONSUMER, *asked).splitlines() == ["a", "b", "c"]
    # What its offsets are, is asked of its coordinator, without a tool of Java's.
    with at_bootstrap(proxy) as connection:
        _, port, _ = coordinator(connection, "eu-share")
    asyncio.run(asyncio.wait_for(reset_and_delete(f"127.0.0.1:{port}", "eu-share", "eu.java-share"), TIMEOUT))


async def reset_and_delete(address: str, group: str, topic: str) -> None:
    """Show, reset and delete the offsets of a share group that has read partition 0 of a topic."""
    named, asked = TopicName(topic), Cluster("asked", {"bootstrap.servers": address}, PATIENT)

    async def shown() -> list[int]:
        groups = (DescribedGroup(group_id=GroupId(group), topics=None),)
        (found,) = (await asked.ask(DescribeShareGroupOffsetsRequest(groups=groups))).groups
        assert found.error_code is ErrorCode.none
        return [partition.start_offset for topic in found.topics for partition in topic.partitions]

    try:
        assert len(await shown()) == 1
        place = ResetTopic(topic_name=named, partitions=(ResetPartition(partition_index=i32(0), start_offset=i64(1)),))
        # Its member may still be leaving.
        while (
            reset := await asked.ask(AlterShareGroupOffsetsRequest(group_id=GroupId(group), topics=(place,)))
        ).error_code is ErrorCode.non_empty_group:
            await asyncio.sleep(0.02)
        assert [partition.error_code for topic in reset.responses for partition in topic.partitions] == [ErrorCode.none]
        assert await shown() == [1]
        gone = DeleteShareGroupOffsetsRequest(group_id=GroupId(group), topics=(DeletedTopic(topic_name=named),))
        assert [found.error_code for found in (await asked.ask(gone)).responses] == [ErrorCode.none]
        assert await shown() == []
    finally:
        asked.close()


@pytest.mark.soak
def test_the_offsets_of_a_share_group_are_shown_reset_and_deleted(proxy: Proxied, clusters: Clusters) -> None:
    prepared(clusters, "java-shared")
    write(clusters[1].settings(), [("eu.java-shared", value) for value in "ab"])
    entity = ("--entity-type", "groups", "--entity-name", "eu-shared")
    tool(proxy.address, CONFIGS, "--alter", *entity, "--add-config", "share.auto.offset.reset=earliest")
    asked = ("--topic", "eu.java-shared", "--group", "eu-shared", "--max-messages", "2", "--timeout-ms", PATIENT_MS)
    assert tool(proxy.address, SHARE_CONSUMER, *asked).splitlines() == ["a", "b"]
    group = (SHARE_GROUPS, "--group", "eu-shared")
    assert "Empty" in tool(proxy.address, *group, "--describe", "--state")
    tool(proxy.address, *group, "--reset-offsets", "--to-earliest", "--topic", "eu.java-shared", "--execute")
    shown = tool(proxy.address, *group, "--describe").splitlines()
    assert [line.split()[1:4] for line in shown if line.startswith("eu-shared")] == [["eu.java-shared", "0", "0"]]
    tool(proxy.address, *group, "--delete-offsets", "--topic", "eu.java-shared")
    assert "eu.java-shared" not in tool(proxy.address, *group, "--describe")


def test_an_administrator_makes_changes_and_removes_topics(proxy: Proxied) -> None:
    tool(proxy.address, "TopicCommand", "--create", "--topic", "eu.java-adm", "--partitions", "1")
    tool(proxy.address, "TopicCommand", "--alter", "--topic", "eu.java-adm", "--partitions", "3")
    described = ("TopicCommand", "--describe", "--topic", "eu.java-adm")
    # The controller answers before the brokers know of it.
    wait_for(lambda: tool(proxy.address, *described).count("Leader: 1000001") == 3, "there are three partitions")
    broker = ("--entity-type", "brokers", "--entity-name", "1000001", "--all")
    assert "node.id=1 " in tool(proxy.address, CONFIGS, "--describe", *broker)
    tool(proxy.address, "TopicCommand", "--delete", "--topic", "eu.java-adm")
    wait_for(lambda: "eu.java-adm" not in tool(proxy.address, "TopicCommand", "--list").split(), "the topic is gone")


@pytest.mark.soak
def test_every_other_tool_of_administrators_works_over_both_clusters(
    proxy: Proxied, clusters: Clusters, tmp_path: Path
) -> None:
    topics, file = prepared(clusters, "java-rest"), tmp_path / "asked.json"
    for topic in topics:
        console_produce(proxy.address, topic, ["a", "b", "c"], "--producer-property", "acks=1")
    ends = tool(proxy.address, "GetOffsetShell", "--topic-partitions", ",".join(topics))
    assert sorted(ends.split()) == ["eu.java-rest:0:3", "java-rest:0:3"]
    entity = ("--entity-type", "topics", "--entity-name", "eu.java-rest")
    tool(proxy.address, CONFIGS, "--alter", *entity, "--add-config", "retention.ms=1234567")
    shown = (CONFIGS, "--describe", *entity)
    wait_for(lambda: "retention.ms=1234567" in tool(proxy.address, *shown), "the broker shows the new configuration")
    assert "brokers 1,1000001" in tool(proxy.address, "LogDirsCommand", "--describe", "--topic-list", ",".join(topics))
    places = [{"topic": topic, "partition": 0} for topic in topics]
    file.write_text(json.dumps({"version": 1, "partitions": [place | {"offset": 2} for place in places]}))
    told = tool(proxy.address, "DeleteRecordsCommand", "--offset-json-file", str(file))
    assert told.count("low_watermark: 2") == 2
    file.write_text(json.dumps({"partitions": places}))
    elect = ("--election-type", "preferred", "--path-to-json-file", str(file))
    assert "Valid replica already elected" in tool(proxy.address, "LeaderElectionCommand", *elect)
    moves = [place | {"replicas": [node]} for place, node in zip(places, (1, 1_000_001), strict=True)]
    file.write_text(json.dumps({"version": 1, "partitions": moves}))
    asked = ("--reassignment-json-file", str(file))
    assert "Successfully started" in tool(proxy.address, REASSIGN, "--execute", *asked)
    wait_for(lambda: tool(proxy.address, REASSIGN, "--verify", *asked).count("is completed") == 2, "both have moved")
    assert "No partition reassignments found" in tool(proxy.address, REASSIGN, "--list")
    entity = ("--entity-type", "groups", "--entity-name", "eu-java-rest")
    tool(proxy.address, CONFIGS, "--alter", *entity, "--add-config", "consumer.session.timeout.ms=50000")
    assert "group eu-java-rest are" in tool(proxy.address, CONFIGS, "--describe", "--entity-type", "groups")
    producers = ("describe-producers", "--topic", "eu.java-rest", "--partition", "0")
    assert len(tool(proxy.address, "TransactionsCommand", *producers).splitlines()) == 1
    assert "1000001" in tool(proxy.address, "ClusterTool", "list-endpoints")
