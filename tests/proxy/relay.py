"""A network between the proxy and a broker: it can be slow, and it can lose everything without a word."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Lock, Thread
from typing import Self

from strandline.stack.ports import LOOPBACK

CHUNK = 1 << 16


class Relay:
    """Passes connections on to a broker, which is said to be here wherever it says where it is."""

    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self._target = host, int(port)
        # With no room for connections that nobody takes, those that come while it is cut are not even established.
        self._listening = socket.create_server((LOOPBACK, 0), backlog=0)
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
        try:
            yield
        finally:
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
                far = socket.create_connection(self._target, timeout=30)
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
        held = b""
        with suppress(OSError):
            while data := self._received(far):
                if self._loses_answers:
                    continue
                data = (held + data).replace(self._there, self._here)
                # An address may come in two pieces.
                kept = next((n for n in range(len(self._there) - 1, 0, -1) if data.endswith(self._there[:n])), 0)
                held = data[len(data) - kept :]
                near.sendall(data[: len(data) - kept])
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
