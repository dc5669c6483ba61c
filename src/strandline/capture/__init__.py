"""Live HTTP traffic captured to Kafka."""
