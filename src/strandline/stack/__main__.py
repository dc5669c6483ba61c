"""`python -m strandline.stack` fetches and prepares what the servers need, so that every later start works offline."""

import sys
from threading import Event

from strandline import logs
from strandline.errors import StrandlineError
from strandline.stack.kafka import kafka_runtime

if __name__ == "__main__":
    logs.configure()
    try:
        kafka_runtime(Event())
    except (StrandlineError, OSError) as error:
        sys.exit(f"strandline: {error}")
