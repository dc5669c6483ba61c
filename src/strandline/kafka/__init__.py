"""Talking to Kafka: what the products share."""
