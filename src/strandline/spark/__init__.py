"""Strandline on Spark. The only package that imports pyspark."""

from strandline.spark.session import session

__all__ = ["session"]
