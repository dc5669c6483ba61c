"""What becomes of each API of Kafka."""
