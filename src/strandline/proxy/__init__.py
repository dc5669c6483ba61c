"""Several Kafka clusters that look like one to any Kafka client."""
