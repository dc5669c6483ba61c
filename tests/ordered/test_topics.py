"""A topic counts as ready once each of its partitions has a leader, and not when Kafka has taken the order for it."""

import signal
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from strandline.errors import BrokerUnreachable
from strandline.kafka.topics import wait_until_led
from strandline.stack import KafkaCluster
from tests.support import TIMEOUT, wait_for
from tests.topics import create_topics, wait_until_served


def test_a_partition_without_a_leader_is_waited_for_and_named_when_it_takes_too_long(pair: KafkaCluster) -> None:
    topic, second = "without-leader", pair.brokers[1]
    create_topics(pair.settings(), NewTopic(topic, 2, replica_assignment=[[1], [2]]))
    admin = AdminClient({**pair.settings()})
    port = int(pair.address.rpartition(":")[2])

    def leaders() -> list[int]:
        return [partition.leader for partition in admin.list_topics(timeout=TIMEOUT).topics[topic].partitions.values()]

    def served() -> bool:
        wait_until_served(pair.settings(), {topic: 2})
        with socket.socket() as visitor:
            return visitor.connect_ex(("127.0.0.1", port)) == 0

    second.stop(signal.SIGTERM, TIMEOUT)
    try:
        wait_for(lambda: leaders() == [1, -1], "the other broker knows that it is gone")
        with pytest.raises(BrokerUnreachable, match=rf"shows no leader for nowhere, {topic}/1 after 0.1 s"):
            wait_until_led(admin, [topic, "nowhere"], pair.address, 0.1)
        with ThreadPoolExecutor() as pool:
            led, answered = pool.submit(wait_until_led, admin, [topic], pair.address, TIMEOUT), pool.submit(served)
            second.start()
            led.result(TIMEOUT)
            assert answered.result(TIMEOUT), "returned before the leader was there"
    finally:
        if second.death() is not None:
            second.start()
        pair.wait_ready()
