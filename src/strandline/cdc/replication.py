"""The replication connection: a thread that reads frames as fast as they are taken, and answers the server meanwhile.

The rules:
- Frames wait in a queue that is bounded by count and by bytes. When it is full, the socket is not read: the server's
  walsender waits, and Postgres keeps what we have no room for.
- The server is told in time that we live, also while nothing is read.
- Only what was acknowledged is told as flushed. What was received is told as written, which frees nothing.
- Frames that follow a loss are discarded: a consumer that acknowledged one of them would hide the loss.
"""

import os
import select
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct
from types import TracebackType
from typing import Self

from psycopg import pq

from strandline.cdc.session import TIMEOUT, Session, one_line, quoted
from strandline.errors import (
    CannotReplicate,
    ChangesLost,
    ConnectionLost,
    PostgresError,
    PostgresRefused,
    PostgresUnreachable,
    SlotBusy,
)
from strandline.wire.pgoutput import lsn_text

Frame = tuple[int, int, bytes]
"""`wal_start`, `wal_end`, and one message of pgoutput."""

FRAME = Struct("!xqqq")
KEEPALIVE = Struct("!xqqB")
STATUS = Struct("!cqqqqB")
DATA = ord("w")
HEADER = FRAME.size
# Beyond its bytes, what a frame in the queue takes: two numbers, a tuple, the head of its bytes.
OVERHEAD = 180
# Postgres counts time from 2000.
EPOCH = 946_684_800_000_000
NAP = 0.002
SHUTDOWN_ASKS = 30
SHUTDOWN_WITHIN = 3.0
# Word to the server at least so often within the time after which it gives us up.
SIGNS_OF_LIFE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationSettings:
    """What to read, and how much may wait."""

    dsn: str = field(repr=False)
    slot: str
    publications: Sequence[str]
    streaming: bool = True
    """Whether large transactions come while they run (protocol 2)."""
    max_frames: int = 50_000
    max_bytes: int = 32 << 20
    timeout: float = TIMEOUT
    """For the connection, and for answers of the server."""
    silence: float = 10.0
    """The server hears from us at least so often; more often where it would give us up sooner."""


