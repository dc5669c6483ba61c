"""Real Kafka, Postgres and Kinesis servers on free loopback ports, for development and tests."""

from strandline.stack.kafka import KafkaCluster
from strandline.stack.kinesis import Kinesis
from strandline.stack.postgres import Postgres
from strandline.stack.stack import SERVERS, Stack

__all__ = ["SERVERS", "KafkaCluster", "Kinesis", "Postgres", "Stack"]
