"""Captures drawn at random from a seed: connections interleaved by time, with all that goes wrong on some of them."""

import heapq
import itertools
import random
from collections.abc import Iterator

from strandline.units import Nanos
from strandline.wire.traffic import Recording

MS = 1_000_000
BEGIN = 1_780_000_000_000 * MS
EXPIRY_MS = 5_000
"""After which a connection of such a capture counts as gone."""

GARBAGE = b"\x00\x01 no HTTP\n"
UPGRADE = b"GET /socket HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n"
SWITCHED = b"HTTP/1.1 101 Yes\r\nUpgrade: websocket\r\n\r\n"


def records(seed: int, connections: int = 30) -> list[tuple[str, bytes]]:
    """The key and the value of each record, in the order of the log."""
    chance = random.Random(seed)
    made = [
        _Connection(random.Random(chance.random()), f"c{number}", "node" if number % 3 else "late writer")
        for number in range(connections)
    ]
    return [(key, value) for _, _, key, value in heapq.merge(*(connection.records() for connection in made))]


def ending(keys: list[str]) -> list[tuple[str, bytes]]:
    """A record for each key, of a connection of its own, so late that all connections before it are gone."""
    found = []
    for key in keys:
        recording = Recording("late", key)
        recording.connect(Nanos(BEGIN + 10**6 * MS))
        found += [(key, value) for value in recording.take()]
    return found


class _Connection:
    """Writes what happens on one connection."""

    def __init__(self, chance: random.Random, name: str, node: str) -> None:
        self._chance = chance
        self._name = name
        self._recording = Recording(node, name, 5000)
        self._late = 0 if node == "node" else 4 * EXPIRY_MS * MS
        self._at = BEGIN + chance.randrange(20_000) * MS
        self._is_marked = chance.random() < 0.8
        self._ready: list[bytes] = []

    def records(self) -> Iterator[tuple[int, str, str, bytes]]:
        """Each with its time."""
        chance = self._chance
        for _ in range(chance.randrange(1, 6)):
            self._exchange()
            yield from self._taken()
            if chance.random() < 0.1:
                self._at += 2 * EXPIRY_MS * MS  # it counts as gone, and goes on
        end = chance.random()
        if end < 0.3:
            self._read(b"POST /half HTTP/1.1\r\nContent-Length: 50\r\n\r\nhalf")
        if end < 0.7:
            self._recording.close(Nanos(self._now()))
        self._ready += self._recording.take(last=end < 0.8)
        yield from self._taken()

    def _taken(self) -> Iterator[tuple[int, str, str, bytes]]:
        ready, self._ready = self._ready, []
        for value in ready:
            yield self._at + self._late, self._name, self._name, value
            if self._chance.random() < 0.02:
                yield self._at + self._late, self._name, self._name, value  # a producer that wrote it twice

    def _exchange(self) -> None:
        chance, recording = self._chance, self._recording
        kind = chance.random()
        if kind < 0.05:
            self._read(GARBAGE)
            self._write(GARBAGE)
        elif kind < 0.08:
            self._read(UPGRADE)
            recording.end_of_request(Nanos(self._now()))
            self._write(SWITCHED + b"\x81\x01x")
            self._read(b"\x81\x02yy")
        elif kind < 0.13:
            self._read(self._request())
            recording.drop_request(Nanos(self._now()))
        else:
            count = chance.choice([1, 1, 1, 2, 3])
            self._read(b"".join(self._request() for _ in range(count)))
            if self._is_marked:
                recording.end_of_request(Nanos(self._now()))
            if kind < 0.2:
                return  # no answer ever comes
            self._write(b"".join(self._answer() for _ in range(count)))

    def _now(self) -> int:
        self._at += self._chance.randrange(40) * MS
        return self._at

    def _read(self, data: bytes) -> None:
        for piece in self._pieces(data):
            self._recording.read(Nanos(self._now()), piece)
            self._maybe_cut()

    def _write(self, data: bytes) -> None:
        for piece in self._pieces(data):
            self._recording.write(Nanos(self._now()), piece)
            self._maybe_cut()

    def _maybe_cut(self) -> None:
        if self._chance.random() < 0.4:
            self._ready += self._recording.take()

    def _pieces(self, data: bytes) -> list[bytes]:
        cuts = sorted(
            {0, len(data), *(self._chance.randrange(len(data) + 1) for _ in range(self._chance.randrange(4)))}
        )
        return [data[low:high] for low, high in itertools.pairwise(cuts)]

    def _request(self) -> bytes:
        chance = self._chance
        path = f"/{chance.choice(['items', 'carts', 'users'])}/{chance.randrange(9)}"
        fields = f"Host: shop\r\nX-Many: {chance.randrange(9)}\r\nx-many: again\r\n"
        if chance.random() < 0.5:
            return f"GET {path}?page={chance.randrange(5)} HTTP/1.1\r\n{fields}\r\n".encode()
        body = chance.randbytes(chance.choice([0, 3, 300, 3000]))
        if chance.random() < 0.5:
            return f"POST {path} HTTP/1.1\r\n{fields}Content-Length: {len(body)}\r\n\r\n".encode() + body
        return f"PUT {path} HTTP/1.1\r\n{fields}Transfer-Encoding: chunked\r\n\r\n".encode() + _chunks(body)

    def _answer(self) -> bytes:
        chance = self._chance
        body = chance.randbytes(chance.choice([0, 3, 300, 3000]))
        head = f"HTTP/1.1 {chance.choice([200, 200, 200, 404, 500])} Said\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n"
        if chance.random() < 0.5:
            return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        return f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + _chunks(body)


def _chunks(body: bytes) -> bytes:
    half = len(body) // 2
    parts = [part for part in (body[:half], body[half:]) if part]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