class Replication:
    """Changes of a slot, in the order in which Postgres sends them. Opens nothing before `start`."""

    def __init__(self, settings: ReplicationSettings) -> None:
        self._settings = settings
        self._thread: threading.Thread | None = None
        self._ready = threading.Condition()
        self._frames: list[Frame] = []
        self._bytes = 0
        self._failure: PostgresError | None = None
        self._loss: ChangesLost | None = None
        self._position: int | None = None
        self._place: int | None = None
        self._start = 0
        self._received = 0
        self._flushed = 0
        self._is_full = False
        self._is_due = False
        self._closing = False
        self._wake = -1
        self._asked: deque[float] = deque(maxlen=SHUTDOWN_ASKS)

    def start(self, lsn: int) -> None:
        """Take the slot and read from a position on; 0 is the slot's own."""
        settings = self._settings
        if self._thread is not None:
            raise RuntimeError("a replication is started once")
        session = Session(settings.dsn, timeout=settings.timeout, replication=True)
        try:
            patience = _patience(session)
            session.query(_command(settings, lsn))
        except PostgresRefused as error:
            session.close()
            raise explained(error, settings.slot) from None
        except PostgresError:
            session.close()
            raise
        session.pgconn.notice_handler = self._noticed
        self._start = self._received = lsn
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        interval = min(settings.silence, patience / SIGNS_OF_LIFE) if patience else settings.silence
        self._thread = threading.Thread(target=self._run, args=(session, interval), name="strandline-wal", daemon=True)
        self._thread.start()

    def take(self, timeout: float) -> list[Frame]:
        """All frames that wait, or none when none came in time."""
        with self._ready:
            if not self._frames and self._failure is None:
                self._ready.wait(timeout)
            frames = self._frames
            if frames:
                self._frames = []
                self._bytes = 0
            elif self._failure is not None:
                raise self._failure
            was_full = self._is_full
        if was_full:
            self._call()
        return frames

    def acknowledge(self, end_lsn: int) -> None:
        """All up to here is safe: the server need not keep it. Never goes back."""
        with self._ready:
            if end_lsn <= self._flushed or end_lsn < self._start:
                return
            self._flushed = end_lsn
            self._is_due = True
        self._call()

    @property
    def idle_at(self) -> int | None:
        """How far the server has come, if nothing that it has sent waits to be taken; else, or after a failure, None.

        Whoever has also finished what was taken before may acknowledge it.
        """
        with self._ready:
            return None if self._frames or self._failure is not None else self._position

    @property
    def place(self) -> int | None:
        """Where in the log the server reads, as it said last. That may be before the start, for long."""
        with self._ready:
            return self._place

    def close(self) -> None:
        """Give the slot back. What was acknowledged last is still told."""
        self._closing = True
        if self._thread is not None:
            self._call()
            self._thread.join(self._settings.timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(self) -> None:
        """Have the thread look up from its wait."""
        with self._ready:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def _noticed(self, notice: "pq.abc.PGresult") -> None:
        """From version 18 on, a publication that is dropped while we read is passed over with a mere warning."""
        told = notice.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b""
        if b"skipped loading publication" in told:
            self._loss = ChangesLost(f"{one_line(told)}: it was dropped while it was read", self._settings.slot)

    def _fail(self, failure: PostgresError) -> None:
        with self._ready:
            self._failure = self._failure or failure
            self._ready.notify_all()

    def _run(self, session: Session, interval: float) -> None:
        # What the thread works with, it alone closes.
        with session:
            try:
                self._pump(session, interval)
            except PostgresRefused as error:
                self._fail(explained(error, self._settings.slot))
            except PostgresError as error:
                self._fail(error)
            except Exception as error:  # noqa: BLE001  (whatever it is: whoever takes frames would wait for ever)
                problem = one_line(str(error).encode()) or type(error).__name__
                self._fail(ConnectionLost(session.address, problem))
        with self._ready:
            os.close(self._wake)
            self._wake = -1

    def _pump(self, session: Session, interval: float) -> None:
        connection, socket = session.pgconn, session.pgconn.socket
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        said = heard = 0.0
        # What came with the server's consent is with libpq already, and no poll would tell of it.
        self._read(session)
        while not self._closing:
            now = time.monotonic()
            if self._is_due or now >= said + interval:
                # Asking for an answer each time is how we learn that the server lives.
                self._report(connection, ask=True)
                said = now
                heard = heard or now
            wanted = (select.POLLOUT if connection.flush() else 0) | (0 if self._is_full else select.POLLIN)
            if self._is_full:
                heard = now
            poll.register(socket, wanted)
            if not wanted:
                # Even then a poll would tell that the server is gone, at once and for ever.
                poll.unregister(socket)
            ready = [descriptor for descriptor, _ in poll.poll(max(0.0, said + interval - now) * 1_000)]
            if self._wake in ready:
                os.eventfd_read(self._wake)
            with self._ready:
                self._is_full = self._has_no_room()
            if socket in ready and not self._is_full and self._read(session):
                heard = time.monotonic()
                # A walsender sends row by row; to wake up for each costs more than to read it.
                time.sleep(NAP)
            if time.monotonic() > heard + interval + session.timeout:
                raise PostgresUnreachable(session.address, f"nothing heard for {interval + session.timeout:g} s")
        self._report(connection, ask=False)
        connection.flush()

    def _read(self, session: Session) -> bool:
        """What the socket has, until nothing is left or the queue is full. Whether there was anything."""
        connection, unpack, get = session.pgconn, FRAME.unpack_from, session.pgconn.get_copy_data
        anything = False
        while True:
            connection.consume_input()
            frames: list[Frame] = []
            add = frames.append
            size, highest, ask, position, count = 0, 0, False, None, 0
            while True:
                length, view = get(1)
                # libpq calls `_noticed` from here, before it returns the frame that follows the notice.
                if length <= 0 or self._loss is not None:
                    break
                count += 1
                data = view.tobytes()
                if data[0] == DATA:
                    start, end, _ = unpack(data)
                    add((start, end, data[HEADER:]))
                    size += length
                    # Positions do not rise where transactions interleave.
                    highest = max(highest, end)
                    position = None
                else:
                    position, _, wants = KEEPALIVE.unpack(data)
                    ask = ask or bool(wants)
            # First of all: what came before the stream's end, with the same read, is as good as what came earlier.
            self._hand_over(frames, size, highest, position)
            if self._loss is not None:
                raise self._loss
            if length < 0:
                session.result(session.timeout)
                raise ConnectionLost(session.address, "the server ended the stream")
            if not count:
                return anything
            anything = True
            if ask:
                self._answer(session)
            if self._is_full or self._is_due or self._closing:
                return True

    def _answer(self, session: Session) -> None:
        """The server asks for a sign of life: seldom while it runs, without a pause while it shuts down.

        It would not end before all that it has sent is acknowledged, however long that takes.
        """
        self._asked.append(time.monotonic())
        if len(self._asked) == SHUTDOWN_ASKS and self._asked[-1] - self._asked[0] < SHUTDOWN_WITHIN:
            raise ConnectionLost(session.address, "the server shuts down")
        self._report(session.pgconn, ask=False)
        session.pgconn.flush()

    def _hand_over(self, frames: list[Frame], size: int, highest: int, position: int | None) -> None:
        with self._ready:
            if frames:
                self._received = max(self._received, highest)
                self._frames += frames
                self._bytes += size + OVERHEAD * len(frames)
                self._ready.notify_all()
            if position is not None:
                self._received = max(self._received, position)
            if frames or position is not None:
                self._position = position
                self._place = highest if position is None else position
            self._is_full = self._has_no_room()

    def _has_no_room(self) -> bool:
        return len(self._frames) >= self._settings.max_frames or self._bytes >= self._settings.max_bytes

    def _report(self, connection: "pq.abc.PGconn", *, ask: bool) -> None:
        with self._ready:
            flushed, written = self._flushed, max(self._received, self._flushed)
            self._is_due = False
        now = time.time_ns() // 1_000 - EPOCH
        connection.put_copy_data(STATUS.pack(b"r", written, flushed, flushed, now, ask))


def _patience(session: Session) -> float:
    """After how many seconds of silence the server gives us up; 0 for never."""
    rows = session.query("SHOW wal_sender_timeout")
    text = rows[0][0] or "0"
    number, unit = text.rstrip("abcdefghijklmnopqrstuvwxyz"), text.lstrip("0123456789")
    return float(number) * {"ms": 0.001, "s": 1, "min": 60, "h": 3_600, "d": 86_400, "": 0.001}[unit]


def _command(settings: ReplicationSettings, lsn: int) -> str:
    options = {
        "proto_version": "2" if settings.streaming else "1",
        "publication_names": ",".join(quoted(name) for name in settings.publications),
        "messages": "true",
        **({"streaming": "on"} if settings.streaming else {}),
    }
    told = ", ".join("{} '{}'".format(name, value.replace("'", "''")) for name, value in options.items())
    return f"START_REPLICATION SLOT {quoted(settings.slot)} LOGICAL {lsn_text(lsn)} ({told})"


def explained(error: PostgresRefused, slot: str) -> PostgresError:
    """What the server says when a slot cannot be read, with what to do."""
    if error.code == "55006":
        return SlotBusy(
            error.problem, "only one instance reads a slot: stop the other, or wait until Postgres gives it up"
        )
    if error.code == "42704" and "publication" in error.problem:
        return CannotReplicate(error.problem, "create it, or have it created, before the changes that are to be read")
    if error.code == "42704":
        return CannotReplicate(error.problem, "create it, or have it created, and take a snapshot")
    if error.code == "42501":
        return CannotReplicate(error.problem, "give the role what it lacks: ALTER ROLE ... REPLICATION")
    if error.code == "58P01" or (error.code == "55000" and "can no longer" in error.problem):
        return ChangesLost(error.problem, slot)
    return error
