"""What a connection and a port do in time: who is silent, who is idle, who is gone; told without a broker."""

import asyncio
import os
import resource
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.config import Secret
from strandline.core.routes import Routes
from strandline.core.session_states import Client
from strandline.core.virtual_nodes import Blocks
from strandline.errors import BrokerUnreachable, CannotListen, OptionError, SameCluster
from strandline.kafka.security import Security
from strandline.proxy.answering import Ways, _OwnBroker
from strandline.proxy.backend import HOLD_BACK, LONGEST_ANSWER_S, Backend, Passed
from strandline.proxy.cluster import DEFAULTS, Broker, Cluster, twins
from strandline.proxy.dialing import dial
from strandline.proxy.door import Door, lets_in
from strandline.proxy.exchange import Here
from strandline.proxy.filters import Filters
from strandline.proxy.hold import REQUEST_S, SMALL, WANTED_S, Hold
from strandline.proxy.link import FIRST_READ, SCRATCH, Link
from strandline.proxy.metrics import Counts
from strandline.proxy.rules.table import SIGNING_IN
from strandline.proxy.server import Proxy, Settings, refuse_what_does_not_fit
from strandline.proxy.session import NOT_SPOKEN, Session
from strandline.proxy.supervisor import Supervisor
from strandline.stack.ports import LOOPBACK
from strandline.wire.kafka_frames import Head
from strandline.wire.skim import Seen
from tests.proxy.support import free_ports
from tests.support import TIMEOUT

PRODUCE, FETCH, JOIN_GROUP, HEARTBEAT, SASL_HANDSHAKE, API_VERSIONS = 0, 1, 11, 12, 17, 18
ANSWER_S = DEFAULTS.answer_s


def in_a_loop(checks: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(checks(), TIMEOUT))


def backend(sock: socket.socket) -> Backend:
    sock.setblocking(False)
    client = Link(socket.socket(), len, lambda _: None, lambda: None)
    quiet: Any = {"drained": lambda: None, "ended": lambda _: None}
    return Backend(sock, "broker", seen=Seen(0), client=client, onto=lambda _: None, **quiet)


def test_a_broker_is_silent_only_while_what_it_sends_would_be_read() -> None:
    async def checks() -> None:
        near, far = socket.socketpair()
        with far:
            broker = backend(near)
            now = asyncio.get_running_loop().time()
            broker.next_correlation(Passed(1, FETCH, 4))
            assert broker.silent_for(now, ANSWER_S) is None
            broker.link.pause()
            # The client takes nothing for an hour, and then a little at a time.
            assert broker.silent_for(now + 3600, ANSWER_S) is None
            broker.link.resume()
            assert broker.silent_for(now + 3600 + ANSWER_S - 1, ANSWER_S) is None
            assert broker.silent_for(now + 3600 + ANSWER_S + 1, ANSWER_S) == ANSWER_S
            broker.close()

    in_a_loop(checks)


def test_what_is_asked_behind_a_rebalance_does_not_shorten_it() -> None:
    async def checks() -> None:
        assert JOIN_GROUP in HOLD_BACK
        near, far = socket.socketpair()
        with far:
            broker = backend(near)
            clock = asyncio.get_running_loop().time
            before = clock()
            broker.next_correlation(Passed(1, JOIN_GROUP, 5))
            broker.next_correlation(Passed(2, HEARTBEAT, 4))
            after = clock()
            assert broker.silent_for(before + LONGEST_ANSWER_S - 1, ANSWER_S) is None
            assert broker.silent_for(after + LONGEST_ANSWER_S + 1, ANSWER_S) == LONGEST_ANSWER_S
            broker.close()

    in_a_loop(checks)


