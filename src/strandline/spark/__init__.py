"""Strandline on Spark. The only package that imports pyspark."""

from strandline.spark.replay import replay
from strandline.spark.session import register, session
from strandline.spark.traffic_stream import http_traffic

__all__ = ["http_traffic", "register", "replay", "session"]
