"""Kafka topics as Arrow batches, in timestamp order across all partitions."""
