"""One connection of the proxy: what comes is handed on before anything else is read, what cannot be sent yet is kept.

Sockets without a transport around them: what is looked at goes through one buffer of the process, records through one
pipe of the kernel, and only what a slow receiver does not take is copied. A TLS socket has the buffer alone.

    take(view) -> n      the owner uses n of these bytes; the others come again, with more behind them
    pause, resume        whether the owner wants more
    write(view)          sends what can be sent at once and keeps a copy of the rest; `is_full` asks for a pause
    straight(n, link)    the next n bytes go to another connection without being looked at, in pieces

Whoever waits for bytes that go straight is woken for a whole piece of them, and not for each that the network brings.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from strandline.proxy import pipe

# One for all connections of a process: between a read and the next, everything of it has been sent, kept or copied.
SCRATCH: Final = memoryview(bytearray(1 << 20))
# Where bytes went straight, more will: only so much is read of what comes behind them. It is doubled while all of it
# comes at once, as with many small requests.
LEAST_READ: Final = 16 << 10
FIRST_READ: Final = 64 << 10
# Less is sooner copied than moved.
STRAIGHT_FROM: Final = 32 << 10
# So much is moved at a time. What a slow receiver does not take of it is copied, and waits in memory.
PIECE: Final = pipe.USUAL
# Where the kernel has twice this for what is sent, as it counts, nearly all is taken, and more is moved at a time.
SEND_BUFFER: Final = 4 << 20
SEND_BUFFERS_FOUND: Final = Path("/proc/sys/net/ipv4/tcp_wmem")
# How long somebody has to take what was still to be sent when a connection is closed.
LAST_WORDS_S: Final = 10.0
NOT_NOW: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

# A peer that is gone without a word is known to be after two minutes.
KEEP_ALIVE: Final = {socket.TCP_KEEPIDLE: 60, socket.TCP_KEEPINTVL: 15, socket.TCP_KEEPCNT: 4}

Take = Callable[[memoryview], int]
Ended = Callable[[Exception | None], None]


class Link:
    """A connected socket that does not block. Nothing is read until `resume`."""

    def __init__(
        self, sock: socket.socket, take: Take, ended: Ended, drained: Callable[[], None], *, piece: int = PIECE
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._fd = sock.fileno()
        self._pending = sock.pending if isinstance(sock, ssl.SSLSocket) else None
        self._take = take
        self._ended = ended
        self._drained = drained
        self._left = b""
        self._unsent = bytearray()
        self._at_once = FIRST_READ
        self._straight = 0
        self._onward: Link | None = None
        self._woken_by = 1
        self._piece = piece
        self._reading = False
        self._closing = False
        self.is_closed = False
        self.gate: Callable[[], bool] | None = None
        """Asked before anything is read; where it says no, there is a pause."""
        self.received = 0
        self.sent = 0

    @property
    def is_full(self) -> bool:
        """Whether something is waiting to be sent. What came behind it would have to be copied to wait too."""
        return bool(self._unsent)

    @property
    def is_reading(self) -> bool:
        """Whether what comes is handed on."""
        return self._reading

    @property
    def is_passing(self) -> bool:
        """Whether bytes that go straight to another connection have yet to come."""
        return self._straight > 0

    @property
    def taken(self) -> int:
        """How many bytes of what was sent the other side has taken."""
        return self.sent - len(self._unsent)

    def resume(self) -> None:
        """Hand on what comes, and first what was left."""
        if self._reading or self.is_closed:
            return
        self._reading = True
        self._loop.add_reader(self._fd, self._readable)
        if self._left or (self._pending and self._pending()):
            self._loop.call_soon(self._readable)

    def pause(self) -> None:
        """Hand on nothing more for now."""
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fd)

    def write(self, view: memoryview | bytes, *, more: bool = False) -> None:
        """Send; what does not go at once is kept. `more`: it is of no use to anybody before what comes next."""
        if self.is_closed:
            return
        self.sent += len(view)
        gone = 0
        if not self._unsent:
            try:
                gone = self._socket.send(view, socket.MSG_MORE if more and self._pending is None else 0)
            except NOT_NOW:
                pass
            except OSError as error:
                # Not from inside the owner's call, which would find itself closed half-way.
                self._loop.call_soon(self._end, error)
                return
            if gone == len(view):
                return
        self._keep(view[gone:])

    def straight(self, count: int, onward: "Link") -> bool:
        """Let the next bytes go to another connection; False where they have to be taken, as TLS and a few have."""
        if count < STRAIGHT_FROM or self._pending is not None or onward._pending is not None:
            return False
        self._straight, self._onward = count, onward
        self._at_once = LEAST_READ
        self._await_piece(onward)
        return True

    def nudge(self) -> None:
        """Hand on what has come of a piece that is not whole. Asked every moment: who is slow must be seen to live."""
        if self._straight:
            self._readable()

    def close(self, *, after_sending: bool = False) -> None:
        """Close at once, or once all is sent, if that is soon."""
        if after_sending and self._unsent and not self.is_closed:
            self._closing = True
            self.pause()
            self._loop.call_later(LAST_WORDS_S, self.close)
            return
        if not self.is_closed:
            self.is_closed = True
            self.pause()
            self._loop.remove_writer(self._fd)
            self._socket.close()

    def _readable(self) -> None:
        if not self._reading:
            return
        if self._straight and self._onward is not None:
            self._move(self._onward)
            return
        if self.gate is not None and not self.gate():
            self.pause()
            return
        held = len(self._left)
        SCRATCH[:held] = self._left
        lost: OSError | None = None
        try:
            got = self._receive(held)
        except OSError as error:
            got, lost = 0, error
        end = held + max(got, 0)
        self.received += max(got, 0)
        try:
            used = self._take(SCRATCH[:end])
        except Exception as error:  # noqa: BLE001  (whatever is wrong with what came, it ends this connection alone)
            self._end(error)
            return
        self._left = bytes(SCRATCH[used:end])
        if got == self._at_once:
            self._at_once = min(2 * got, len(SCRATCH))
        if got:
            self._after_taking()
        elif not used:
            self._after_the_last(lost)

    def _after_the_last(self, lost: OSError | None) -> None:
        # What came before the end counts, also where its owner was not ready for it until now.
        if self._reading:
            self._end(lost)

    def _after_taking(self) -> None:
        if not self._reading:
            return
        if len(self._left) == len(SCRATCH):
            self._end(ConnectionError(f"a field of more than {len(SCRATCH):,} bytes"))
        elif self._pending and self._pending():
            self._loop.call_soon(self._readable)
        elif self._straight and self._onward is not None:
            self._move(self._onward)

    def _move(self, onward: "Link") -> None:
        if onward.is_closed or onward.is_full:
            self.pause()
            return
        try:
            came, rest, broken = pipe.move(self._fd, onward._fd, min(self._straight, onward._piece))
        except BlockingIOError:
            return
        except OSError as error:
            self._end(error)
            return
        if not came:
            self._end(None)
            return
        self.received += came
        self._straight -= came
        self._await_piece(onward)
        onward.sent += came
        if broken is not None:
            onward._end(broken)
        elif rest:
            onward._keep(rest)
            self.pause()

    def _await_piece(self, onward: "Link") -> None:
        """Be woken when all of the next piece has come. Never for more than is certain to come."""
        count = min(self._straight, onward._piece) or 1
        if count != self._woken_by:
            self._woken_by = count
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    def _keep(self, rest: memoryview | bytes) -> None:
        if not self._unsent:
            self._loop.add_writer(self._fd, self._writable)
        self._unsent += rest

    def _receive(self, held: int) -> int:
        """How many bytes came; 0 at the end, -1 for none now."""
        try:
            got = self._socket.recv_into(SCRATCH[held : held + self._at_once])
        except NOT_NOW:
            return -1
        # TLS decrypts a record at a time, and what it has decrypted does not wake anybody.
        while self._pending and got and self._pending() and held + got < len(SCRATCH):
            got += self._socket.recv_into(SCRATCH[held + got :])
        return got

    def _writable(self) -> None:
        try:
            gone = self._socket.send(self._unsent)
        except NOT_NOW:
            return
        except OSError as error:
            self._end(error)
            return
        del self._unsent[:gone]
        if self._unsent:
            return
        self._loop.remove_writer(self._fd)
        if self._closing:
            self.close()
        else:
            self._drained()

    def _end(self, error: Exception | None) -> None:
        if not self.is_closed:
            self.close()
            self._ended(error)


def keep_alive(sock: socket.socket) -> None:
    """Have the kernel ask now and then whether the other side is still there."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEP_ALIVE.items():
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def widen(sock: socket.socket) -> None:
    """Have room for several large requests that a broker has yet to read, where the kernel gives so much."""
    if _gives_more():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)


def piece_for(sock: socket.socket) -> int:
    """How much is moved to a socket at a time."""
    return pipe.MOST if _has_room(sock) else PIECE


@cache
def _gives_more() -> bool:
    """Whether the kernel gives more than it finds by itself. A buffer that was asked for never grows."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        found = 0
        with suppress(OSError):
            found = int(SEND_BUFFERS_FOUND.read_text().split()[-1])
        return _has_room(trial) and found < 2 * SEND_BUFFER


def _has_room(sock: socket.socket) -> bool:
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) >= 2 * SEND_BUFFER