def test_what_a_client_asks_may_wait_as_long_where_it_is_read_whole_as_where_it_passes() -> None:
    async def checks() -> None:
        waits: dict[int, float] = {}

        class Asked:
            async def ask(self, request: Any, _: object, *, within: float) -> None:
                waits[request.__api_key__] = within

        async def opened() -> Any:
            return Asked()

        here = Here(Cluster("east", {"bootstrap.servers": "127.0.0.1:1"}))
        broker = _OwnBroker(opened, here, Head(0, FETCH, 4, 1, None, 0))
        for key, version in ((FETCH, 4), (JOIN_GROUP, 5), (HEARTBEAT, 4)):
            await broker.ask(SimpleNamespace(__api_key__=key, __version__=version))
        assert waits == {FETCH: ANSWER_S, JOIN_GROUP: LONGEST_ANSWER_S, HEARTBEAT: DEFAULTS.request_s}

    in_a_loop(checks)


def is_open(client: Session) -> bool:
    return client.state is not Client.CLOSED


def session(sock: socket.socket, *, door: Door | None = None, hold: Hold | None = None) -> Session:
    sock.setblocking(False)
    cluster = Cluster("east", {"bootstrap.servers": "127.0.0.1:1"})
    realm: Any = SimpleNamespace(blocks=Blocks({"east": 0}), spoken={API_VERSIONS: (0, 4), **SIGNING_IN})
    ways = Ways(realm, Here(cluster), Filters(), door, Counts(), hold or Hold(), 600.0)
    return Session(sock, "client", ways, lambda _: None)


def test_a_client_over_whose_connection_nothing_goes_is_let_go() -> None:
    async def checks() -> None:
        near, far = socket.socketpair()
        with far:
            # Taken before, for the process may stand still between the two.
            now = asyncio.get_running_loop().time()
            client = session(near)
            client.tick(now + 599)
            assert is_open(client)
            far.send(b"\0\0")
            while not client._link.received:
                await asyncio.sleep(0)
            client.tick(now + 601)
            client.tick(now + 1200)
            assert is_open(client)
            client.tick(now + 1202)
            assert not is_open(client)
            assert far.recv(1) == b""

    in_a_loop(checks)


def test_who_has_not_signed_in_is_given_little_room() -> None:
    async def checks() -> None:
        near, far = socket.socketpair()
        with far:
            client = session(near, door=Door({"alice": Secret("a")}))
            far.send(struct.pack(">ihhih", SMALL + 1, SASL_HANDSHAKE, 1, 1, -1) + b"\0")
            while is_open(client):
                await asyncio.sleep(0)
            assert client._counts.failures["east", "MalformedFrame"] == 1

    in_a_loop(checks)


def test_a_sign_in_by_tokens_that_are_no_requests_is_refused_with_a_reason() -> None:
    async def checks() -> None:
        near, far = socket.socketpair()
        with far:
            client = session(near, door=Door({"alice": Secret("a")}))
            far.send(struct.pack(">ihhihh", 17, SASL_HANDSHAKE, 0, 1, -1, 5) + b"PLAIN")
            while is_open(client):
                await asyncio.sleep(0)
            assert client._counts.failures["east", "MalformedFrame"] == 1

    in_a_loop(checks)


def test_versions_that_nobody_speaks_are_counted_as_one_however_many_are_named() -> None:
    async def checks() -> None:
        near, far = socket.socketpair()
        with far:
            # Who has not signed in may ask for versions, of whatever version.
            client = session(near, door=Door({"alice": Secret("a")}))
            for version in range(5, 205):
                far.send(struct.pack(">ihhih", 10, API_VERSIONS, version, 1, -1))
            while client._counts.requests.total() < 200:
                await asyncio.sleep(0)
            assert dict(client._counts.requests) == {("east", API_VERSIONS, NOT_SPOKEN): 200}
            client.close(None)

    in_a_loop(checks)


def test_a_version_that_cannot_be_read_ends_the_connection_with_a_reason_also_where_it_is_offered() -> None:
    async def checks() -> None:
        near, far = socket.socketpair()
        with far:
            client = session(near)
            # As brokers say it for the sake of old clients, who must not use it.
            client.realm.spoken[PRODUCE] = (0, 13)
            far.send(struct.pack(">ihhihhii", 20, PRODUCE, 1, 1, -1, 1, 1000, 0))
            while is_open(client):
                await asyncio.sleep(0)
            assert client._counts.failures["east", "MalformedFrame"] == 1

    in_a_loop(checks)


