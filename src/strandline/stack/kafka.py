"""A real Kafka cluster: KRaft, one process a broker, the first of them the controller too."""

import base64
import hashlib
import logging
import os
import shutil
import signal
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from threading import Event

from confluent_kafka import Consumer, KafkaException, TopicPartition

from strandline.errors import DataRefused, OptionError, ServerFailed, StackError
from strandline.stack.cache import one_at_a_time
from strandline.stack.data import read_json, write_json, write_private
from strandline.stack.jars import kafka_jars, kafka_version
from strandline.stack.java import Java, find_java
from strandline.stack.ports import LOOPBACK, different_ports, free_port, retry_when_taken
from strandline.stack.processes import Child
from strandline.stack.secure import LISTENER, SecureListener, is_let_in
from strandline.stalls import bytes_below

START_SILENCE_S = 90.0
FORMAT_SILENCE_S = 60.0
STOP_SILENCE_S = 30.0
IDENTITY = "cluster.json"
# What a JVM answers to SIGTERM when it has ended in good order.
EXIT_CODE_OF_A_CLEAN_STOP = 128 + signal.SIGTERM
CLASS_ARCHIVE = "ArchiveClassesAtExit"
CLASSES = "classes"
"""The directory of a cluster to which its JVM writes such an archive."""
# A broker of ours lives minutes, and Java's second compiler takes longer to pay: without it a start takes 2.2 s of CPU
# in place of 4.2, and 600,000 records of 100 bytes written one by one 3.4 s in place of 7.9.
FIRST_COMPILER_ONLY = "-XX:TieredStopAtLevel=1"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Runtime:
    """What every broker process is made of."""

    java: Java
    jars: Sequence[Path]
    archive: Path
    """Classes as the JVM laid them out once before; halves the time that a broker takes to come up."""

    def command(self, main: str, *arguments: str | Path, options: Sequence[str] = ()) -> list[str | Path]:
        """The command line of one of Kafka's programs."""
        shared = [f"-XX:SharedArchiveFile={self.archive}"] if self.archive.exists() else []
        level = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true"]
        path = os.pathsep.join(map(str, self.jars))
        memory = ["-Xms128m", "-Xmx1g"]
        how = [*shared, FIRST_COMPILER_ONLY, *options, *memory, *level]
        return [self.java.executable, *how, "-cp", path, main, *arguments]


def kafka_runtime(cancelled: Event) -> Runtime:
    """Java and Kafka's jars, fetched and prepared the first time."""
    java = find_java()
    jars = kafka_jars(java, cancelled)
    archive = jars[0].with_name(f"classes-{hashlib.sha256(java.banner.encode()).hexdigest()[:16]}.jsa")
    runtime = Runtime(java, jars, archive)
    given_up = archive.with_suffix(".failed")
    if not archive.exists() and not given_up.exists():
        with one_at_a_time("kafka-classes", cancelled):
            if not archive.exists() and not given_up.exists():
                _prepare_archive(runtime, given_up, cancelled)
    return runtime


def _prepare_archive(runtime: Runtime, given_up: Path, cancelled: Event) -> None:
    """Run a broker once, let the JVM write down the classes that it loaded, and keep that for every later start.

    Where this Java keeps none, `given_up` says why, and no later start tries. What was cut off is tried again.
    """
    log.info("kafka: preparing for fast starts (a few seconds, once)")
    work = runtime.archive.with_suffix(".work")
    shutil.rmtree(work, ignore_errors=True)
    fresh = work / CLASSES / runtime.archive.name
    fresh.parent.mkdir(parents=True)
    cluster = KafkaCluster("kafka-prepare", work, jvm_options=[f"-XX:{CLASS_ARCHIVE}={fresh}"])
    try:
        cluster.start(runtime, cancelled)
        cluster.stop()
        exit_code = cluster.brokers[0].exit_code
        if exit_code == EXIT_CODE_OF_A_CLEAN_STOP and fresh.exists():
            fresh.rename(runtime.archive)
            return
        keeps_none = exit_code == EXIT_CODE_OF_A_CLEAN_STOP
        problem = "it wrote none" if keeps_none else f"the broker that writes it ended with exit code {exit_code}"
    except ServerFailed as error:
        keeps_none = any(CLASS_ARCHIVE in line for line in error.log)
        problem = str(error)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if keeps_none:
        log.warning("kafka: this Java keeps no class archive, so brokers start slower (%s)", problem)
        given_up.write_text(f"{problem}\n")
    else:
        log.warning("kafka: no class archive yet, so brokers start slower; the next start tries again (%s)", problem)


