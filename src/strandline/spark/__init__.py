"""Strandline on Spark. The only package that imports pyspark."""

from importlib import import_module
from typing import TYPE_CHECKING

from strandline.spark.session import register, session

if TYPE_CHECKING:
    from strandline.spark.selection import replay
    from strandline.spark.traffic_stream import http_traffic

__all__ = ["http_traffic", "register", "replay", "session"]

# Loaded when first asked for: what decodes records takes seconds, and members of a fleet do without.
_LATER = {"http_traffic": "strandline.spark.traffic_stream", "replay": "strandline.spark.selection"}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