def large(size: int) -> bytes:
    """A request that is answered without a broker, for versions in a version that nobody speaks."""
    return struct.pack(">ihhih", size, API_VERSIONS, 99, 7, -1) + bytes(size - 10)


@asynccontextmanager
async def connections(hold: Hold, count: int) -> AsyncIterator[list[tuple[Session, socket.socket]]]:
    """So many clients who share what room there is, and their own ends."""
    pairs = [socket.socketpair() for _ in range(count)]
    made = [(session(near, hold=hold), far) for near, far in pairs]
    try:
        for _, far in made:
            far.setblocking(False)
        yield made
    finally:
        for client, far in made:
            client.close(None)
            far.close()


async def answered(far: socket.socket) -> bool:
    """Whether an answer comes, and not the end."""
    return await asyncio.get_running_loop().sock_recv(far, 8) != b""


def test_requests_take_room_as_they_come_and_who_waits_for_some_is_called() -> None:
    async def checks() -> None:
        hold, called = Hold(100 << 10), []

        def again() -> None:
            called.append("b")

        assert hold.lets("a", 8 << 20, again)
        assert hold.lets("b", 8 << 20, again)
        hold.take("a", 8 << 20, 60 << 10)
        assert hold.lets("b", 60 << 10, again)
        hold.take("b", 60 << 10, 50 << 10)
        # There is no more: only the first to begin goes on, and small ones.
        assert hold.within(8 << 20) == REQUEST_S
        assert not hold.lets("b", 60 << 10, again)
        assert hold.lets("a", 8 << 20, again)
        assert hold.lets("small", SMALL, again)
        assert (hold.within(8 << 20), hold.within(SMALL)) == (WANTED_S, REQUEST_S)
        hold.release("small")
        await asyncio.sleep(0)
        assert called == []
        hold.release("a")
        await asyncio.sleep(0)
        assert called == ["b"]
        assert hold.lets("b", 60 << 10, again)
        assert hold.within(8 << 20) == REQUEST_S

    in_a_loop(checks)


def test_who_says_that_much_will_come_and_sends_little_keeps_nobody_waiting() -> None:
    async def checks() -> None:
        async with connections(Hold(100 << 10), 51) as made:
            *silent, (_, served) = made
            for client, far in silent:
                far.send(large(8 << 20)[:1000])
                while client._gathered is None:
                    await asyncio.sleep(0)
            await asyncio.get_running_loop().sock_sendall(served, large(60 << 10))
            assert await answered(served)

    in_a_loop(checks)


def test_requests_of_which_much_has_come_and_no_more_make_room_for_who_waits_for_it() -> None:
    async def checks() -> None:
        hold, loop = Hold(100 << 10), asyncio.get_running_loop()
        async with connections(hold, 3) as ((eldest, first), (stopped, second), (client, served)):
            for far in (first, second):
                await loop.sock_sendall(far, large(8 << 20)[: 60 << 10])
            while hold._budget.bytes < 120 << 10:
                await asyncio.sleep(0)
            # More of it is there, and not read.
            second.send(bytes(1000))
            while not hold.waits(stopped._drained):
                await asyncio.sleep(0)
            await loop.sock_sendall(served, large(60 << 10))
            while not hold.waits(client._drained):
                await asyncio.sleep(0)
            now = eldest._begun_at
            for late in (WANTED_S - 1, WANTED_S + 1):
                assert all(map(is_open, (eldest, stopped, client)))
                for one in (eldest, stopped, client):
                    one.tick(now + late)
            # In the time in which we did not read on they were not slow.
            assert [is_open(one) for one in (eldest, stopped, client)] == [False, True, True]
            assert await answered(served)
            assert first.recv(1) == b""
            # Who was closed while it waited is not called.
            client.close(None)
            assert not hold.waits(client._drained)
            stopped.tick(now + WANTED_S + REQUEST_S + 3)
            assert not is_open(stopped)

    in_a_loop(checks)


