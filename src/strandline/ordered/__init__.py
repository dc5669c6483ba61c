"""Kafka topics as Arrow batches, in the order of time across all partitions."""

from strandline.kafka.starts import Ago, AtTime, Committed, Earliest, Latest, StartAt
from strandline.ordered.blocking import OrderedConsumer
from strandline.ordered.consumer import AsyncOrderedConsumer
from strandline.ordered.reading import Loss
from strandline.ordered.starts import Topic

__all__ = [
    "Ago",
    "AsyncOrderedConsumer",
    "AtTime",
    "Committed",
    "Earliest",
    "Latest",
    "Loss",
    "OrderedConsumer",
    "StartAt",
    "Topic",
]
