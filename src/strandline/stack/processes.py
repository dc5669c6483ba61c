"""Child processes that cannot outlive us, with a log that can be quoted when they fail."""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from strandline.errors import PortTaken, ServerFailed, StartCancelled
from strandline.stack.ports import listening_inodes
from strandline.stalls import LOOK_EVERY_S, StallDetector

LEASH = Path(__file__).with_name("leash.py")
POLL_INTERVAL = 0.02
FORK_TIMEOUT = 300.0
"""Of a fork nothing can be seen before it is done, and on an overloaded machine it takes seconds."""
OVERLOADED = "the machine may be overloaded or out of memory: make room and try again"
KILL_SILENCE_S = 10.0
CANCEL_GRACE = 5.0
LOG_TAIL_LINES = 15
LOG_TAIL_BYTES = 64 << 10
MOST_LOG_BYTES = 16 << 20
PORT_IS_TAKEN = "Address already in use"
# Nothing of the user's own settings for Java, Python or Postgres is to change what the servers do.
PASSED_ON = ("HOME", "LANG", "PATH", "TMPDIR", "TZ")
# By this an onlooker can tell which processes belong to which stack.
OWNER_VARIABLE = "STRANDLINE_OWNER"

log = logging.getLogger(__name__)

# The kernel's parent-death signal fires when the *thread* that forked ends. So all children are forked by one thread
# that lives as long as the process, whichever thread asks for them.
_forker: ThreadPoolExecutor


def _new_forker() -> None:
    global _forker  # noqa: PLW0603  (one a process, also in a process that was forked from one that had it)
    _forker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="strandline-forker")


_new_forker()
os.register_at_fork(after_in_child=_new_forker)


@dataclass(frozen=True, slots=True)
class User:
    """The user that a server runs as."""

    uid: int
    gid: int


def leashed(command: Sequence[str | Path], death_signal: signal.Signals, user: User | None = None) -> list[str]:
    """The command, to be run by us, with a signal when the thread that forks it ends; its id and its streams stay."""
    owner = "-" if user is None else f"{user.uid}:{user.gid}"
    leash = [sys.executable, "-I", "-S", str(LEASH), str(os.getpid()), str(int(death_signal)), owner]
    return [*leash, *map(str, command)]