def test_requests_that_come_at_once_are_all_answered_in_the_room_of_a_few() -> None:
    async def checks() -> None:
        hold, size = Hold(100 << 10), 1 << 20
        most = 0
        async with connections(hold, 60) as made:

            async def ask(far: socket.socket) -> bool:
                nonlocal most
                whole = memoryview(large(size))
                for at in range(0, len(whole), 8 << 10):
                    await asyncio.get_running_loop().sock_sendall(far, whole[at : at + (8 << 10)])
                    most = max(most, hold._budget.bytes + sum(len(client._link._left) for client, _ in made))
                    await asyncio.sleep(0)
                return await answered(far)

            assert all(await asyncio.gather(*(ask(far) for _, far in made)))
        # The bound, the one that began first, what was read at once when the bound was reached, and the first of each.
        assert 100 << 10 <= most < (100 << 10) + size + len(SCRATCH) + len(made) * FIRST_READ
        assert hold._budget.bytes == 0

    in_a_loop(checks)


def test_a_broker_that_refuses_is_tried_again() -> None:
    async def checks() -> None:
        with socket.create_server((LOOPBACK, 0)) as there, closing(socket.socket()) as refuses:
            refuses.bind((LOOPBACK, 0))
            places = [refuses.getsockname(), refuses.getsockname(), there.getsockname()]
            cluster: Any = SimpleNamespace(
                where=lambda _: places.pop(0), security=Security.parse({"bootstrap.servers": "x:1"}), limits=DEFAULTS
            )
            found = await dial(Here(cluster), lambda sock, _: backend(sock))
            assert not places
            found.close()
            places += [refuses.getsockname()] * 10
            with pytest.raises(BrokerUnreachable):
                await dial(Here(cluster), lambda sock, _: backend(sock))
            assert len(places) == 6

    in_a_loop(checks)


def settings(first: int) -> Settings:
    return Settings(
        host=LOOPBACK,
        bootstrap_port=first,
        first_ports={"east": first + 1},
        ports=4,
        advertised_host=LOOPBACK,
        clusters={"east": {"bootstrap.servers": "127.0.0.1:1"}},
        limits={"east": DEFAULTS},
        blocks=Blocks({"east": 0}),
        routes=Routes(primary="east"),
    )


def test_a_port_leads_to_the_broker_that_has_it_now() -> None:
    async def checks() -> None:
        first = free_ports(5)
        proxy = Proxy(settings(first))
        east = proxy.clusters["east"]

        def leads_to(port: int) -> int:
            return proxy._listening[port][1].node

        def brokers(*nodes: int) -> None:
            east.brokers = {node: Broker("h", 1, None) for node in nodes}
            proxy._listen_for_brokers()

        try:
            brokers(0, 1)
            assert (leads_to(first + 1), leads_to(first + 2)) == (0, 1)
            # Another that would have the same port does not take it from one who is there.
            brokers(100, 0, 1)
            assert leads_to(first + 1) == 0
            brokers(100, 1)
            assert (leads_to(first + 1), leads_to(first + 2)) == (100, 1)
        finally:
            for port, (sock, _) in list(proxy._listening.items()):
                proxy._stop_listening(port, sock)

    in_a_loop(checks)


def test_a_port_for_which_there_is_no_file_is_told_and_troubles_nobody_else() -> None:
    async def checks() -> None:
        first = free_ports(5)
        proxy = Proxy(settings(first))
        proxy.clusters["east"].brokers = {0: Broker("h", 1, None)}
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        # The number that the next one would have.
        os.close(free := os.dup(0))
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
            try:
                proxy._listen_for_brokers()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert not proxy._listening
            proxy._listen_for_brokers()
            assert list(proxy._listening) == [first + 1]
        finally:
            for port, (sock, _) in list(proxy._listening.items()):
                proxy._stop_listening(port, sock)

    in_a_loop(checks)


