"""One session with a Postgres server, in which every wait has a time-out, and whose errors are ours.

A server that is frozen still takes what we send and never answers, so a time-out must be kept on our side of the
connection. That is why libpq is used without blocking, and not a driver's cursor.
"""

import select
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from strandline.errors import (
    ConnectionLost,
    OptionError,
    PostgresError,
    PostgresHindered,
    PostgresRefused,
    PostgresUnreachable,
)
from strandline.wire.pgtext import SETTINGS as PRINTED

TIMEOUT = 10.0
# What a value looks like as text must not hang on settings of a role or a database, and nobody's time-outs for idle
# sessions are to end ours. A query of ours that is too slow ends on our own time-out.
SETTINGS: Mapping[str, str] = {
    **PRINTED,
    "statement_timeout": "0",
    "idle_session_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    # What leads and what was delivered must outlive a crash of the server, whatever the database takes lightly. To wait
    # for a standby would help nobody: on another timeline it is told as a loss.
    "synchronous_commit": "local",
    # Two who change the lease at a time are to find that out, and not to be refused.
    "default_transaction_isolation": "read committed",
    # That a publication is gone, and its changes with it, is told as a warning.
    "client_min_messages": "warning",
}
# Codes, and classes of them, that whoever waits may outlive: read-only, cancelled, a lock that is held; transactions
# that were in each other's way, no room, a fault of the system below.
PASSING = ("25006", "57014", "55P03", "40", "53", "58")
STREAMS = {pq.ExecStatus.COPY_BOTH, pq.ExecStatus.COPY_OUT}

Row = tuple[str | None, ...]


class Session:
    """A session that is open from its making until `close`. Values come and go as text."""

    def __init__(self, dsn: str, *, timeout: float = TIMEOUT, replication: bool = False) -> None:
        self.timeout = timeout
        self._replication = replication
        self.address, conninfo = _parameters(dsn, timeout, replication=replication)
        self.pgconn = self._connect(conninfo.encode(), time.monotonic() + timeout)
        if replication and self.version >= 17:
            self._allow_long_transactions()

    def _connect(self, conninfo: bytes, deadline: float) -> "pq.abc.PGconn":
        connection = pq.PGconn.connect_start(conninfo)
        status = pq.PollingStatus.WRITING
        while status != pq.PollingStatus.OK:
            if status == pq.PollingStatus.FAILED or connection.status == pq.ConnStatus.BAD:
                problem = one_line(connection.error_message)
                if "certificate verify failed" in problem:
                    problem += "; name the authority to trust in sslrootcert of the connection string"
                connection.finish()
                raise PostgresUnreachable(self.address, problem)
            writing = status == pq.PollingStatus.WRITING
            if not wait(connection.socket, select.POLLOUT if writing else select.POLLIN, deadline):
                connection.finish()
                raise PostgresUnreachable(self.address, f"no connection within {self.timeout:g} s")
            status = pq.PollingStatus(connection.connect_poll())
        connection.nonblocking = 1
        self._process = connection.backend_pid
        return connection

    def _allow_long_transactions(self) -> None:
        """A large transaction is sent for as long as it takes us to deliver it. Before version 17 there is no limit."""
        try:
            self.query("SET transaction_timeout = 0")
        except PostgresError:
            self.close()
            raise

    def query(self, sql: str, *parameters: object, timeout: float | None = None) -> list[Row]:
        """Run one statement with parameters $1, $2 and so on; its rows."""
        values = [None if value is None else str(value).encode() for value in parameters]
        try:
            if self._replication:
                self.pgconn.send_query(sql.encode())
            else:
                # Takes a single statement, whatever stands in it.
                self.pgconn.send_query_params(sql.encode(), values)
        except psycopg.OperationalError as error:
            raise ConnectionLost(self.address, one_line(str(error).encode())) from None
        result = self.result(self.timeout if timeout is None else timeout)
        columns = range(result.nfields)
        return [
            tuple(None if (value := result.get_value(row, column)) is None else value.decode() for column in columns)
            for row in range(result.ntuples)
        ]

    def result(self, timeout: float) -> "pq.abc.PGresult":
        """The server's answer, when it is no error: all of it, unless it is a stream that goes on."""
        deadline = time.monotonic() + timeout
        last = self._next(deadline)
        if last is None:
            raise ConnectionLost(self.address, one_line(self.pgconn.error_message) or "it ended")
        while last.status not in STREAMS and self._next(deadline) is not None:
            pass
        if last.status == pq.ExecStatus.FATAL_ERROR:
            raise self._failure(last)
        return last

    def _next(self, deadline: float) -> "pq.abc.PGresult | None":
        connection = self.pgconn
        try:
            while connection.flush():
                self._await(select.POLLIN | select.POLLOUT, deadline)
                connection.consume_input()
            while connection.is_busy():
                self._await(select.POLLIN, deadline)
                connection.consume_input()
            return connection.get_result()
        except psycopg.OperationalError as error:
            raise ConnectionLost(self.address, one_line(str(error).encode())) from None

    def _failure(self, result: "pq.abc.PGresult") -> PostgresRefused | ConnectionLost:
        """An error that the server told, or that libpq made up because there is no server any more."""
        code = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        told = [
            result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY),
            result.error_field(pq.DiagnosticField.MESSAGE_DETAIL),
        ]
        problem = one_line(b": ".join(part for part in told if part)) or one_line(result.error_message)
        # Class 57P: the server shuts down, or somebody ended this session.
        if not code or code.startswith("57P"):
            return ConnectionLost(self.address, problem)
        kind = PostgresHindered if code.startswith(PASSING) else PostgresRefused
        return kind(self.address, code, problem)

    def _await(self, events: int, deadline: float) -> None:
        if not wait(self.pgconn.socket, events, deadline):
            # What comes later would be taken for the answer to the next question.
            self.close()
            raise PostgresUnreachable(self.address, "no answer in time")

    @property
    def version(self) -> int:
        """The major version of the server."""
        return self.pgconn.server_version // 10_000

    @property
    def process(self) -> int:
        """The process of the server that serves this session."""
        return self._process

    def close(self) -> None:
        """End the session; the server gives back what it held."""
        self.pgconn.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _parameters(dsn: str, timeout: float, *, replication: bool) -> tuple[str, str]:
    """Host and port for people, and the whole connection string."""
    try:
        given = conninfo_to_dict(dsn)
        # A space would end the value.
        settings = " ".join("-c {}={}".format(name, value.replace(" ", "\\ ")) for name, value in SETTINGS.items())
        whole = make_conninfo(
            dsn,
            fallback_application_name="strandline",
            options=f"{given.get('options') or ''} {settings}".strip(),
            tcp_user_timeout=int(timeout * 1_000),
            **({"replication": "database"} if replication else {}),
        )
    except psycopg.ProgrammingError:
        # The reason may quote the string, and with it a password.
        raise OptionError(
            "the connection string of Postgres cannot be read; one looks like postgresql://user@host/db"
        ) from None
    return f"{given.get('host') or given.get('hostaddr') or 'localhost'}:{given.get('port') or 5432}", whole


def wait(descriptor: int, events: int, deadline: float) -> bool:
    """Wait until a descriptor is ready; False when the deadline has come first."""
    poll = select.poll()
    poll.register(descriptor, events)
    return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1_000))


def quoted(name: str) -> str:
    """A name as SQL takes it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def parse_lsn(text: str) -> int:
    """A position in the log, which Postgres writes as 16/B374D848."""
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


def one_line(told: bytes) -> str:
    """What libpq or the server said, without its line breaks."""
    return " ".join(told.decode(errors="replace").split())