@dataclass(slots=True, kw_only=True)
class Child:
    """One server process. Its standard output and error go to `log`."""

    name: str
    command: Sequence[str | Path]
    log: Path
    cwd: Path
    env: Mapping[str, str] = field(default_factory=lambda: {k: os.environ[k] for k in PASSED_ON if k in os.environ})
    user: User | None = None
    death_signal: signal.Signals = signal.SIGKILL
    keep_fds: Sequence[int] = ()
    """Passed on to the server: a lock on its data directory is free again only when the server is gone too."""
    _process: "subprocess.Popen[bytes] | None" = None
    _log_start: int = 0

    def start(self) -> None:
        """Start the process; it runs, but need not be ready."""
        command = leashed(self.command, self.death_signal, self.user)
        forking = _forker.submit(self._fork, command)
        try:
            self._process = forking.result(FORK_TIMEOUT)
        except OSError as error:
            if not forking.done():
                # The caller has given up, so nobody else would end it.
                forking.add_done_callback(_kill)
                problem = f"could not be started: the system made no process of it within {FORK_TIMEOUT:g} s"
                raise ServerFailed(self.name, f"{problem}; {OVERLOADED}") from None
            where = f"{error.filename}: " if error.filename else ""
            raise ServerFailed(self.name, f"could not be started: {where}{error.strerror or error}") from error

    def _fork(self, command: list[str]) -> "subprocess.Popen[bytes]":
        descriptor = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with os.fdopen(descriptor, "ab") as log:
            if log.tell() > MOST_LOG_BYTES:
                log.truncate(0)
            self._log_start = log.seek(0, os.SEEK_END)
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.cwd,
                env={**self.env, OWNER_VARIABLE: str(os.getpid())},
                pass_fds=self.keep_fds,
                # A Ctrl-C at the terminal is for us alone; we end the servers in our own order.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id of a started child."""
        if self._process is None:
            raise RuntimeError(f"{self.name} was never started")
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code (minus the signal's number), or None while it runs or was never started."""
        return None if self._process is None else self._process.poll()

    def listens_on(self, port: int) -> bool:
        """Whether this very process, and not a stranger that was faster, listens on a port."""
        sockets = {f"socket:[{inode}]" for inode in listening_inodes(port)}
        if not sockets:
            return False
        try:
            return any(str(fd.readlink()) in sockets for fd in Path(f"/proc/{self.pid}/fd").iterdir())
        except OSError:  # it has ended, or closed a file while we looked
            return False

    def send(self, signal_: signal.Signals) -> None:
        """Send a signal, if the process still runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal_)

    def stop(self, first: signal.Signals, silence_s: float, progress: Callable[[], object] | None = None) -> None:
        """Ask it to end, wait, and kill it with a line in our log when it makes no progress for `silence_s` seconds.

        Progress is what `progress` says, or what it logs where that is None.
        """
        if self._process is None:
            return
        self.send(first)
        if first is not signal.SIGKILL:
            stall = self._wait_for_end(StallDetector(silence_s, progress or self.logged_bytes, pid=self.pid))
            if stall is None:
                return
            log.warning(
                "%s (process %d) was killed: asked to stop, it %s; its next start recovers as after a crash",
                self.name,
                self.pid,
                stall,
            )
            self.send(signal.SIGKILL)
        if self._wait_for_end(StallDetector(KILL_SILENCE_S, pid=self.pid)) is not None:
            # Only a process that hangs in the kernel gets here. We must not hang with it.
            log.error("%s (process %d) does not end, not even when killed", self.name, self.pid)

    def _wait_for_end(self, detector: StallDetector) -> str | None:
        """Wait until it has ended, which is None, or what is wrong."""
        if self._process is None:
            return None
        while True:
            try:
                self._process.wait(LOOK_EVERY_S)
            except subprocess.TimeoutExpired:
                stall = detector.problem()
                if stall is not None:
                    return stall
            else:
                return None

    def wait_until(
        self,
        ready: Callable[[], bool],
        silence_s: float,
        cancelled: Event,
        progress: Callable[[], object] | None = None,
    ) -> None:
        """Wait until the server is ready; raise with the end of its log when it ends, or makes no progress for so long.

        Progress is what it logs, and else what `progress` says.
        """
        detector = self._detector(silence_s, progress)
        while True:
            exit_code = self.exit_code  # before the question: it may end by itself once it is done
            if ready():
                return
            if exit_code is not None:
                if PORT_IS_TAKEN in self._logged():
                    raise PortTaken(f"{self.name}: a port was taken by another process")
                raise self.failed(f"did not come up: exit code {exit_code}")
            stall = detector.problem()
            if stall is not None:
                raise self.failed(f"did not come up: it {stall}; {OVERLOADED}")
            self._pause(cancelled)

    def wait_for_exit(self, silence_s: float, cancelled: Event) -> None:
        """Wait for a tool that is to end by itself with exit code 0; kill it when it makes no progress for so long."""
        detector = self._detector(silence_s)
        while self.exit_code is None:
            stall = detector.problem()
            if stall is not None:
                self.stop(signal.SIGKILL, silence_s=0)
                raise self.failed(f"did not end: it {stall}; {OVERLOADED}")
            self._pause(cancelled)
        if self.exit_code != 0:
            raise self.failed(f"failed: exit code {self.exit_code}")

    def _detector(self, silence_s: float, progress: Callable[[], object] | None = None) -> StallDetector:
        return StallDetector(silence_s, lambda: (self.logged_bytes(), progress and progress()), pid=self.pid)

    def logged_bytes(self) -> int:
        """How much it has logged."""
        try:
            return self.log.stat().st_size
        except OSError:
            return 0

    def _pause(self, cancelled: Event) -> None:
        if cancelled.wait(POLL_INTERVAL):
            self.stop(self.death_signal, CANCEL_GRACE)
            raise StartCancelled

    def failed(self, problem: str) -> ServerFailed:
        """The error for this child, with the end of its log."""
        return ServerFailed(self.name, problem, self._logged().splitlines()[-LOG_TAIL_LINES:])

    def death(self) -> ServerFailed | None:
        """The error for a child that has ended although it was not to, or None."""
        return None if self.exit_code is None else self.failed(f"died: exit code {self.exit_code}")

    def _logged(self) -> str:
        """The end of what it has logged since it was started."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(self._log_start, log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
                return log.read().decode(errors="replace")
        except OSError:
            return ""


def _kill(forked: "Future[subprocess.Popen[bytes]]") -> None:
    if forked.exception() is None:
        forked.result().kill()
