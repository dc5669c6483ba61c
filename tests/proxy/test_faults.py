"""A cluster that is killed, frozen or restarted, and a proxy that is: others are not troubled, and nothing is lost."""

import asyncio
import secrets
import signal
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from kio.schema.errors import ErrorCode
from kio.schema.update_features.v1.request import FeatureUpdateKey, UpdateFeaturesRequest
from kio.static.primitive import i8, i16

from strandline.proxy.cluster import Cluster
from strandline.stack.kafka import KafkaCluster
from strandline.stack.stack import Stack
from tests.proxy.raw import asked
from tests.proxy.relay import Relay
from tests.proxy.support import (
    PATIENT,
    Proxied,
    Writer,
    configured,
    create,
    is_down,
    is_ready,
    lies_there,
    proxied,
    read,
    record_count,
    running,
    take,
    values_of,
    write,
)
from tests.support import TIMEOUT, frozen, wait_for

Clusters = tuple[KafkaCluster, KafkaCluster]
TRANSACTIONS = "transaction.version"
UPGRADE, DOWNGRADE = 1, 2


@pytest.fixture(scope="module")
def fragile() -> Iterator[Clusters]:
    """Two clusters for tests that end them; each leaves them as it found them."""
    with Stack(["kafka"], kafka_clusters=2) as stack:
        yield stack.kafka[0], stack.kafka[1]