def test_a_cluster_is_looked_after_whatever_happened_when_it_was_last_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def checks() -> None:
        monkeypatch.setattr("strandline.proxy.server.HEALTH_S", 0)
        proxy = Proxy(settings(free_ports(5)))
        asked: list[str] = []

        async def refresh(name: str) -> None:
            asked.append(name)
            raise ValueError("an error code that nobody knows")

        proxy.realm = SimpleNamespace(directory=SimpleNamespace(refresh=refresh))  # type: ignore[assignment]
        watching = asyncio.create_task(proxy._watch("east"))
        while len(asked) < 2 and not watching.done():
            await asyncio.sleep(0)
        assert watching.cancel()

    in_a_loop(checks)


def test_a_reload_that_finds_something_wrong_too_late_leaves_everybody_looked_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def checks() -> None:
        given = settings(free_ports(5))
        async with Proxy(given) as proxy:
            east = proxy.clusters["east"]
            before = proxy.realm

            async def refresh(*_: object) -> None:
                raise OptionError("broker 1000000 of cluster east does not fit")

            # A cluster that was down a moment ago, when it was asked whether all fits.
            monkeypatch.setattr("strandline.proxy.directory.Directory.refresh", refresh)
            near, far = socket.socketpair()
            with far:
                near.setblocking(False)
                ways = Ways(before, Here(east), Filters(), None, Counts(), Hold(), 600.0)
                proxy.sessions.add(client := Session(near, "client", ways, proxy.sessions.discard))
                await proxy.reload(replace(given, drain_s=0.0))
                assert client.realm is proxy.realm is not before
                assert proxy._tasks
                assert not any(task.done() for task in proxy._tasks)

    in_a_loop(checks)


class Slips:
    """A filter with a slip in it."""

    def select_server(self, context: object, routing: object) -> None:
        raise LookupError("nothing of the kind")


@pytest.mark.parametrize("fault", ["replaced", "filter", "none"])
def test_a_connection_that_leads_nowhere_any_more_is_closed_and_counted(fault: str) -> None:
    async def checks() -> None:
        proxy = Proxy(replace(settings(free_ports(5)), filters=Filters([Slips()] if fault == "filter" else [])))
        east = proxy.clusters["east"]
        east.versions = {FETCH: (4, 17)}
        proxy.realm = proxy._realm(("east",))
        near, far = socket.socketpair()
        near.setblocking(False)
        with far:
            # As when the file was read again while a client shook hands.
            here = Here(Cluster("east", {"bootstrap.servers": "127.0.0.1:2"}) if fault == "replaced" else east, 0)
            proxy._begin(near, "client", here)
            if fault == "none":
                assert len(proxy.sessions) == 1
                proxy.sessions.pop().close(None)
            else:
                assert not proxy.sessions
                assert proxy.counts.failures.total() == 1
            assert far.recv(1) == b""

    in_a_loop(checks)


@pytest.mark.parametrize(
    ("change", "is_refused"),
    [
        ({"first_ports": {"east": 9000}}, True),
        ({"bootstrap_port": 9000}, True),
        ({"workers": 2}, True),
        ({"drain_s": 1.0}, False),
        ({"first_ports": {"east": 9108}, "blocks": Blocks({"east": 2})}, False),
    ],
)
def test_ports_stay_as_they_are_when_the_file_is_read_again(change: dict[str, Any], is_refused: bool) -> None:
    # Who knew a broker by its port would find one of another cluster there.
    before = replace(settings(9099), first_ports={"east": 9100})
    with pytest.raises(OptionError) if is_refused else nullcontext():
        before.refuse_to_move(replace(before, **change))


def test_brokers_that_do_not_fit_are_refused_before_anything_is_changed() -> None:
    async def checks() -> None:
        north = Cluster("north", {"bootstrap.servers": "127.0.0.1:1"})
        north.brokers = {999: Broker("h", 1, None), 1000: Broker("h", 1, None)}
        await refuse_what_does_not_fit({"north": north}, Blocks({"north": 1}))
        with pytest.raises(OptionError, match="broker 1000 of cluster north does not fit"):
            await refuse_what_does_not_fit({"north": north}, Blocks({"north": 1}, 1000))

    in_a_loop(checks)


