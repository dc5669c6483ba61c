"""Strandline on Spark. The only package that imports pyspark."""

from strandline.spark.session import register, session

__all__ = ["register", "session"]
