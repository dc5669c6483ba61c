"""A network between the proxy and a broker: it can be slow, and it can lose everything without a word."""

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Lock, Thread
from typing import Self

from strandline.stack.ports import LOOPBACK
from tests.support import TIMEOUT

CHUNK = 1 << 16
BACKLOG = 128
SIZE = struct.Struct(">i")


class Relay:
    """Passes connections on to a broker, which is said to be here wherever it says where it is."""

    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self._target = host, int(port)
        self._listening = socket.create_server((LOOPBACK, 0), backlog=BACKLOG)
        self.address = f"{LOOPBACK}:{self._listening.getsockname()[1]}"
        own_port = self._listening.getsockname()[1]
        self._there = LOOPBACK.encode() + int(port).to_bytes(4, "big")
        self._here = LOOPBACK.encode() + own_port.to_bytes(4, "big")
        self._passes = Event()
        self._passes.set()
        self._delay_s = 0.0
        self._loses_answers = False
        self._ends = False
        self._open: list[socket.socket] = []
        self._lock = Lock()
        self._threads = [Thread(target=self._accept)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends = True
        self._passes.set()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._threads[0].join()
        with self._lock:
            for sock in self._open:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()
        for sock in self._open:
            sock.close()

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Nothing comes through, and nobody is told. What was sent meanwhile comes late, as TCP sends it again."""
        self._passes.clear()
        # With no room for connections that nobody takes, those that come now are not even established. At any other
        # time a thread that is late to take one must not cost its client the second until TCP asks again.
        self._listening.listen(0)
        try:
            yield
        finally:
            self._listening.listen(BACKLOG)
            self._passes.set()

    @contextmanager
    def slow(self, delay_s: float) -> Iterator[None]:
        """Every piece takes so long."""
        self._delay_s = delay_s
        try:
            yield
        finally:
            self._delay_s = 0.0

    @contextmanager
    def answers_lost(self) -> Iterator[None]:
        """Requests come through to the broker, and its answers are lost."""
        self._loses_answers = True
        try:
            yield
        finally:
            self._loses_answers = False

    def _accept(self) -> None:
        while True:
            self._passes.wait()
            try:
                near, _ = self._listening.accept()
            except OSError:
                if self._ends:
                    return
                continue
            self._passes.wait()
            try:
                far = socket.create_connection(self._target, timeout=TIMEOUT)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            with self._lock:
                self._open += [near, far]
                pumps = [Thread(target=self._forth, args=(near, far)), Thread(target=self._back, args=(far, near))]
                self._threads += pumps
            for pump in pumps:
                pump.start()

    def _forth(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError):
            while data := self._received(near):
                far.sendall(data)
        self._end(far)

    def _back(self, far: socket.socket, near: socket.socket) -> None:
        # An address may come in two pieces, so that answers go on whole.
        held = bytearray()
        with suppress(OSError):
            while data := self._received(far):
                if self._loses_answers:
                    continue
                held += data
                while len(held) >= SIZE.size and len(held) >= (end := SIZE.size + SIZE.unpack_from(held)[0]):
                    near.sendall(held[:end].replace(self._there, self._here))
                    del held[:end]
        self._end(near)

    def _received(self, sock: socket.socket) -> bytes:
        data = sock.recv(CHUNK)
        if self._delay_s:
            time.sleep(self._delay_s)
        self._passes.wait()
        return data

    def _end(self, sock: socket.socket) -> None:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_WR)
