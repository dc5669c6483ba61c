"""The frontier's speed and size: 100,000 items in flight, finished in random order, one core."""

import random
import time
import tracemalloc

from bench.figures import Figure, report
from strandline.core.frontier import Frontier, Ticket
from strandline.units import Nanos

IN_FLIGHT = 100_000
PAIRS = 1_000_000


def pairs_per_second() -> float:
    """Keep 100,000 in flight: for each one finished, chosen at random, register another, its age included."""
    frontier: Frontier[int] = Frontier()
    chance = random.Random(1)
    picks = [chance.randrange(IN_FLIGHT) for _ in range(PAIRS)]
    now = [Nanos(time.monotonic_ns() + n) for n in range(PAIRS)]
    flying: list[Ticket] = [frontier.register(position, Nanos(0)) for position in range(IN_FLIGHT)]
    frontier.next_generation()
    flying = [frontier.register(position, Nanos(0)) for position in range(IN_FLIGHT)]
    register, done = frontier.register, frontier.done
    begin = time.perf_counter()
    for position, pick in enumerate(picks):
        done(flying[pick])
        flying[pick] = register(IN_FLIGHT + position, now[position])
    elapsed = time.perf_counter() - begin
    for ticket in flying:
        done(ticket)
    if frontier.position != IN_FLIGHT + PAIRS - 1:
        raise AssertionError(f"the frontier stopped at {frontier.position}")
    return PAIRS / elapsed


def bytes_per_item() -> float:
    """What one item in flight takes, its position, its time and the ticket that the caller holds included."""
    frontier: Frontier[int] = Frontier()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    tickets = [frontier.register(2**40 + n, Nanos(2**60 + n)) for n in range(IN_FLIGHT)]
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / len(tickets)


if __name__ == "__main__":
    report(
        "Frontier, 100,000 items in flight, finished in random order",
        [
            Figure(
                "core.frontier_pairs_per_s",
                max(pairs_per_second() for _ in range(3)),
                "register + done, best of 3",
                500_000,
            ),
            Figure("core.frontier_bytes_per_item", bytes_per_item(), "position, time and ticket included"),
        ],
    )
