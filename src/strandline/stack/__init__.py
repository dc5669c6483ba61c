"""Real Kafka and Postgres servers and a Kinesis endpoint on free loopback ports, for development and tests."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

# Loaded when first asked for: every process of Spark loads what finds Java and the cache, and none a server.
_LATER = {
    **dict.fromkeys(("FailRecords", "Fault", "Refuse", "Shuffle", "Slow", "Throttle", "TimeOut"), "endpoint.faults"),
    **dict.fromkeys(("AcceptedRecord", "Kinesis"), "kinesis"),
    **dict.fromkeys(("SERVERS", "Stack"), "stack"),
    "KafkaCluster": "kafka",
    "Postgres": "postgres",
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
