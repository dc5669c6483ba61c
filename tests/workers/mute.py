"""A worker that works for so many seconds while it starts, and then serves; with 0, it never does."""

import asyncio
import os
import time

from strandline.workers.post import Post, work
from tests.workers.loud import ToWorker, to_worker

SECONDS = "TEST_STARTS_FOR_S"


async def serve(post: Post[ToWorker], _: ToWorker) -> None:
    """Until the end."""
    end = time.monotonic() + float(os.environ[SECONDS])
    while time.monotonic() < end:
        sum(range(10_000))
    if float(os.environ[SECONDS]) == 0:
        await asyncio.sleep(600)
    post.hear(lambda _: None)
    post.serve()
    await post.stop.wait()


if __name__ == "__main__":
    work(serve, to_worker.decode)
