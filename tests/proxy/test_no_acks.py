"""What a client writes with acks=0 just before it closes is stored, though nobody waits for it."""

import socket
from datetime import timedelta

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kio.schema.produce.v9.request import PartitionProduceData, ProduceRequest, TopicProduceData
from kio.schema.types import TopicName, TransactionalId
from kio.static.primitive import Records, i16, i32, i32Timedelta

from strandline.stack.kafka import KafkaCluster
from strandline.wire.kafka_frames import encode_request
from tests.proxy.raw import at_leader
from tests.proxy.support import Proxied, create, record_count
from tests.support import TIMEOUT, wait_for


def request(topic: str, size: int, *, acks: int = 0, transactional_id: str | None = None) -> bytes:
    """A frame that writes a record of so many bytes, and waits for no answer unless told to."""
    batch = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    batch.append(0, 0, None, b"x" * size, [])
    partition = PartitionProduceData(index=i32(0), records=Records(bytes(batch.build())))
    produce = ProduceRequest(
        transactional_id=None if transactional_id is None else TransactionalId(transactional_id),
        acks=i16(acks),
        timeout=i32Timedelta.parse(timedelta(seconds=30)),
        topic_data=(TopicProduceData(name=TopicName(topic), partition_data=(partition,)),),
    )
    return encode_request(produce, 1, "no-acks")


def test_what_comes_before_the_end_of_a_connection_is_passed_on(
    proxy: Proxied, clusters: tuple[KafkaCluster, KafkaCluster]
) -> None:
    create(proxy.settings(), {"eu.no-acks": 1})
    # Whoever leads has to know it: nobody is told what becomes of what follows.
    with at_leader(proxy, "eu.no-acks") as leader:
        place = leader.getpeername()
    for size in (1000, 500_000) * 5:
        with socket.create_connection(place, timeout=TIMEOUT) as connection:
            connection.sendall(request("eu.no-acks", size))
    settings = clusters[1].settings()
    wait_for(lambda: record_count(settings, "eu.no-acks") == 10, "all are stored")


def test_what_is_refused_without_an_acknowledgement_ends_its_connection(proxy: Proxied) -> None:
    create(proxy.settings(), {"no-acks": 1})
    # A transaction of the west in the east: an answer would be taken for one to something else.
    with at_leader(proxy, "no-acks") as connection:
        connection.sendall(request("no-acks", 10, transactional_id="eu-no-acks"))
        assert connection.recv(1) == b""
