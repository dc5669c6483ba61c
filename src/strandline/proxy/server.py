"""The proxy: a port where clients begin, and one for each broker of each cluster."""

import asyncio
import errno
import hashlib
import logging
import socket
import ssl
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Self

from strandline.core.routes import Routes
from strandline.core.virtual_nodes import Blocks
from strandline.errors import BrokerUnreachable, CannotListen, KafkaError, OptionError, StrandlineError
from strandline.proxy.answering import Ways
from strandline.proxy.backend import shake_hands
from strandline.proxy.cluster import ANY, Cluster, Limits, twins
from strandline.proxy.directory import Directory
from strandline.proxy.door import Door, lets_in
from strandline.proxy.exchange import Here, Realm
from strandline.proxy.filters import Filters
from strandline.proxy.hold import Hold
from strandline.proxy.link import keep_alive
from strandline.proxy.messages import ClusterState, State
from strandline.proxy.metrics import Counts
from strandline.proxy.routing import NetFilterContext
from strandline.proxy.rules.table import OURS, SIGNING_IN, allowed
from strandline.proxy.session import Session

BACKLOG = 1024
HEALTH_S = 2.0
LEARN_S = 5.0
HANDSHAKE_S = 10.0
TICK_S = 1.0
# Who finds no file descriptor for a connection looks again after this.
NO_FILE_S = 0.5
NO_FILTERS = Filters()
BOOTSTRAP = "listen.bootstrap_port in the file"
BROKERS = "listen.first_broker_port in the file"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All that the proxy has to know."""

    host: str
    bootstrap_port: int
    first_ports: Mapping[str, int]
    """The first port of each cluster's brokers."""
    ports: int
    """How many each cluster has."""
    advertised_host: str
    clusters: Mapping[str, Mapping[str, str]]
    """Their settings, by librdkafka's names."""
    limits: Mapping[str, Limits]
    """How long each is waited for."""
    blocks: Blocks
    routes: Routes
    allowed: Mapping[str, str] = field(default_factory=dict)
    """APIs that are for one cluster, and for which."""
    tls: ssl.SSLContext | None = None
    door: Door | None = None
    filters: Filters = NO_FILTERS
    drain_s: float = 10.0
    offsets_last: timedelta = timedelta(days=365)
    """How long offsets away from a group's home are kept."""
    most_connections: int = 10_000
    """Of each process."""
    idle_s: float = 600.0
    """A connection over which nothing goes for so long is closed."""
    workers: int = 1

    @property
    def address(self) -> str:
        """Where clients begin."""
        return f"{self.advertised_host}:{self.bootstrap_port}"

    def refuse_to_move(self, new: "Settings") -> None:
        """Refuse settings that change what cannot change while the proxy runs: where clients find it, and by whom."""
        if self._place() != new._place():
            raise OptionError(
                "listen.host, its ports, TLS and workers stay as they are until the proxy is started again"
            )

    def has_same(self, name: str, new: "Settings") -> bool:
        """Whether a cluster is the same by other settings: where it is found, and how clients see its brokers."""
        known = name in self.clusters and self.clusters[name] == new.clusters[name]
        blocks = [(blocks.width, blocks.numbers.get(name)) for blocks in (self.blocks, new.blocks)]
        return known and blocks[0] == blocks[1]

    def _place(self) -> tuple[object, ...]:
        # Where block 0 begins: a cluster that has moved to another block has other ports by itself.
        first_port = {first - self.blocks.numbers[name] * self.ports for name, first in self.first_ports.items()}
        ports = self.bootstrap_port, first_port, self.ports
        return self.host, ports, self.advertised_host, self.tls is not None, self.workers