def test_one_cluster_under_two_names_is_told_when_both_have_answered() -> None:
    async def checks() -> None:
        east, west, north = (Cluster(name, {"bootstrap.servers": "127.0.0.1:1"}) for name in ("east", "west", "north"))
        east.cluster_id = west.cluster_id = None
        assert twins([east, west, north]) is None
        east.cluster_id, north.cluster_id = "one", "another"
        assert twins([east, west, north]) is None
        west.cluster_id = "one"
        assert str(twins([east, west, north])) == (
            "clusters east and west are one cluster of Kafka (id one); leave out all but one of them, or mend their "
            "addresses"
        )
        both = {"east": east, "west": west}
        for cluster in both.values():
            cluster.brokers = {0: Broker("h", 1, None)}
        with pytest.raises(SameCluster):
            await refuse_what_does_not_fit(both, Blocks({"east": 0, "west": 1}))
        proxy = Proxy(settings(free_ports(5)))
        proxy.clusters = both
        for cluster in both.values():
            cluster.versions = {FETCH: (4, 17)}
        assert proxy.not_ready() == [str(twins(both.values()))]

    in_a_loop(checks)


def test_a_port_that_is_taken_is_a_failure_and_no_wrong_use() -> None:
    async def checks() -> None:
        with socket.create_server((LOOPBACK, 0)) as stranger:
            port = stranger.getsockname()[1]
            told = f"^cannot listen on {LOOPBACK}:{port}: Address already in use; change listen.bootstrap_port in the"
            with pytest.raises(CannotListen, match=told):
                await Proxy(settings(port)).__aenter__()
            with pytest.raises(CannotListen, match=told):
                await Supervisor(settings(port), b"", Path()).__aenter__()

    in_a_loop(checks)


def test_a_port_of_a_broker_that_is_taken_is_told_with_its_setting(caplog: pytest.LogCaptureFixture) -> None:
    async def checks() -> None:
        with socket.create_server((LOOPBACK, 0)) as stranger:
            port = stranger.getsockname()[1]
            proxy = Proxy(settings(free_ports(5)))
            proxy._listen_for(port, Here(next(iter(proxy.clusters.values())), 1))
            (line,) = caplog.messages
            reason = "Address already in use; change listen.first_broker_port in the file"
            assert line == f"cannot listen on {LOOPBACK}:{port}: {reason}"

    in_a_loop(checks)


def test_a_port_of_a_broker_that_is_free_when_it_is_looked_at_again_is_no_trouble_any_more() -> None:
    async def checks() -> None:
        proxy = Proxy(settings(free_ports(5)))
        (name, cluster), *_ = proxy.clusters.items()
        cluster.brokers = {1: Broker(LOOPBACK, 1, None)}
        port = proxy.place(name, 1)[1]
        troubled = []
        with socket.create_server((LOOPBACK, port)):
            proxy._listen_for_brokers()
            troubled.append(proxy._unheard is not None)
        proxy._listen_for_brokers()
        troubled.append(proxy._unheard is not None)
        assert troubled == [True, False]
        assert [*proxy._listening] == [port]
        proxy._stop_listening(port, proxy._listening[port][0])

    in_a_loop(checks)


@pytest.mark.parametrize(
    ("users", "username", "stays"),
    [
        ({"alice": "a"}, "alice", True),
        ({"alice": "a", "bob": "b"}, "alice", True),
        ({"alice": "other"}, "alice", False),
        ({"bob": "b"}, "alice", False),
        ({"alice": "a"}, None, True),
        ({"alice": "a", "bob": "b"}, None, False),
        (None, "alice", True),
        (None, None, True),
    ],
)
def test_who_has_signed_in_stays_while_it_still_could(
    users: dict[str, str] | None, username: str | None, stays: bool
) -> None:
    before = Door({"alice": Secret("a")}, ("PLAIN",))
    behind = None if users is None else Door({name: Secret(value) for name, value in users.items()}, ("PLAIN",))
    assert lets_in(behind, before, username) == stays
    assert lets_in(behind, None, None) == (behind is None)
