"""A cluster that is far away, and one that is cut off without a word: others are not troubled, and nothing is lost."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from strandline.stack.kafka import KafkaCluster
from tests.proxy.raw import answer, asked, at_bootstrap, at_leader, fetch
from tests.proxy.raw import request as raw_request
from tests.proxy.relay import Relay
from tests.proxy.support import Proxied, Writer, create, is_down, lies_there, proxied, read, take, write
from tests.proxy.test_no_acks import request as produce
from tests.support import TIMEOUT, wait_for

Clusters = tuple[KafkaCluster, KafkaCluster]
API_VERSIONS = 18
IMPATIENT = {
    "timeouts": {"connect_s": 1, "health_s": 1, "answer_s": 2},
    "breaker": {"failures": 2, "pause_s": 0.5},
}


@pytest.fixture(scope="module")
def relay(clusters: Clusters) -> Iterator[Relay]:
    with Relay(clusters[1].address) as relay:
        yield relay


@pytest.fixture(scope="module")
def proxy(clusters: Clusters, relay: Relay, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    """East as it is, west behind a network of our own."""
    west = {"bootstrap": relay.address, **IMPATIENT}
    with proxied(Path(tmp_path_factory.mktemp("network")), east=clusters[0].address, west=west) as running:
        yield running


def create_behind(clusters: Clusters, name: str) -> None:
    """A topic in each cluster, created without the proxy: while the relay stands still, the west is down for it."""
    for cluster, topic in zip(clusters, (name, f"eu.{name}"), strict=True):
        create(cluster.settings(), {topic: 1})


def test_a_slow_cluster_is_slow_alone_and_nothing_is_lost_or_there_twice(
    proxy: Proxied, clusters: Clusters, relay: Relay
) -> None:
    east, west = clusters
    create_behind(clusters, "far")
    with Writer(proxy, "eu.far") as writer, Writer(proxy, "far") as other:
        wait_for(lambda: min(writer.acknowledged.total(), other.acknowledged.total()) > 50, "both are at work")
        with relay.slow(0.2):
            before, elsewhere = writer.acknowledged.total(), other.acknowledged.total()
            assert len(read(proxy.settings(), ["far"], 50)) >= 50
            wait_for(lambda: other.acknowledged.total() > elsewhere + 100, "who writes to the other goes on")
            wait_for(lambda: writer.acknowledged.total() > before + 50, "it goes on here too, later")
    for cluster, topic, wrote in ((west, "eu.far", writer), (east, "far", other)):
        assert set(wrote.acknowledged.values()) == {1}
        assert lies_there(cluster, topic, wrote.acknowledged)


def test_a_cluster_that_is_cut_off_troubles_only_its_own_topics_and_nothing_is_lost_or_there_twice(
    proxy: Proxied, clusters: Clusters, relay: Relay
) -> None:
    east, west = clusters
    create_behind(clusters, "cut")
    reader = Consumer(proxy.settings(group_id="cut", auto_offset_reset="earliest"))
    reader.subscribe(["cut", "eu.cut"])
    with Writer(proxy, "eu.cut") as writer, Writer(proxy, "cut") as other:
        wait_for(lambda: min(writer.acknowledged.total(), other.acknowledged.total()) > 50, "both are at work")
        found = take(reader, 50)
        with relay.cut():
            wait_for(lambda: is_down(proxy, "west"), "it is seen that the cluster does not answer")
            wait_for(lambda: "no answer within 2 s" in proxy.log.read_text(), "who waits for an answer is let go")
            elsewhere = other.acknowledged.total()
            write(proxy.settings(), [("cut", f"more-{n}") for n in range(100)])
            wait_for(lambda: other.acknowledged.total() > elsewhere + 100, "who writes to the other goes on")
            assert len(read(proxy.settings(), ["cut"], elsewhere)) >= elsewhere
            listed = AdminClient(proxy.settings()).list_topics(timeout=TIMEOUT).topics
            assert listed["eu.cut"].partitions[0].leader == -1
            before = writer.acknowledged.total()
        wait_for(lambda: writer.acknowledged.total() > before + 50, "the writer goes on")
    assert set(writer.acknowledged.values()) == set(other.acknowledged.values()) == {1}
    other.acknowledged.update(f"more-{n}" for n in range(100))
    assert lies_there(west, "eu.cut", writer.acknowledged)
    assert lies_there(east, "cut", other.acknowledged)
    written = {("eu.cut", value) for value in writer.acknowledged} | {("cut", value) for value in other.acknowledged}
    seen = {(message.topic(), (message.value() or b"").decode()) for message in found}
    while not written <= seen:
        seen |= {(message.topic(), (message.value() or b"").decode()) for message in take(reader, 1)}
    reader.close()


@pytest.fixture(scope="module")
def renamed(clusters: Clusters, relay: Relay, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    """The same, where topics have other names in the west: what names them is read whole."""
    sections = {"routes": {"topic_names": {"west": {"prefix": "eu."}}}}
    directory = Path(tmp_path_factory.mktemp("renamed"))
    with proxied(directory, sections=sections, east=clusters[0].address, west=relay.address) as running:
        yield running


def memory(proxy: Proxied) -> int:
    return int(Path(f"/proc/{proxy.process.pid}/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("which", ["proxy", "renamed"])
def test_a_broker_that_takes_nothing_stops_the_reading_of_its_client_and_memory_stays_bounded(
    which: str, request: pytest.FixtureRequest, clusters: Clusters, relay: Relay
) -> None:
    proxy: Proxied = request.getfixturevalue(which)
    topic = f"eu.stuck-{which}"
    create(clusters[1].settings(), {topic if which == "proxy" else topic.removeprefix("eu."): 1})
    frame = produce(topic, 900_000)
    with at_leader(proxy, topic) as writes:
        writes.sendall(frame)
        wait_for(lambda: asked(proxy, "produce") >= 1, "it is passed on")
        with relay.cut():
            before = memory(proxy)
            # Ten times over what sockets hold: whoever read on would have it all.
            sent = sent_until_stuck(proxy, writes, frame, 200 << 20)
            assert memory(proxy) - before < 20 << 20
            assert sent < 100 << 20


def sent_until_stuck(proxy: Proxied, connection: socket.socket, frame: bytes, most: int) -> int:
    """Send a frame again and again until the proxy reads no more, or so many bytes are sent; how many were.

    It reads no more when it takes nothing while it answers others: between two answers it would have read on.
    """
    connection.setblocking(False)
    sent = answers = 0
    with at_bootstrap(proxy) as other:
        while sent < most and answers < 50:
            try:
                sent += connection.send(memoryview(frame)[sent % len(frame) :])
                answers = 0
            except BlockingIOError:
                other.sendall(raw_request(API_VERSIONS, 0, 7, b""))
                assert answer(other)[0] == 7
                answers += 1
    return sent


def test_a_client_that_does_not_take_what_is_read_whole_for_it_costs_little(
    renamed: Proxied, clusters: Clusters
) -> None:
    create(clusters[1].settings(), {"deaf": 1})
    write(renamed.settings(), [("eu.deaf", f"{n}".ljust(400_000, "x")) for n in range(20)])
    before, count = memory(renamed), 24
    asks = b"".join(fetch("eu.deaf", wait_ms=100, correlation_id=number, most=10 << 20) for number in range(count))
    with at_leader(renamed, "eu.deaf") as deaf, at_leader(renamed, "eu.deaf") as other:
        deaf.sendall(asks)
        wait_for(lambda: asked(renamed, "fetch") >= count, "all are asked for")
        # By the time another has had as many answers, so would this one.
        other.sendall(asks)
        assert [answer(other)[0] for _ in range(count)] == list(range(count))
        assert memory(renamed) - before < 150 << 20
        assert [answer(deaf)[0] for _ in range(count)] == list(range(count))
