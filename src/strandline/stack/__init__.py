"""Real Kafka and Postgres servers and a Kinesis endpoint on free loopback ports, for development and tests."""

from strandline.stack.endpoint.faults import FailRecords, Fault, Refuse, Shuffle, Slow, Throttle, TimeOut
from strandline.stack.kafka import KafkaCluster
from strandline.stack.kinesis import AcceptedRecord, Kinesis
from strandline.stack.postgres import Postgres
from strandline.stack.stack import SERVERS, Stack

__all__ = [
    "SERVERS",
    "AcceptedRecord",
    "FailRecords",
    "Fault",
    "KafkaCluster",
    "Kinesis",
    "Postgres",
    "Refuse",
    "Shuffle",
    "Slow",
    "Stack",
    "Throttle",
    "TimeOut",
]
