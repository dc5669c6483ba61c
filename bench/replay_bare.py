"""The limit of a machine: a bare loop that sends at absolute times, with no log, no order to keep, and no results.

`python -m bench.replay_bare PORT DUE_FILE WALL`: the times of DUE_FILE, 64-bit nanoseconds, counted from WALL.
"""

import asyncio
import sys
import time
from pathlib import Path

import numpy as np
import uvloop

from bench.replay import CONNECTIONS, request

ANSWERED_WITHIN_S = 5.0


async def main(port: int, due: list[int], wall: int) -> None:
    loop = asyncio.get_running_loop()
    opened = [await loop.create_connection(asyncio.Protocol, "127.0.0.1", port) for _ in range(CONNECTIONS)]
    for number, at in enumerate(due):
        while (wait := (wall + at - time.time_ns()) / 1e9) > 0:
            await asyncio.sleep(wait)
        opened[number % CONNECTIONS][0].write(request(number))
    await asyncio.sleep(ANSWERED_WITHIN_S)


if __name__ == "__main__":
    times = np.fromfile(Path(sys.argv[2]), dtype=np.int64).tolist()
    uvloop.run(main(int(sys.argv[1]), times, int(sys.argv[3])))
