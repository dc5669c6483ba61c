"""Kafka topics in the browser over WebSocket; a client that was away misses nothing unsaid."""
