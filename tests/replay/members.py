"""Members of a replay as processes of their own, and what must hold of all that came to their target."""

import asyncio
import ctypes
import os
import signal
import sys
from collections import defaultdict
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Self

from strandline.stack.kafka import KafkaCluster
from tests.ordered.support import create_topic
from tests.replay.support import Arrival, Said, Server, connection, get, write
from tests.support import TIMEOUT

PR_SET_PDEATHSIG = 1


def steady(kafka: KafkaCluster, topic: str, *, connections: int, requests: int, every: float, partitions: int) -> None:
    """Connections that each send a request every so many milliseconds, `/connection/number`, in the order of time."""
    create_topic(kafka.address, topic, partitions)
    records: list[tuple[float, str, bytes]] = []
    for c in range(connections):
        name, begin = f"c{c}", every * c / connections
        said = [Said(begin + every * n, get(f"/{name}/{n}")) for n in range(requests)]
        made = connection(name, said, close_at=begin + every * requests)
        records += [(begin + every * n, name, record) for n, record in enumerate(made)]
    write(kafka.address, topic, ((name, record) for _, name, record in sorted(records, key=lambda found: found[0])))


class Member:
    """`strandline replay`, run as a command."""

    def __init__(self, kafka: KafkaCluster, topic: str, server: Server, name: str, tmp_path: Path) -> None:
        self.name = name
        config = tmp_path / f"{topic}-{name}.yaml"
        config.write_text(f"transforms:\n  - set_header: {{X-Member: {name}}}\n")
        self._log = tmp_path / f"{topic}-{name}.log"
        self._command = [
            *(sys.executable, "-m", "strandline", "replay", "--target", f"http://127.0.0.1:{server.port}"),
            *("--topic", topic, "--kafka", kafka.address, "--group", f"{topic}-group", "--config", str(config)),
            *("--until", "live", "--quiescence", "0.5", "--set", "session.timeout.ms=6000"),
            # So that members hear of a rebalance soon.
            *("--set", "heartbeat.interval.ms=300"),
        ]

    async def start(self, *arguments: str) -> Self:
        with self._log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self._command, *arguments, stderr=log, stdout=log, preexec_fn=_end_with_parent
            )
        return self

    async def end(self, number: signal.Signals | None = None) -> int:
        """Send it a signal, if any, and wait for its exit code."""
        if number is not None:
            self.send(number)
        return await asyncio.wait_for(self.process.wait(), TIMEOUT)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended.

        `Process.send_signal` would reap a process that has just ended by itself, and asyncio, which finds no process to
        wait for, would then report its exit code as 255.
        """
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def has_sent(self, server: Server) -> bool:
        return any(member(arrival) == self.name for arrival in server.arrivals)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def member(arrival: Arrival) -> str:
    return arrival.header("X-Member")


def assert_all_came_in_order(arrivals: list[Arrival], connections: int, requests: int) -> None:
    """Every request came at least once, and the first arrivals of each connection in its order."""
    first = dict.fromkeys(arrival.path for arrival in arrivals)
    by_connection: dict[str, list[int]] = defaultdict(list)
    for path in first:
        name, number = path[1:].split("/")
        by_connection[name].append(int(number))
    assert by_connection == {f"c{c}": list(range(requests)) for c in range(connections)}


def assert_never_served_by_two_at_once(arrivals: list[Arrival]) -> None:
    """Once a source connection is served over another connection to the target, nothing comes over the one before."""
    over: dict[str, list[int]] = defaultdict(list)
    for arrival in arrivals:
        over[arrival.path.split("/")[1]].append(arrival.connection)
    for name, used in over.items():
        runs = [number for number, _ in groupby(used)]
        assert len(runs) == len(set(runs)), f"{name} was served over {runs}"


def place(arrival: Arrival) -> tuple[int, int]:
    """The partition and offset of the record in which a request begins."""
    partition, _, offset = arrival.mark.partition(".")[0].partition("-")
    return int(partition), int(offset)
