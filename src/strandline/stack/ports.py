"""Free loopback ports for servers that cannot choose their own."""

import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from strandline.errors import PortTaken, StackError

LOOPBACK = "127.0.0.1"
# Below the range that Linux takes for outgoing connections, so that a server that restarts finds its port still free.
FIRST, LAST = 20_000, 32_000
TRIES = 200
START_ATTEMPTS = 5
SOCKET_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
LISTENING = "0A"

T = TypeVar("T")
_chance = random.SystemRandom()


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    for _ in range(TRIES):
        port = _chance.randrange(FIRST, LAST)
        with socket.socket() as probe:
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
            return port
    raise StackError(f"no free port found on {LOOPBACK} between {FIRST} and {LAST}")


def different_ports(count: int, choose: Callable[[], int]) -> list[int]:
    """So many ports, no two the same."""
    ports: dict[int, None] = {}
    for _ in range(count + TRIES):
        ports[choose()] = None
        if len(ports) == count:
            return list(ports)
    raise StackError(f"{count} different ports were asked for, and only {len(ports)} found")


def listening_inodes(port: int) -> set[int]:
    """The sockets that listen on a port. Java's are IPv6 ones even for an IPv4 address."""
    found = set()
    for table in SOCKET_TABLES:
        if table.exists():
            for line in table.read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENING and int(fields[1].partition(":")[2], 16) == port:
                    found.add(int(fields[9]))
    return found


def retry_when_taken(start: Callable[[], T]) -> T:
    """Start something on ports of its own choosing; when one was taken in between, let it choose again."""
    for _ in range(START_ATTEMPTS - 1):
        try:
            return start()
        except PortTaken:
            continue
    return start()