class KafkaCluster:
    """One independent cluster. With `secure`, every broker has a second listener, with TLS and SASL."""

    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        brokers: int = 1,
        secure: bool = False,
        temporary: bool = False,
        keep_fds: Sequence[int] = (),
        choose_port: Callable[[], int] = free_port,
        jvm_options: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.directory = directory
        self.cluster_id = ""
        self.brokers: list[Child] = []
        """Its processes, the controller's first; each can be stopped and started again on the same port."""
        self._nodes = range(1, brokers + 1)
        self._secure = SecureListener(directory) if secure else None
        self._temporary = temporary
        self._keep_fds = keep_fds
        self._choose_port = choose_port
        self._jvm_options = jvm_options
        self._controller_port = 0
        self._ports: Sequence[int] = ()
        self._secure_ports: Sequence[int] = ()

    @property
    def address(self) -> str:
        """Host and port of every broker, as `bootstrap.servers` takes them."""
        return _addresses(self._ports)

    def settings(self) -> dict[str, str]:
        """What a client needs."""
        return {"bootstrap.servers": self.address}

    def secure_settings(self, mechanism: str = "SCRAM-SHA-512") -> dict[str, str]:
        """What a client of the secure listeners needs: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512."""
        if self._secure is None:
            raise OptionError(f"{self.name} has no secure listener; it was not started with secure=True")
        return self._secure.client_settings(_addresses(self._secure_ports), mechanism)

    def check(self) -> None:
        """Refuse a directory of another version or cluster, before anything is changed."""
        if not (self.directory / IDENTITY).exists():
            if any(self.directory.glob("broker-*/meta.properties")):
                raise DataRefused(self.directory, f"has brokers but no {IDENTITY}")
            return
        identity = read_json(self.directory / IDENTITY)
        version, brokers = identity.get("kafka"), identity.get("brokers")
        if version != kafka_version():
            raise DataRefused(self.directory, f"holds data of Kafka {version}, and this is {kafka_version()}")
        if brokers != len(self._nodes):
            problem = f"holds data of {brokers} Kafka broker(s), not of {len(self._nodes)}"
            raise DataRefused(self.directory, f"{problem}: use --kafka-brokers {brokers}, or another directory")
        for node in self._nodes:
            found = _cluster_id(self._home(node))
            if found is not None and found != identity.get("cluster_id"):
                problem = f"belongs to cluster {found}, and its neighbours to {identity.get('cluster_id')}"
                raise DataRefused(self._home(node), problem)

    def start(self, runtime: Runtime, cancelled: Event) -> None:
        """Format what is new, start all brokers, and return when every one of them serves."""
        self.check()  # again, now that the lock is ours
        self.directory.mkdir(parents=True, exist_ok=True)
        if not (self.directory / IDENTITY).exists():
            identity = {"kafka": kafka_version(), "brokers": len(self._nodes), "cluster_id": new_cluster_id()}
            write_json(self.directory / IDENTITY, identity)
        self.cluster_id = read_json(self.directory / IDENTITY)["cluster_id"]
        if self._secure is not None:
            self._secure.prepare()
        retry_when_taken(lambda: self._start_on_fresh_ports(runtime, cancelled))

    def _start_on_fresh_ports(self, runtime: Runtime, cancelled: Event) -> None:
        brokers = len(self._nodes)
        needed = 1 + brokers if self._secure is None else 1 + 2 * brokers
        self._controller_port, *ports = different_ports(needed, self._choose_port)
        self._ports, self._secure_ports = ports[:brokers], ports[brokers:]
        self._format(runtime, cancelled)
        self.brokers = [self._broker(runtime, node) for node in self._nodes]
        try:
            log.info("%s: starting", self.name)
            for broker in self.brokers:
                broker.start()
            self._wait_until_it_serves(cancelled)
            if self._secure is not None:
                self._add_user(self._secure)
                self._wait_until_it_lets_us_in(self._secure, cancelled)
        except BaseException:
            self.stop()
            raise

    def wait_ready(self, cancelled: Event | None = None) -> None:
        """Wait until every broker serves and the cluster knows all of them."""
        cancelled = cancelled or Event()
        self._wait_until_it_serves(cancelled)
        if self._secure is not None:
            self._wait_until_it_lets_us_in(self._secure, cancelled)

    def _wait_until_it_serves(self, cancelled: Event) -> None:
        # The secure ports as well, and now: of a broker that ends because one is taken, the reason is still told apart.
        for broker, port in zip(cycle(self.brokers), (*self._ports, *self._secure_ports), strict=False):
            broker.wait_until(partial(broker.listens_on, port), START_SILENCE_S, cancelled)
        # Only asked once all listen: a client that meets a closed port waits before it tries again.
        client = Consumer({"bootstrap.servers": self.address, "group.id": "strandline-ready", "log_level": 0})
        try:
            self.brokers[0].wait_until(lambda: self._serves(client), START_SILENCE_S, cancelled)
        finally:
            client.close()

    def _add_user(self, secure: SecureListener) -> None:
        try:
            secure.add_user(self.address)
        except KafkaException as error:
            raise self.brokers[0].failed(f"did not take its user: {error.args[0].str()}") from error

    def _wait_until_it_lets_us_in(self, secure: SecureListener, cancelled: Event) -> None:
        for broker, port in zip(self.brokers, self._secure_ports, strict=True):
            # Each by itself: a broker learns of the users a little later than the controller.
            visitor = secure.visitor(f"{LOOPBACK}:{port}")
            try:
                broker.wait_until(partial(is_let_in, visitor), START_SILENCE_S, cancelled)
            finally:
                visitor.close()

    def _serves(self, client: Consumer) -> bool:
        failure = self.failure()
        if failure is not None:
            raise failure
        try:
            if len(client.list_topics(timeout=2).brokers) < len(self._nodes):
                return False
            # Also makes the topic of the offsets, without which the first group of a new cluster is turned away.
            return not client.committed([TopicPartition("__consumer_offsets", 0)], timeout=2)[0].error
        except KafkaException:
            return False

    def stop(self) -> None:
        """Stop all brokers, in good order where the data is to be kept."""
        controller, others = self.brokers[:1], self.brokers[1:]
        # A broker that cannot tell the controller of its end tries to for 5 minutes.
        is_orphaned = any(broker.exit_code is not None for broker in controller)
        if is_orphaned and not self._temporary and any(broker.exit_code is None for broker in others):
            log.warning(
                "%s: its controller has ended; the other brokers are killed, and recover at their start", self.name
            )
        self._stop(others, kill=self._temporary or is_orphaned)
        self._stop(controller, kill=self._temporary)

    def _stop(self, brokers: Sequence[Child], *, kill: bool) -> None:
        first = signal.SIGKILL if kill else signal.SIGTERM
        for broker in brokers:
            broker.send(first)
        for broker in brokers:
            # Not what it logs: that grows also where it tries in vain.
            broker.stop(first, STOP_SILENCE_S, self._written)

    def _written(self) -> int:
        return sum(map(bytes_below, [*map(self._home, self._nodes), self.directory / CLASSES]))

    def failure(self) -> StackError | None:
        """The error of a broker that died, or None while all run."""
        return next((error for broker in self.brokers if (error := broker.death()) is not None), None)

    def _format(self, runtime: Runtime, cancelled: Event) -> None:
        """Format new brokers beside their place and move them there: a format that is cut short leaves no half."""
        tools = []
        for node in self._nodes:
            home = self._home(node)
            if home.exists():
                continue
            fresh = home.with_name(f"{home.name}.new")
            shutil.rmtree(fresh, ignore_errors=True)
            settings = self._write_settings(node, fresh)
            arguments = ("format", "--cluster-id", self.cluster_id, "--config", settings)
            command = runtime.command("kafka.tools.StorageTool", *arguments)
            tools.append((self._child(f"{self.name} format", node, command), fresh, home))
        if tools:
            log.info("%s: formatting", self.name)
        try:
            for tool, _, _ in tools:
                tool.start()
            for tool, fresh, home in tools:
                tool.wait_for_exit(FORMAT_SILENCE_S, cancelled)
                fresh.rename(home)
        finally:
            for tool, _, _ in tools:
                tool.stop(signal.SIGKILL, silence_s=0)

    def _broker(self, runtime: Runtime, node: int) -> Child:
        settings = self._write_settings(node, self._home(node))
        name = self.name if len(self._nodes) == 1 else f"{self.name} broker {node}"
        return self._child(name, node, runtime.command("kafka.Kafka", settings, options=self._jvm_options))

    def _child(self, name: str, node: int, command: Sequence[str | Path]) -> Child:
        return Child(
            name=name,
            command=command,
            log=self.directory / f"broker-{node}.log",
            cwd=self.directory,
            keep_fds=self._keep_fds,
        )

    def _home(self, node: int) -> Path:
        return self.directory / f"broker-{node}"

    def _write_settings(self, node: int, home: Path) -> Path:
        controller = f"{LOOPBACK}:{self._controller_port}"
        place = self._nodes.index(node)
        clients = {"PLAINTEXT": self._ports[place]}
        if self._secure is not None:
            clients[LISTENER] = self._secure_ports[place]
        client = ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in clients.items())
        protocols = ",".join(f"{name}:{name}" for name in clients)
        leads = node == self._nodes[0]
        replicas = min(3, len(self._nodes))
        settings = {
            "process.roles": "broker,controller" if leads else "broker",
            "node.id": node,
            # A voter list in the settings, not in the log: the ports may differ at the next start.
            "controller.quorum.voters": f"{self._nodes[0]}@{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"{client},CONTROLLER://{controller}" if leads else client,
            "advertised.listeners": client,
            "listener.security.protocol.map": f"{protocols},CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            # Below the process' own directory: Kafka would misread a path with a comma or an umlaut.
            "log.dirs": home.name,
            "offsets.topic.num.partitions": 4,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.num.partitions": 4,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": 1,
            "share.coordinator.state.topic.num.partitions": 4,
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            # Records of any age stay: what is tried here often has the times of a log of years ago.
            "log.retention.ms": -1,
            # What is to be compacted is compacted within seconds, for people who want to see it.
            "log.cleaner.backoff.ms": 500,
            # A broker that was killed is let in again only when its session has run out.
            "broker.heartbeat.interval.ms": 500,
            "broker.session.timeout.ms": 4000,
            **(self._secure.broker_settings() if self._secure is not None else {}),
        }
        path = self.directory / f"broker-{node}.properties"
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        if self._secure is None:
            path.write_text(text)
        else:
            write_private(path, text)
        return path


def _addresses(ports: Sequence[int]) -> str:
    return ",".join(f"{LOOPBACK}:{port}" for port in ports)


def new_cluster_id() -> str:
    """A random id as Kafka writes them. One that starts with a dash would be taken for an option by Kafka's tools."""
    while (cluster_id := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return cluster_id


def _cluster_id(home: Path) -> str | None:
    try:
        lines = (home / "meta.properties").read_text().splitlines()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataRefused(home, f"cannot be read: {error.strerror}") from error
    return next((line.removeprefix("cluster.id=") for line in lines if line.startswith("cluster.id=")), "(none)")
