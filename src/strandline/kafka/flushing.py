"""Waiting until all that was given to a publisher is written."""

import asyncio
from datetime import timedelta

from strandline.kafka.producer import Publisher


async def flush(publisher: Publisher, timeout: timedelta) -> int:
    """Wait until all is reported on, or the time is out; how many are not."""
    try:
        async with asyncio.timeout(timeout.total_seconds()):
            while publisher.outstanding:
                await publisher.room()
    except TimeoutError:
        pass
    return publisher.outstanding
