"""Postgres changes in Kinesis, in order per key, nothing lost."""
