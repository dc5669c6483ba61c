"""A connection hands on every byte in its order, whether it is looked at or goes straight, also to a slow receiver."""

import asyncio
import fcntl
import random
import socket
import struct
import termios
from threading import Thread

import pytest

from strandline.proxy import pipe
from strandline.proxy.link import PIECE, SCRATCH, STRAIGHT_FROM, Link
from tests.proxy.support import received
from tests.support import TIMEOUT, wait_for

LOOKED_AT = 1000
SIZE = 6 << 20
SMALL_BUFFER = 64 << 10
DROP = 7_000


def connected() -> tuple[socket.socket, socket.socket]:
    """Two ends of a connection over TCP that holds little on its way."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        near = socket.create_connection(listening.getsockname(), timeout=TIMEOUT)
        far, _ = listening.accept()
    far.settimeout(TIMEOUT)
    far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER)
    near.setblocking(False)
    return near, far


class Forwarder:
    """Looks at some bytes, lets as many as chance says go straight, and looks at some again."""

    def __init__(self, source: socket.socket, target: socket.socket, chance: random.Random) -> None:
        self.ended = asyncio.get_running_loop().create_future()
        self._chance = chance
        self.target = Link(target, len, self._over, self._drained)
        self.source = Link(source, self._take, self._over, lambda: None)
        self.source.resume()

    def _take(self, view: memoryview) -> int:
        # A field that has not come whole comes again.
        held = self._chance.choice((0, 0, 2)) if len(view) > LOOKED_AT else 0
        self.target.write(view[: len(view) - held])
        if not held:
            self.source.straight(self._chance.choice((1, STRAIGHT_FROM, 300_000, 900_000)), self.target)
        if self.target.is_full:
            self.source.pause()
        return len(view) - held

    def _drained(self) -> None:
        self.source.resume()

    def _over(self, error: Exception | None) -> None:
        self.target.close(after_sending=True)
        if not self.ended.done():
            self.ended.set_result(error)


@pytest.mark.parametrize("seed", range(4))
def test_every_byte_goes_on_in_its_order_to_a_receiver_of_any_speed(seed: int) -> None:
    asyncio.run(forwarded(seed))


async def forwarded(seed: int) -> None:
    chance = random.Random(seed)
    sent = chance.randbytes(SIZE)
    (source, client), (target, broker) = connected(), connected()
    received = bytearray()

    def write() -> None:
        with client:
            client.sendall(sent)

    def read() -> None:
        with broker:
            while part := broker.recv(chance.choice((100, 5_000, 200_000))):
                received.extend(part)

    threads = [Thread(target=write), Thread(target=read)]
    forwarder = Forwarder(source, target, chance)
    for thread in threads:
        thread.start()
    try:
        async with asyncio.timeout(TIMEOUT):
            assert await forwarder.ended is None
            await asyncio.gather(*(asyncio.to_thread(thread.join, TIMEOUT) for thread in threads))
    finally:
        forwarder.source.close()
        forwarder.target.close()
    assert received == sent
    assert forwarder.source.received == forwarder.target.sent == SIZE


def test_a_receiver_that_does_not_read_stops_the_reading() -> None:
    asyncio.run(stopped())


async def stopped() -> None:
    (source, client), (target, broker) = connected(), connected()
    forwarder = Forwarder(source, target, random.Random(1))
    client.setblocking(False)
    waiting, is_stuck = 0, False
    try:
        async with asyncio.timeout(TIMEOUT):
            # That nothing can be sent may also be because what was sent has not arrived yet.
            while not is_stuck or forwarder.source.is_reading:
                try:
                    waiting += client.send(bytes(100_000))
                    is_stuck = False
                except BlockingIOError:
                    is_stuck = True
                assert waiting < 100_000_000, "it reads without end"
                await asyncio.sleep(0)
        assert forwarder.target.is_full
        assert waiting - forwarder.source.received > 0
    finally:
        forwarder.source.close()
        forwarder.target.close()
        client.close()
        broker.close()


@pytest.mark.parametrize("piece", [PIECE, pipe.MOST])
def test_who_sends_no_more_before_all_has_arrived_does_not_wait(piece: int) -> None:
    asyncio.run(waited_for(piece))


async def waited_for(piece: int) -> None:
    """Frames of which the size is looked at; each is sent when the one before has arrived."""
    (source, client), (target, broker) = connected(), connected()
    passing = 0

    def take(view: memoryview) -> int:
        nonlocal passing
        used = 0
        if not passing:
            if len(view) < 4:
                return 0
            passing, used = int.from_bytes(view[:4]), 4
        part = min(passing, len(view) - used)
        passing -= part
        outgoing.write(view[: used + part], more=passing > 0)
        if passing and incoming.straight(passing, outgoing):
            passing = 0
        return used + part

    def send(frame: bytes) -> None:
        for begin in range(0, len(frame), DROP):
            client.sendall(frame[begin : begin + DROP])

    incoming = Link(source, take, lambda _: None, lambda: None)
    outgoing = Link(target, len, lambda _: None, incoming.resume, piece=piece)
    incoming.resume()
    chance = random.Random(0)
    try:
        for size in (0, 10, piece + 1, 10, 8 * piece + DROP, 0, STRAIGHT_FROM + 2 * DROP, STRAIGHT_FROM - 1, 10):
            frame = size.to_bytes(4) + chance.randbytes(size)
            sending = asyncio.create_task(asyncio.to_thread(send, frame))
            arrived = bytearray()
            while len(arrived) < len(frame):
                part = await asyncio.to_thread(broker.recv, len(frame) - len(arrived))
                assert part
                arrived += part
            await sending
            assert arrived == frame
    finally:
        for link in (incoming, outgoing):
            link.close()
        client.close()
        broker.close()


def test_a_part_of_a_piece_goes_on_when_it_is_asked_for() -> None:
    asyncio.run(nudged())


async def nudged() -> None:
    (source, client), (target, broker) = connected(), connected()
    taken = asyncio.Event()

    def take(view: memoryview) -> int:
        outgoing.write(view)
        incoming.straight(8 * PIECE, outgoing)
        taken.set()
        return len(view)

    incoming = Link(source, take, lambda _: None, lambda: None)
    outgoing = Link(target, len, lambda _: None, incoming.resume)
    incoming.resume()
    try:
        async with asyncio.timeout(TIMEOUT):
            client.sendall(b"first")
            await taken.wait()
            client.sendall(bytes(DROP))
            while incoming.received < len(b"first") + DROP:
                incoming.nudge()
                await asyncio.sleep(0.01)
        assert received(broker, len(b"first") + DROP) == b"first" + bytes(DROP)
    finally:
        for link in (incoming, outgoing):
            link.close()
        client.close()
        broker.close()


def await_arrival(sock: socket.socket, count: int) -> None:
    """Wait until so many bytes can be read: what was sent may still be on its way, also within a machine."""

    def there() -> int:
        found: int = struct.unpack("i", fcntl.ioctl(sock, termios.FIONREAD, bytes(4)))[0]
        return found

    wait_for(lambda: there() == count, f"{count} bytes have arrived")


def test_a_broken_receiver_ends_its_own_connection_and_leaves_the_pipe_empty() -> None:
    (source, client), (target, broker) = connected(), connected()
    target.shutdown(socket.SHUT_WR)
    client.sendall(bytes(10_000))
    await_arrival(source, 10_000)
    came, rest, broken = pipe.move(source.fileno(), target.fileno(), 10_000)
    assert (came, len(rest)) == (10_000, 10_000)
    assert isinstance(broken, BrokenPipeError)
    (other, receiver) = connected()
    client.sendall(b"next")
    await_arrival(source, 4)
    assert pipe.move(source.fileno(), other.fileno(), len(SCRATCH)) == (4, b"", None)
    assert receiver.recv(100) == b"next"
    for each in (source, client, target, broker, other, receiver):
        each.close()
