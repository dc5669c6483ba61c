"""The frontier's speed and size: 100,000 items in flight, finished in random order, one core."""

import random
import time
import tracemalloc
from dataclasses import dataclass

from bench.amounts import parse
from bench.figures import Figure, report
from strandline.core.frontier import Frontier, Ticket
from strandline.units import Nanos


@dataclass(frozen=True)
class Amounts:
    """How much is done."""

    in_flight: int = 100_000
    pairs: int = 1_000_000
    rounds: int = 3


QUICK = Amounts(in_flight=10_000, pairs=50_000, rounds=1)


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


def pairs_per_second(frontier: Frontier[int] | BareFrontier, in_flight: int, pairs: int) -> float:
    """Keep so many in flight: for each one finished, chosen at random, register another, its age included."""
    chance = random.Random(1)
    picks = [chance.randrange(in_flight) for _ in range(pairs)]
    now = [Nanos(time.monotonic_ns() + n) for n in range(pairs)]
    flying = [frontier.register(position, Nanos(0)) for position in range(in_flight)]
    register, done = frontier.register, frontier.done
    begin = time.perf_counter()
    for position, pick in enumerate(picks):
        done(flying[pick])
        flying[pick] = register(in_flight + position, now[position])
    elapsed = time.perf_counter() - begin
    moves = [move for move in map(done, flying) if move is not None]
    if moves[-1] != in_flight + pairs - 1:
        raise AssertionError(f"the frontier stopped at {moves[-1]}")
    return pairs / elapsed


def bytes_per_item(in_flight: int) -> float:
    """What one item in flight takes, its position, its time and the ticket that the caller holds included."""
    frontier: Frontier[int] = Frontier()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    tickets = [frontier.register(2**40 + n, Nanos(2**60 + n)) for n in range(in_flight)]
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / len(tickets)


if __name__ == "__main__":
    amounts, is_quick = parse("bench.core", Amounts(), QUICK)
    work = (amounts.in_flight, amounts.pairs)
    bare = max(pairs_per_second(BareFrontier(), *work) for _ in range(amounts.rounds))
    real = max(pairs_per_second(Frontier(), *work) for _ in range(amounts.rounds))
    size = bytes_per_item(amounts.in_flight)
    report(
        f"Frontier, {amounts.in_flight:,} items in flight, finished in random order, one core, best of"
        f" {amounts.rounds}",
        [
            Figure("core.frontier_pairs_per_s", real, "register + done, with lock, ages and generations", 500_000),
            Figure("core.bare_pairs_per_s", bare, "the same on a bare byte per item: the limit"),
            Figure("core.frontier_vs_bare", real / bare, "share of the limit"),
            Figure("core.frontier_bytes_per_item", size, "position, time and ticket included"),
        ],
        is_quick=is_quick,
    )
