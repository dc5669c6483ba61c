"""A Kinesis endpoint of our own as a child process. It keeps its streams in memory, so they end with the process."""

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from threading import Event
from typing import Final, NamedTuple

import msgspec

import strandline
from strandline.errors import StackError
from strandline.stack.endpoint import control
from strandline.stack.endpoint.faults import PUTS, Fault, Orders
from strandline.stack.endpoint.streams import NUMBER_DIGITS, Counts
from strandline.stack.ports import LOOPBACK, free_port, retry_when_taken
from strandline.stack.processes import PASSED_ON, Child

KEEP_BYTES: Final = 1 << 30
START_SILENCE_S = 60.0
ANSWER_TIMEOUT = 60.0
SERVER: Final = "strandline.stack.endpoint.server"
# A request's memory is kept for the next one: where no records are kept, giving it back to the kernel each time costs
# a fifth of the CPU.
MEMORY: Final = {"MALLOC_TRIM_THRESHOLD_": str(256 << 20), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}

log = logging.getLogger(__name__)


class AcceptedRecord(NamedTuple):
    """A record that the endpoint has accepted."""

    sequence_number: str
    arrived_ms: int
    """When, in milliseconds since 1970."""
    partition_key: str
    data: bytes


class Kinesis:
    """One endpoint for any number of streams.

    It keeps the accepted records up to `keep_bytes` of all streams together and then refuses more with the error
    `EndpointFull`; with 0 it keeps none and only counts them, without an end.
    """

    name = "kinesis"

    def __init__(
        self,
        directory: Path,
        *,
        keep_bytes: int = KEEP_BYTES,
        keep_fds: Sequence[int] = (),
        choose_port: Callable[[], int] = free_port,
    ) -> None:
        self.directory = directory
        self.keep_bytes = keep_bytes
        self._keep_fds = keep_fds
        self._choose_port = choose_port
        self._server: Child | None = None
        self._port = 0

    @property
    def endpoint(self) -> str:
        """The value of `endpoint_url`."""
        return f"http://{LOOPBACK}:{self._port}"

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{LOOPBACK}:{self._port}"

    @property
    def pid(self) -> int:
        """The process id of the started endpoint."""
        if self._server is None:
            raise StackError("kinesis was never started")
        return self._server.pid

    def settings(self) -> dict[str, str]:
        """What an AWS client needs, as environment variables."""
        return {
            "AWS_ENDPOINT_URL_KINESIS": self.endpoint,
            "AWS_ACCESS_KEY_ID": "local",
            "AWS_SECRET_ACCESS_KEY": "local",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def check(self) -> None:
        """It needs nothing that may be missing."""

    def start(self, cancelled: Event) -> None:
        """Start and return when it answers."""
        self.directory.mkdir(parents=True, exist_ok=True)
        retry_when_taken(lambda: self._start_on_a_fresh_port(cancelled))

    def _start_on_a_fresh_port(self, cancelled: Event) -> None:
        self._port = self._choose_port()
        log.info("kinesis: starting")
        passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        # The package that we are ourselves, wherever we were loaded from.
        package = str(Path(strandline.__file__).parents[1])
        self._server = Child(
            name=self.name,
            command=[sys.executable, "-P", "-m", SERVER, str(self._port), str(self.keep_bytes)],
            log=self.directory / "kinesis.log",
            cwd=self.directory,
            env={**passed_on, **MEMORY, "PYTHONPATH": package},
            keep_fds=self._keep_fds,
        )
        self._server.start()
        self._server.wait_until(self._answers, START_SILENCE_S, cancelled)

    def _answers(self) -> bool:
        if self._server is None or not self._server.listens_on(self._port):
            return False
        connection = HTTPConnection(LOOPBACK, self._port, timeout=2)
        try:
            connection.request("GET", control.HEALTH)
            return connection.getresponse().status == HTTPStatus.OK
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()

    def stop(self) -> None:
        """Stop the server; there is nothing to keep."""
        if self._server is not None:
            self._server.stop(signal.SIGKILL, silence_s=0)

    def failure(self) -> StackError | None:
        """The error of a server that died, or None while it runs."""
        return None if self._server is None else self._server.death()

    def set_faults(self, stream: str, *faults: Fault, seed: int = 0, actions: Sequence[str] = PUTS) -> None:
        """Commit these faults on requests for a stream from now on, and no others; with none, serve it well again.

        The stream need not exist yet. The same seed strikes the same requests and records, in the order they come.
        """
        orders = Orders(stream=stream, faults=list(faults), seed=seed, actions=tuple(actions))
        with self._asking() as ask:
            ask(control.FAULTS, orders)

    def counts(self, stream: str) -> Counts:
        """What has come to a stream."""
        with self._asking() as ask:
            return msgspec.json.decode(ask(control.COUNTS, control.Asked(stream=stream)), type=Counts)

    def records(self, stream: str) -> dict[str, list[AcceptedRecord]]:
        """All that was accepted, by shard, in the order of the shard."""
        found: dict[str, list[AcceptedRecord]] = {}
        with self._asking() as ask:
            shard, shards = 0, 1
            while shard < shards:
                start, is_last = 0, False
                while not is_last:
                    asked = control.AskedPage(stream=stream, shard=shard, start=start)
                    page = control.decode_page(ask(control.RECORDS, asked))
                    shards, is_last, start = page.shards, page.is_last, page.start + len(page.records)
                    found.setdefault(page.shard_id, []).extend(
                        AcceptedRecord(f"{page.sequence}{number:0{NUMBER_DIGITS}d}", *record)
                        for number, record in enumerate(page.records, page.start)
                    )
                shard += 1
        return found

    @contextmanager
    def _asking(self) -> Iterator[Callable[[str, msgspec.Struct], bytes]]:
        """One connection to ask over."""
        connection = HTTPConnection(LOOPBACK, self._port, timeout=ANSWER_TIMEOUT)

        def ask(path: str, asked: msgspec.Struct) -> bytes:
            try:
                connection.request("POST", path, msgspec.json.encode(asked), {"Content-Type": control.JSON})
                response = connection.getresponse()
                body = response.read()
            except (OSError, HTTPException) as error:
                raise StackError(f"kinesis: {path} is not answered: {error}") from error
            if response.status != HTTPStatus.OK:
                raise StackError(f"kinesis: {path} is refused: {body.decode(errors='replace')}")
            return body

        try:
            yield ask
        finally:
            connection.close()
