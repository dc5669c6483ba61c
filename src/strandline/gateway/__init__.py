"""Kafka in the browser: a client that was away misses nothing, or is told exactly what it missed."""