@pytest.fixture(scope="module")
def shared(fragile: Clusters, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    east, west = fragile
    with proxied(Path(tmp_path_factory.mktemp("faults")), east=east.address, west=west.address) as proxy:
        yield proxy


@pytest.fixture
def both(shared: Proxied) -> Proxied:
    """A proxy that has found both clusters again, whatever a test before did to them."""
    wait_for(lambda: is_ready(shared), "both clusters answer the proxy")
    return shared


def test_a_frozen_cluster_troubles_only_its_own_topics_and_none_of_them_is_omitted(
    both: Proxied, fragile: Clusters
) -> None:
    _, west = fragile
    create(both.settings(), {"frost": 1, "eu.frost": 1})
    with Writer(both, "eu.frost") as writer:
        wait_for(lambda: writer.acknowledged.total() > 50, "the writer is at work")
        with frozen(west):
            wait_for(lambda: is_down(both, "west"), "it is seen that the cluster does not answer")
            write(both.settings(), [("frost", f"{n}") for n in range(200)])
            assert len(read(both.settings(), ["frost"], 200)) == 200
            listed = AdminClient(both.settings()).list_topics(timeout=TIMEOUT).topics
            assert "eu.frost" in listed
            assert listed["eu.frost"].partitions[0].leader == -1
            # Nor are they when the file is read again meanwhile.
            reloads = both.log.read_text().count("reloaded; serving")
            both.process.send_signal(signal.SIGHUP)
            wait_for(lambda: both.log.read_text().count("reloaded; serving") > reloads, "the file is read again")
            listed = AdminClient(both.settings()).list_topics(timeout=TIMEOUT).topics
            assert listed["eu.frost"].partitions[0].leader == -1
            before = writer.acknowledged.total()
        wait_for(lambda: writer.acknowledged.total() > before + 50, "the writer goes on")
    assert set(writer.acknowledged.values()) == {1}
    assert lies_there(west, "eu.frost", writer.acknowledged)
    wait_for(lambda: not is_down(both, "west"), "it is seen that the cluster answers again")


def test_a_killed_cluster_comes_back_and_nothing_acknowledged_is_lost_or_there_twice(
    both: Proxied, fragile: Clusters
) -> None:
    _, west = fragile
    create(both.settings(), {"kill": 1, "eu.kill": 1})
    reader = Consumer(both.settings(group_id="killed", auto_offset_reset="earliest"))
    reader.subscribe(["kill", "eu.kill"])
    # A broker that comes back alone knows only the last batch of each producer: see the soak.
    with Writer(both, "eu.kill", max_in_flight=1) as writer, Writer(both, "kill") as other:
        wait_for(lambda: writer.acknowledged.total() > 50, "the writer is at work")
        west.brokers[0].stop(signal.SIGKILL, 0.0)
        before = other.acknowledged.total()
        wait_for(lambda: other.acknowledged.total() > before + 100, "who writes to the other cluster is not troubled")
        wait_for(lambda: is_down(both, "west"), "it is seen that the cluster does not answer")
        west.brokers[0].start()
        west.wait_ready()
        before = writer.acknowledged.total()
        wait_for(lambda: writer.acknowledged.total() > before + 50, "the writer goes on")
    written = writer.acknowledged.total() + other.acknowledged.total()
    assert len(take(reader, written)) == written
    reader.close()
    assert lies_there(west, "eu.kill", writer.acknowledged)


class Failing(Writer):
    """A writer whose producer may give up."""

    def __init__(self, proxy: Proxied, topic: str, **options: object) -> None:
        self.fatal: set[int] = set()
        """Errors after which its producer sends no more."""
        super().__init__(proxy, topic, **options)

    def __exit__(self, *_: object) -> None:
        try:
            super().__exit__()
        except (KafkaException, SystemError) as error:
            # The library raises what is fatal from `flush`, and again from whatever callback runs there.
            cause = error if isinstance(error, KafkaException) else error.__cause__
            assert isinstance(cause, KafkaException)
            self.fatal.add(cause.args[0].code())
            super().__exit__()

    def _write(self) -> None:
        try:
            super()._write()
        except KafkaException as error:
            self.fatal.add(error.args[0].code())

    def _delivered(self, error: KafkaError | None, message: object) -> None:
        if error is None:
            super()._delivered(error, message)


@pytest.mark.parametrize(
    ("is_idempotent", "in_flight"),
    [(True, 1), (True, 5), (False, 5)],
    ids=["idempotent, 1 in flight", "idempotent, 5 in flight", "not idempotent"],
)
def test_what_a_killed_cluster_stored_and_did_not_acknowledge_is_never_lost_and_with_idempotence_never_there_twice(
    fragile: Clusters, tmp_path: Path, is_idempotent: bool, in_flight: int
) -> None:
    east, west = fragile
    topic = f"eu.unanswered-{secrets.token_hex(4)}"
    with (
        Relay(west.address) as relay,
        proxied(tmp_path, east=east.address, west=relay.address) as proxy,
    ):
        create(proxy.settings(), {topic: 1})
        with Failing(proxy, topic, enable_idempotence=is_idempotent, max_in_flight=in_flight, linger_ms=0) as writer:
            wait_for(lambda: writer.acknowledged.total() > 50, "the writer is at work")
            with relay.answers_lost():
                unanswered = min(in_flight, 3)
                wait_for(
                    lambda: record_count(west.settings(), topic) >= writer.acknowledged.total() + unanswered,
                    "the cluster has stored what it has not acknowledged",
                )
                west.brokers[0].stop(signal.SIGKILL, 0.0)
            west.brokers[0].start()
            west.wait_ready()
            before = writer.acknowledged.total()
            wait_for(lambda: writer.acknowledged.total() > before + 50 or writer.fatal, "it goes on, or gives up")
    stored = values_of(west, topic)
    assert writer.acknowledged.keys() <= stored.keys(), "nothing acknowledged is lost"
    assert set(writer.acknowledged.values()) == {1}
    if is_idempotent:
        assert max(stored.values()) == 1, "nothing is there twice"
    else:
        # So the test can tell: what was sent again is there twice.
        assert max(stored.values()) > 1
    # A broker that comes back alone knows only the last batch of each producer. Of several that it had stored it takes
    # the first, when it is sent again, for one out of order, with or without a proxy: librdkafka gives up.
    is_alone = not is_idempotent or in_flight == 1
    given_up = {KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, KafkaError._FATAL}
    assert writer.fatal <= (set() if is_alone else given_up)


def test_a_reader_that_begins_while_one_of_its_clusters_does_not_answer_reads_all_when_it_does(
    both: Proxied, fragile: Clusters
) -> None:
    _, west = fragile
    create(both.settings(), {"late": 1, "eu.late": 1})
    write(both.settings(), [(topic, f"{n}") for topic in ("late", "eu.late") for n in range(10)])
    reader = Consumer(both.settings(group_id="late", auto_offset_reset="earliest"))
    assigned: list[TopicPartition] = []
    with frozen(west):
        wait_for(lambda: is_down(both, "west"), "it is seen that the cluster does not answer")
        before = both.requests()
        reader.subscribe(["late", "eu.late"], on_assign=lambda _, partitions: assigned.extend(partitions))

        def has_asked() -> bool:
            reader.poll(0.1)
            asked = both.requests() - before
            return sum(count for (_, api, _), count in asked.items() if api == "offset_fetch") > 1

        wait_for(has_asked, "it asks for its offsets, and then again")
    assert {partition.topic for partition in assigned} == {"late", "eu.late"}
    assert len(take(reader, 20)) == 20
    reader.close()


def test_a_proxy_that_is_killed_and_started_again_loses_nothing(fragile: Clusters, tmp_path: Path) -> None:
    east, west = fragile
    file = configured(tmp_path, {"east": east.address, "west": west.address})
    with running(file) as first:
        create(first.settings(), {"again": 1, "eu.again": 1})
        writer, other = Writer(first, "eu.again"), Writer(first, "again")
        with writer, other:
            wait_for(lambda: writer.acknowledged.total() > 50 and other.acknowledged.total() > 50, "both are at work")
            first.process.kill()
            first.process.wait()
            with running(file, again=True):
                before = writer.acknowledged.total()
                wait_for(lambda: writer.acknowledged.total() > before + 50, "the writer goes on")
                writer.__exit__()
                other.__exit__()
    assert lies_there(west, "eu.again", writer.acknowledged)
    assert lies_there(east, "again", other.acknowledged)


def test_a_proxy_starts_before_its_clusters_and_serves_when_they_are_there(fragile: Clusters, tmp_path: Path) -> None:
    east, west = fragile
    west.brokers[0].stop(signal.SIGKILL, 0.0)
    with proxied(tmp_path, east=east.address, west=west.address, ready=False) as proxy:
        wait_for(lambda: not is_down(proxy, "east"), "the proxy finds the cluster that is there")
        assert is_down(proxy, "west")
        create(proxy.settings(), {"early": 1})
        write(proxy.settings(), [("early", "a")])
        west.brokers[0].start()
        west.wait_ready()
        wait_for(lambda: not is_down(proxy, "west"), "the proxy finds the cluster")
        create(proxy.settings(), {"eu.early": 1})
        write(proxy.settings(), [("eu.early", "a")])
        assert len(read(proxy.settings(), ["early", "eu.early"], 2)) == 2


def test_a_client_that_does_not_read_costs_little_and_stops_only_itself(both: Proxied, fragile: Clusters) -> None:
    create(both.settings(), {"slow": 1})
    write(both.settings(), [("slow", f"{n}".ljust(100_000, "x")) for n in range(300)])
    partition = AdminClient(both.settings()).list_topics("slow", timeout=TIMEOUT)
    node = partition.brokers[partition.topics["slow"].partitions[0].leader]

    def memory() -> int:
        return int(Path(f"/proc/{both.process.pid}/statm").read_text().split()[1]) * 4096

    before, asked_before = memory(), asked(both, "fetch")
    # Fetch 4 of 30 megabytes, ten times, by clients that never read.
    topic = struct.pack(">ih4siiqi", 1, 4, b"slow", 1, 0, 0, 30 << 20)
    body = struct.pack(">hhihiiiib", 1, 4, 1, -1, -1, 100, 1, 30 << 20, 0) + topic
    deaf = []
    try:
        for _ in range(10):
            connection = socket.create_connection((node.host, node.port), timeout=TIMEOUT)
            connection.sendall(struct.pack(">i", len(body)) + body)
            deaf.append(connection)
        wait_for(lambda: asked(both, "fetch") >= asked_before + len(deaf), "all have asked")
        assert len(read(both.settings(), ["slow"], 300)) == 300
        assert memory() - before < 60 << 20
    finally:
        for connection in deaf:
            connection.close()


def test_a_feature_that_is_set_lower_while_the_proxy_runs_is_told_to_clients(both: Proxied, fragile: Clusters) -> None:
    async def lowered() -> None:
        west = Cluster("west", fragile[1].settings(), PATIENT)
        through = Cluster("proxy", {"bootstrap.servers": both.address}, PATIENT)
        try:
            await through.learn()
            before = through.features_epoch
            assert through.finalized[TRANSACTIONS][1] == 2
            await update(west, 1, DOWNGRADE)
            while through.finalized[TRANSACTIONS][1] == 2:
                await asyncio.sleep(0.05)
                await through.learn()
            assert through.finalized[TRANSACTIONS][1] == 1
            # Who was told the other level takes this one for the later word.
            assert through.features_epoch > before
        finally:
            await update(west, 2, UPGRADE)
            west.close()
            through.close()

    async def update(west: Cluster, level: int, kind: int) -> None:
        wanted = FeatureUpdateKey(feature=TRANSACTIONS, max_version_level=i16(level), upgrade_type=i8(kind))
        answer = await west.ask(UpdateFeaturesRequest(feature_updates=(wanted,), validate_only=False))
        assert answer.error_code is ErrorCode.none, answer

    asyncio.run(asyncio.wait_for(lowered(), TIMEOUT))
