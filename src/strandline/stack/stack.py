"""All the servers together: started in parallel, stopped together, each ready when `start` returns."""

import logging
import time
from collections.abc import Callable, Collection
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Self

from strandline.errors import OptionError, StackError, StartCancelled, check_type, did_you_mean
from strandline.stack.data import DataDirectory, open_data
from strandline.stack.kafka import KafkaCluster, kafka_runtime
from strandline.stack.kinesis import KEEP_BYTES, Kinesis
from strandline.stack.postgres import Postgres

SERVERS = ("kafka", "postgres", "kinesis")
MOST_CLUSTERS = 16
MOST_BROKERS = 16

LOOK_EVERY = 0.25

log = logging.getLogger(__name__)

Server = KafkaCluster | Postgres | Kinesis


class Stack:
    """Real servers on free loopback ports, gone when it is stopped or when this process ends, however it ends.

    Without `data` everything is temporary. With it, a later stack on the same directory serves the same records
    (Kinesis excepted, which lives in memory).
    """

    def __init__(
        self,
        only: Collection[str] = SERVERS,
        *,
        kafka_clusters: int = 1,
        kafka_brokers: int = 1,
        kafka_secure: bool = False,
        kinesis_keep_bytes: int = KEEP_BYTES,
        data: Path | None = None,
    ) -> None:
        if isinstance(only, str):
            raise OptionError(f"the servers of a stack are a list: Stack(['{only}']), not Stack('{only}')")
        check_type("only", only, Collection)
        for name in only:
            if name not in SERVERS:
                raise OptionError(f"server '{name}' is unknown; {did_you_mean(str(name), SERVERS)}")
        if not only:
            raise OptionError(f"no server to start; valid are {', '.join(SERVERS)}")
        check_type("kafka_clusters", kafka_clusters, int)
        check_type("kafka_brokers", kafka_brokers, int)
        if data is not None:
            check_type("data", data, Path)
        if not 1 <= kafka_clusters <= MOST_CLUSTERS:
            raise OptionError(
                f"a stack has 1 to {MOST_CLUSTERS} Kafka clusters (--kafka-clusters), not {kafka_clusters}"
            )
        if not 1 <= kafka_brokers <= MOST_BROKERS:
            raise OptionError(f"a cluster has 1 to {MOST_BROKERS} brokers (--kafka-brokers), not {kafka_brokers}")
        if "kafka" not in only and (kafka_clusters, kafka_brokers) != (1, 1):
            raise OptionError("--kafka-clusters and --kafka-brokers are of no use without the server kafka")
        if "kafka" not in only and kafka_secure:
            raise OptionError("kafka_secure is of no use without the server kafka")
        check_type("kinesis_keep_bytes", kinesis_keep_bytes, int)
        if kinesis_keep_bytes < 0:
            raise OptionError(
                f"kinesis_keep_bytes is a number of bytes, or 0 to keep nothing, not {kinesis_keep_bytes}"
            )
        if "kinesis" not in only and kinesis_keep_bytes != KEEP_BYTES:
            raise OptionError("kinesis_keep_bytes is of no use without the server kinesis")
        self.kafka: list[KafkaCluster] = []
        self.postgres: Postgres | None = None
        self.kinesis: Kinesis | None = None
        self.cancelled = Event()
        """Set it, from any thread or a signal handler, to stop a start that is under way."""
        self.ready = False
        """Whether `start` has returned and `stop` has not been called."""
        self._only = frozenset(only)
        self._clusters = kafka_clusters
        self._brokers = kafka_brokers
        self._secure = kafka_secure
        self._keep_bytes = kinesis_keep_bytes
        self._path = data
        self._data: DataDirectory | None = None

    @property
    def servers(self) -> list[Server]:
        """All of them, in the order in which they are shown."""
        return [*self.kafka, *(server for server in (self.postgres, self.kinesis) if server is not None)]

    def start(self) -> Self:
        """Start all, and return when all are ready. If one fails, the others are stopped and its error is raised."""
        begin = time.monotonic()
        try:
            self._start()
        except OSError as error:
            self.stop()
            where = f"{error.filename}: " if error.filename else ""
            raise StackError(f"{where}{error.strerror or error}") from error
        except BaseException:
            self.stop()
            raise
        self.ready = True
        log.info("ready after %.1f s", time.monotonic() - begin)
        return self

    def _start(self) -> None:
        locks: list[int] = []
        if self._path is not None:
            # Looked at before it is locked: what is refused is not touched.
            if self._path.is_file():
                raise OptionError(f"--data takes a directory, and {self._path} is a file")
            self._place(self._path.absolute(), locks)
        self._data = open_data(self._path, self.cancelled)
        locks.append(self._data.lock)
        if self._path is None:
            self._place(self._data.path, locks)
        self._start_all(self._starts())

    def _place(self, directory: Path, locks: list[int]) -> None:
        temporary = self._path is None
        if "kafka" in self._only:
            names = ["kafka"] if self._clusters == 1 else [f"kafka-{n}" for n in range(1, self._clusters + 1)]
            homes = [directory / f"kafka-{number}" for number in range(1, self._clusters + 1)]
            self.kafka = [
                KafkaCluster(
                    name, home, brokers=self._brokers, secure=self._secure, temporary=temporary, keep_fds=locks
                )
                for name, home in zip(names, homes, strict=True)
            ]
        if "postgres" in self._only:
            self.postgres = Postgres(directory / "postgres", temporary=temporary, keep_fds=locks)
        if "kinesis" in self._only:
            self.kinesis = Kinesis(directory / "kinesis", keep_bytes=self._keep_bytes, keep_fds=locks)
        for server in self.servers:
            server.check()

    def _starts(self) -> list[Callable[[], None]]:
        others = [server for server in (self.postgres, self.kinesis) if server is not None]
        return [*([self._start_kafka] if self.kafka else []), *(partial(s.start, self.cancelled) for s in others)]

    def _start_kafka(self) -> None:
        runtime = kafka_runtime(self.cancelled)
        self._start_all([partial(cluster.start, runtime, self.cancelled) for cluster in self.kafka])

    def _start_all(self, starts: list[Callable[[], None]]) -> None:
        with ThreadPoolExecutor(len(starts), thread_name_prefix="strandline-start") as pool:
            futures = [pool.submit(start) for start in starts]
            try:
                is_over = False
                while not is_over:
                    # Not in one wait: who is told to stop just before it begins would hear of it when it ends.
                    done, left = wait(futures, LOOK_EVERY, return_when=FIRST_EXCEPTION)
                    is_over = not left or any(future.exception() is not None for future in done)
            finally:
                if not all(future.done() and future.exception() is None for future in futures):
                    self.cancelled.set()
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            # One failed, and the others were cancelled for it.
            raise next((error for error in errors if not isinstance(error, StartCancelled)), errors[0])

    def stop(self) -> None:
        """Stop every server that was started, and nothing else; remove what is temporary."""
        self.cancelled.set()
        self.ready = False
        servers = self.servers
        if servers:
            with ThreadPoolExecutor(len(servers), thread_name_prefix="strandline-stop") as pool:
                list(pool.map(lambda server: server.stop(), servers))
        if self._data is not None:
            self._data.close()
            self._data = None

    def failure(self) -> StackError | None:
        """The error of the first server that died, or None while all run."""
        return next((error for server in self.servers if (error := server.failure()) is not None), None)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
