"""`python -m strandline.stack` fetches and prepares what the servers need, so that every later start works offline."""

from threading import Event

from strandline import logs
from strandline.stack.kafka import kafka_runtime

if __name__ == "__main__":
    logs.configure()
    kafka_runtime(Event())