class Proxy:
    """Serves while it is entered."""

    def __init__(self, settings: Settings, *, shares_ports: bool = False) -> None:
        """`shares_ports`: other processes listen on them too."""
        self.settings = settings
        self._shares_ports = shares_ports
        self.sessions: set[Session] = set()
        self.counts = Counts()
        self._hold = Hold()
        self.clusters = {name: Cluster(name, given, settings.limits[name]) for name, given in settings.clusters.items()}
        self._listening: dict[int, tuple[socket.socket, Here]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._arriving: set[asyncio.Task[None]] = set()
        self._realms: dict[tuple[str, ...], Realm] = {}
        self._unheard: CannotListen | None = None
        """Of a broker that nobody could reach, since something else listens on its port."""
        self._told = ""
        """Of clusters that turned out to be one."""

    async def __aenter__(self) -> Self:
        self._listen(self.settings.bootstrap_port, Here(self.clusters[self.settings.routes.primary]))
        try:
            await self._take_up()
            if (problem := twins(self.clusters.values()) or self._unheard) is not None:
                raise problem
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def reload(self, settings: Settings) -> None:
        """Serve by other settings. Connections to clusters that are the same go on, by the new routes; others end."""
        self.settings.refuse_to_move(settings)
        same = {name: self.clusters[name] for name in settings.clusters if self.settings.has_same(name, settings)}
        clusters = {
            name: same[name] if name in same else Cluster(name, given, settings.limits[name])
            for name, given in settings.clusters.items()
        }
        try:
            await refuse_what_does_not_fit(clusters, settings.blocks)
        except StrandlineError:
            for name in clusters.keys() - same.keys():
                clusters[name].close()
            raise
        for name, cluster in same.items():
            cluster.limit(settings.limits[name])
            cluster.renew(settings.clusters[name])
        for name, cluster in clusters.items():
            if name in self.clusters and name not in same and not cluster.topics:
                cluster.remember(self.clusters[name])
        was, before, self.clusters, self.settings = self.settings, self.clusters, clusters, settings
        for task in self._tasks:
            task.cancel()
        self._realms.clear()
        try:
            await self._take_up()
        except StrandlineError as error:
            # There is no way back, and all is looked after again: it will be told until it is mended.
            log.error("%s", error)
        for session in list(self.sessions):
            self._move(session, was)
        for port, (sock, here) in list(self._listening.items()):
            if here.node != ANY and here.cluster.name not in same:
                self._stop_listening(port, sock)
        self._listen_for_brokers()
        for name, cluster in before.items():
            if name not in same:
                cluster.close()

    def _move(self, session: Session, was: Settings) -> None:
        """A connection goes on by the new routes, if the clusters that it can have need no other connection.

        And if whoever has signed in over it still could.
        """
        names = tuple(self.clusters) if self.settings.filters.net is None else tuple(session.realm.clusters)
        is_same = self.clusters.get(session.here.cluster.name) is session.here.cluster
        is_let_in = lets_in(self.settings.door, was.door, session.username)
        if not is_same or not is_let_in or any(name not in self.clusters for name in names):
            session.drain()
            return
        if names not in self._realms:
            self._realms[names] = self._realm(names)
        session.move(self._realms[names], self.settings.filters, self.settings.door)

    async def _take_up(self) -> None:
        self.realm = self._realms[tuple(self.clusters)] = self._realm(tuple(self.clusters))
        self._tasks = [asyncio.create_task(self._watch(name)) for name in self.clusters]
        self._tasks += [asyncio.create_task(self._keep_learning(name)) for name in self.clusters]
        self._tasks.append(asyncio.create_task(self._tick()))
        await asyncio.gather(*(self.realm.directory.refresh(name) for name in self.clusters))
        await asyncio.gather(*map(self._learn, self.clusters))

    def _realm(self, names: tuple[str, ...]) -> Realm:
        """Some of the clusters as one."""
        routes = self.settings.routes.among(names)
        clusters = {name: self.clusters[name] for name in names}
        settings = self.settings
        chosen = {word: name for word, name in settings.allowed.items() if name in clusters}
        ours = {**OURS, **allowed(chosen), **({} if settings.door is None else SIGNING_IN)}
        directory = Directory(
            clusters,
            routes,
            self.settings.blocks,
            cluster_id=_cluster_id(names),
            place=self.place,
            learned=self._learned,
        )
        realm = Realm(clusters, routes, settings.blocks, directory, ours, self.place, settings.offsets_last, chosen)
        realm.learn()
        return realm

    def _learned(self) -> None:
        for realm in self._realms.values():
            realm.learn()
        self._listen_for_brokers()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop = asyncio.get_running_loop()
        for port, (sock, _) in list(self._listening.items()):
            self._stop_listening(port, sock)
        for task in (*self._tasks, *self._arriving):
            task.cancel()
        for session in list(self.sessions):
            session.drain()
        deadline = loop.time() + self.settings.drain_s
        while self.sessions and loop.time() < deadline:
            await asyncio.sleep(0.02)
            # What was in the middle of a request may have come to its end.
            for session in list(self.sessions):
                session.drain()
        for session in list(self.sessions):
            session.close(None)
        for cluster in self.clusters.values():
            cluster.close()

    def place(self, cluster: str, node: int) -> tuple[str, int]:
        """Where clients find a broker: the same in every process and after every restart."""
        return self.settings.advertised_host, self.settings.first_ports[cluster] + node % self.settings.ports

    def not_ready(self) -> list[str]:
        """Why not everything can be served."""
        down = [f"cluster {name} does not answer" for name, cluster in self.clusters.items() if not cluster.is_up]
        return down if (problem := twins(self.clusters.values())) is None else [*down, str(problem)]

    def state(self) -> State:
        """How it is."""
        clusters = {
            name: ClusterState(cluster.address, cluster.is_up, len(cluster.brokers))
            for name, cluster in self.clusters.items()
        }
        return State(len(self.sessions), clusters, self.counts.counted())

    async def _watch(self, name: str) -> None:
        while True:
            await asyncio.sleep(HEALTH_S)
            try:
                await self.realm.directory.refresh(name)
            except StrandlineError as error:
                log.error("cluster %s: %s", name, error)
            except Exception:
                # Whatever it was: a cluster that nobody looks after stays down for ever.
                log.exception("cluster %s", name)
            if (problem := twins(self.clusters.values())) is not None and str(problem) != self._told:
                self._told = str(problem)
                log.error("%s", problem)

    async def _keep_learning(self, name: str) -> None:
        while True:
            await asyncio.sleep(LEARN_S)
            await self._learn(name)

    async def _learn(self, name: str) -> None:
        """Ask a cluster's brokers what they speak now: they may have been upgraded, or an upgrade may be undone."""
        cluster = self.clusters[name]
        if cluster.is_up:
            with suppress(KafkaError):
                await cluster.learn()
                self._learned()

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TICK_S)
            for session in list(self.sessions):
                session.tick(loop.time())

    def _listen_for_brokers(self) -> None:
        self._unheard = None
        taken: dict[int, tuple[str, int]] = {}
        for name, cluster in self.clusters.items():
            for node in cluster.brokers:
                port = self.place(name, node)[1]
                other = taken.setdefault(port, (name, node))
                if other != (name, node):
                    log.error(
                        "brokers %d and %d of cluster %s share port %d: give it more ports (listen.ports)",
                        other[1], node, name, port,
                    )  # fmt: skip
                else:
                    self._listen_for(port, Here(cluster, node))

    def _listen_for(self, port: int, here: Here) -> None:
        """Have a port lead to a broker; one that led to a broker which is gone leads to this one from now on."""
        known = self._listening.get(port)
        if known is None:
            try:
                self._listen(port, here)
            except CannotListen as error:
                self._unheard = error
                log.error("%s", error)
        elif known[1].cluster is not here.cluster or known[1].node not in here.cluster.brokers:
            self._listening[port] = known[0], here

    def _listen(self, port: int, here: Here) -> None:
        host = self.settings.host
        try:
            sock = _listening_on(host, port, shared=self._shares_ports)
        except OSError as error:
            setting = BOOTSTRAP if port == self.settings.bootstrap_port else BROKERS
            raise CannotListen(host, port, error, setting) from error
        self._listening[port] = sock, here
        asyncio.get_running_loop().add_reader(sock.fileno(), self._accept, port)

    def _stop_listening(self, port: int, sock: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(sock.fileno())
        sock.close()
        del self._listening[port]

    def _accept(self, port: int) -> None:
        listening, here = self._listening[port]
        try:
            sock, peer = listening.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._look_later(port, listening, error)
            return
        client = f"{peer[0]}:{peer[1]}"
        if len(self.sessions) + len(self._arriving) >= self.settings.most_connections:
            log.warning("%s turned away: %d connections are open", client, len(self.sessions))
            sock.close()
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(sock)
        if self.settings.tls is None:
            self._begin(sock, client, here)
        else:
            task = asyncio.create_task(self._shake_hands(sock, self.settings.tls, client, here))
            self._arriving.add(task)
            task.add_done_callback(self._arriving.discard)

    def _look_later(self, port: int, listening: socket.socket, error: OSError) -> None:
        """Who waits on a port would be told at once again, for ever, while nothing can be done about it."""
        log.error("no connection can be taken on port %d: %s", port, error.strerror)
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening.fileno())

        def look() -> None:
            if self._listening.get(port, (None, None))[0] is listening:
                loop.add_reader(listening.fileno(), self._accept, port)

        loop.call_later(NO_FILE_S, look)

    async def _shake_hands(self, sock: socket.socket, tls: ssl.SSLContext, client: str, here: Here) -> None:
        wrapped = tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await shake_hands(wrapped)
        except (OSError, TimeoutError) as error:
            log.info("%s: no TLS: %s", client, str(error) or f"not within {HANDSHAKE_S:g} s")
            wrapped.close()
        except BaseException:
            wrapped.close()
            raise
        else:
            self._begin(wrapped, client, here)

    def _begin(self, sock: socket.socket, client: str, here: Here) -> None:
        if here.node == ANY:
            here = Here(self.clusters[self.settings.routes.primary])
        try:
            realm, here = self._select(client, here)
            if not any(cluster.is_up for cluster in realm.clusters.values()):
                raise BrokerUnreachable(", ".join(realm.clusters), "no cluster answers")
        except Exception as error:  # a filter's too: it ends this connection alone
            is_known = isinstance(error, StrandlineError)
            log.warning("%s turned away: %s", client, error if is_known else repr(error), exc_info=not is_known)
            self.counts.failures[here.cluster.name, type(error).__name__] += 1
            sock.close()
            return
        settings = self.settings
        ways = Ways(realm, here, settings.filters, settings.door, self.counts, self._hold, settings.idle_s)
        self.sessions.add(Session(sock, client, ways, self.sessions.discard))

    def _select(self, client: str, here: Here) -> tuple[Realm, Here]:
        """The clusters of a connection: all, or those that a filter chooses."""
        if self.clusters.get(here.cluster.name) is not here.cluster:
            # The file was read again since it came, while a handshake of TLS was under way.
            raise BrokerUnreachable(f"cluster {here.cluster.name}", "there is another in its place, or none")
        net = self.settings.filters.net
        if net is None:
            return self.realm, here
        context = NetFilterContext(client, "bootstrap" if here.node == ANY else here.cluster.name)
        net.select_server(context, self.realm.routing())
        names = tuple(name for name in self.clusters if name in context.chosen)
        if not names or set(names) != set(context.chosen):
            raise OptionError(f"{type(net).__name__} chose {', '.join(context.chosen) or 'no cluster'}")
        realm = self._realms.get(names)
        if realm is None:
            realm = self._realms[names] = self._realm(names)
        if here.node == ANY:
            return realm, Here(realm.clusters[realm.routes.primary])
        if here.cluster.name not in names:
            raise OptionError(f"this is a port of cluster {here.cluster.name}, which was not chosen")
        return realm, here


def _listening_on(host: str, port: int, *, shared: bool) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


async def refuse_what_does_not_fit(clusters: Mapping[str, Cluster], blocks: Blocks) -> None:
    """Refuse blocks that a cluster's brokers do not fit into, and one cluster under two names, before all is changed.

    As far as they answer.
    """

    async def ask(name: str, cluster: Cluster) -> None:
        if not cluster.brokers:
            with suppress(KafkaError):
                await cluster.metadata()
        for node in cluster.brokers:
            blocks.outside(name, node)

    await asyncio.gather(*(ask(name, cluster) for name, cluster in clusters.items()))
    if (problem := twins(clusters.values())) is not None:
        raise problem


def _cluster_id(names: Iterable[str]) -> str:
    """The same for the same names."""
    return "strandline-" + hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:11]
