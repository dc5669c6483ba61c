"""The frontier's speed and size: 100,000 items in flight, finished in random order, one core."""

import random
import time
import tracemalloc

from bench.figures import Figure, report
from strandline.core.frontier import Frontier, Ticket
from strandline.units import Nanos

IN_FLIGHT = 100_000
PAIRS = 1_000_000


class BareFrontier:
    """The least that a frontier can be, as a limit: no lock, no ages, no generations, a ticket a position."""

    def __init__(self) -> None:
        self.first = 0
        self.finished = bytearray()

    def register(self, position: int, now: Nanos) -> Ticket:  # noqa: ARG002  (same shape as the real one)
        self.finished.append(0)
        return Ticket(position)

    def done(self, ticket: Ticket) -> int | None:
        index = ticket - self.first
        self.finished[index] = 1
        if index:
            return None
        run = self.finished.find(0)
        run = len(self.finished) if run < 0 else run
        del self.finished[:run]
        self.first += run
        return self.first - 1


def pairs_per_second(frontier: Frontier[int] | BareFrontier) -> float:
    """Keep 100,000 in flight: for each one finished, chosen at random, register another, its age included."""
    chance = random.Random(1)
    picks = [chance.randrange(IN_FLIGHT) for _ in range(PAIRS)]
    now = [Nanos(time.monotonic_ns() + n) for n in range(PAIRS)]
    flying = [frontier.register(position, Nanos(0)) for position in range(IN_FLIGHT)]
    register, done = frontier.register, frontier.done
    begin = time.perf_counter()
    for position, pick in enumerate(picks):
        done(flying[pick])
        flying[pick] = register(IN_FLIGHT + position, now[position])
    elapsed = time.perf_counter() - begin
    moves = [move for move in map(done, flying) if move is not None]
    if moves[-1] != IN_FLIGHT + PAIRS - 1:
        raise AssertionError(f"the frontier stopped at {moves[-1]}")
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
    bare = max(pairs_per_second(BareFrontier()) for _ in range(3))
    real = max(pairs_per_second(Frontier()) for _ in range(3))
    report(
        "Frontier, 100,000 items in flight, finished in random order, one core, best of 3",
        [
            Figure("core.frontier_pairs_per_s", real, "register + done, with lock, ages and generations", 500_000),
            Figure("core.bare_pairs_per_s", bare, "the same on a bare byte per item: the limit"),
            Figure("core.frontier_vs_bare", real / bare, "share of the limit"),
            Figure("core.frontier_bytes_per_item", bytes_per_item(), "position, time and ticket included"),
        ],
    )
