"""Brokers that move, die, freeze and come back under a reader: every row once and in order all the same."""

import signal
from datetime import timedelta

import pytest
from confluent_kafka.admin import AdminClient

from strandline.core.retry import Attempts, Policy, Within
from strandline.errors import AuthenticationFailed, BrokerUnreachable
from strandline.kafka.cluster import AGAIN
from strandline.ordered import OrderedConsumer, Topic
from strandline.stack import KafkaCluster
from strandline.units import nanos
from tests.ordered.support import Row, create_topic, inversions, offsets, produce, rows_of
from tests.support import TIMEOUT, wait_for

DAY = 1_767_225_600_000
EACH = 10_000
SMALL = 1 << 20


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for brokers as long as a busy machine may take to start them: how long a reader waits is another test."""
    monkeypatch.setattr("strandline.ordered.reading.PATIENCE", timedelta(seconds=TIMEOUT))
    longer = Policy(backoff=AGAIN.backoff, until=Within(nanos(timedelta(seconds=TIMEOUT))))
    monkeypatch.setattr("strandline.ordered.reading.AGAIN", longer)


def fill(cluster: KafkaCluster, topic: str) -> None:
    """Four partitions on both brokers, far more than a small buffer takes."""
    create_topic(cluster.address, topic, 4, replicas=2)
    produce(cluster.address, topic, [(n % 4, DAY + n, b"x" * 500) for n in range(4 * EACH)], acks="all")
    admin = AdminClient({"bootstrap.servers": cluster.address})

    def is_in_sync() -> bool:
        partitions = admin.list_topics(topic, timeout=TIMEOUT).topics[topic].partitions.values()
        return all(len(partition.isrs) == 2 for partition in partitions)

    # A leader that dies is followed by a replica only if that is in sync, and one that was slow is not at once.
    wait_for(is_in_sync, "every replica is in sync")


def check(rows: list[Row]) -> None:
    assert inversions(rows) == 0
    assert offsets(rows) == {partition: list(range(EACH)) for partition in range(4)}


@pytest.mark.usefixtures("patient")
def test_the_leaders_of_half_the_partitions_die_and_the_reader_goes_on(pair: KafkaCluster) -> None:
    fill(pair, "leader-dies")
    second = pair.brokers[1]
    with OrderedConsumer(pair.settings(), [Topic("leader-dies")], buffer_bytes=SMALL, batch_rows=1000) as consumer:
        rows = rows_of([consumer.poll(TIMEOUT)])
        second.stop(signal.SIGKILL, silence_s=0)
        try:
            rows += rows_of(consumer.until_live())
            assert consumer.losses == ()
        finally:
            second.start()
            pair.wait_ready()
    check(rows)


@pytest.mark.usefixtures("patient")
def test_every_broker_is_killed_and_comes_back_and_the_reader_goes_on(pair: KafkaCluster) -> None:
    fill(pair, "all-die")
    with OrderedConsumer(pair.settings(), [Topic("all-die")], buffer_bytes=SMALL, batch_rows=1000) as consumer:
        rows = rows_of([consumer.poll(TIMEOUT)])
        for broker in pair.brokers:
            broker.stop(signal.SIGKILL, silence_s=0)
        rows += rows_of([consumer.poll(0)])
        for broker in pair.brokers:
            broker.start()
        rows += rows_of(consumer.until_live())
        assert consumer.losses == ()
    check(rows)
    pair.wait_ready()


@pytest.mark.usefixtures("patient")
def test_a_broker_that_freezes_is_given_up_and_its_partitions_are_read_elsewhere(
    pair: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(pair, "freezes")
    monkeypatch.setattr("strandline.kafka.cluster.ANSWER_WITHIN", 2.0)
    second = pair.brokers[1]
    with OrderedConsumer(pair.settings(), [Topic("freezes")], buffer_bytes=SMALL, batch_rows=1000) as consumer:
        rows = rows_of([consumer.poll(TIMEOUT)])
        second.send(signal.SIGSTOP)
        try:
            rows += rows_of(consumer.until_live())
        finally:
            second.send(signal.SIGCONT)
    check(rows)
    pair.wait_ready()


def test_a_cluster_that_stays_away_is_told_when_patience_ends(
    pair: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(pair, "stays-away")
    monkeypatch.setattr("strandline.ordered.reading.AGAIN", Policy(backoff=AGAIN.backoff, until=Attempts(3)))
    with OrderedConsumer(pair.settings(), [Topic("stays-away")], buffer_bytes=SMALL) as consumer:
        consumer.poll(TIMEOUT)
        for broker in pair.brokers:
            broker.stop(signal.SIGKILL, silence_s=0)
        try:
            with pytest.raises(BrokerUnreachable):
                for _ in consumer.until_live():
                    pass
            with pytest.raises(BrokerUnreachable):
                consumer.poll()
        finally:
            for broker in pair.brokers:
                broker.start()
            pair.wait_ready()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_rows_come_over_tls_with_a_password(secure_kafka: KafkaCluster, mechanism: str) -> None:
    topic = f"read-by-{mechanism.lower()}"
    fill(secure_kafka, topic)
    settings = {**secure_kafka.secure_settings(mechanism), "group.id": "secure"}
    with OrderedConsumer(settings, [Topic(topic)]) as consumer:
        rows = rows_of(consumer.until_live())
        consumer.commit()
    check(rows)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_wrong_password_is_told_at_once(secure_kafka: KafkaCluster, mechanism: str) -> None:
    settings = {**secure_kafka.secure_settings(mechanism), "sasl.password": "wr0ng-secret"}
    with pytest.raises(AuthenticationFailed, match="refuses user") as caught:
        OrderedConsumer(settings, [Topic("secure")])
    assert "wr0ng-secret" not in str(caught.value)


def test_a_certificate_of_nobody_we_know_is_told_at_once(secure_kafka: KafkaCluster) -> None:
    settings = {**secure_kafka.secure_settings(), "ssl.ca.location": ""}
    with pytest.raises(AuthenticationFailed, match=r"the certificate of .* is refused"):
        OrderedConsumer(settings, [Topic("secure")])
