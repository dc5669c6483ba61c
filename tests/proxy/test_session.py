"""One connection of a client's: answers in the order of the requests, bounded memory, and an end in good order."""

import signal
import socket
import struct
from pathlib import Path

from confluent_kafka import Producer

from strandline.proxy.session import MOST_SLOTS
from strandline.stack.kafka import KafkaCluster
from tests.proxy.raw import answer, asked, at_leader, commit, committed, fetch, metadata
from tests.proxy.support import Proxied, create, proxied, write
from tests.proxy.test_no_acks import request as produce
from tests.support import TIMEOUT, wait_for

Clusters = tuple[KafkaCluster, KafkaCluster]
LONG_MS = 100_000


def test_answers_leave_in_the_order_of_the_requests_whatever_their_ids_and_whoever_answers(proxy: Proxied) -> None:
    create(proxy.settings(), {"eu.order": 1})
    # The same id twice, negative ones, and those that the proxy has itself on its way to the broker.
    ids = [1, 1, -1, 2, -(1 << 31), (1 << 31) - 1, 1, 0]
    with at_leader(proxy, "eu.order") as connection:
        for number, correlation_id in enumerate(ids * 3):
            # What passes to the broker and waits there, and what the proxy answers at once, behind each other.
            one = (
                fetch("eu.order", wait_ms=50, correlation_id=correlation_id) if number % 2 else metadata(correlation_id)
            )
            connection.sendall(one)
        got = [answer(connection) for _ in ids * 3]
    assert [correlation_id for correlation_id, _ in got] == ids * 3
    # An answer to Fetch has its topic behind ten bytes, one to Metadata has brokers.
    assert [b"eu.order" in body[:30] for _, body in got] == [bool(number % 2) for number in range(len(got))]


def test_answers_that_wait_for_one_before_them_are_few_however_many_are_asked_for(proxy: Proxied) -> None:
    create(proxy.settings(), {"eu.waits": 1})
    many = 5 * MOST_SLOTS

    def taken() -> int:
        """How many of ours; nobody else uses this version."""
        return proxy.requests()["west", "metadata", 1] - before

    before = proxy.requests()["west", "metadata", 1]
    with at_leader(proxy, "eu.waits") as connection:
        connection.sendall(fetch("eu.waits", wait_ms=LONG_MS, correlation_id=0))
        connection.setblocking(False)
        unsent = b"".join(metadata(number) for number in range(1, many + 1))
        unsent = unsent[connection.send(unsent) :]
        wait_for(lambda: taken() >= MOST_SLOTS, "as many are at work as may be")
        # Others are served meanwhile, and no more of ours are taken.
        create(proxy.settings(), {"eu.served": 1})
        assert taken() == MOST_SLOTS
        write(proxy.settings(), [("eu.waits", "at last")])
        connection.settimeout(TIMEOUT)
        assert answer(connection)[0] == 0
        connection.sendall(unsent)
        assert [answer(connection)[0] for _ in range(many)] == list(range(1, many + 1))


def test_a_later_commit_is_never_overtaken_by_an_earlier_one(proxy: Proxied) -> None:
    create(proxy.settings(), {"overtaken": 1, "eu.overtaken": 1})
    with at_leader(proxy, "overtaken") as connection:
        for number in range(1, 41):
            connection.sendall(commit("overtaken", "eu.overtaken", number, number))
        connection.sendall(committed("overtaken", "eu.overtaken", 99))
        got = [answer(connection) for _ in range(41)]
    assert [correlation_id for correlation_id, _ in got] == [*range(1, 41), 99]
    assert {struct.unpack(">h", body[-2:])[0] for _, body in got[:-1]} == {0}
    topics = got[-1][1]
    at = topics.index(b"eu.overtaken") + len(b"eu.overtaken")
    assert struct.unpack_from(">iiq", topics, at) == (1, 0, 40)


def test_what_was_asked_is_answered_before_the_proxy_ends(clusters: Clusters, tmp_path: Path) -> None:
    east, west = clusters
    # Long: nobody has to wait for it.
    sections = {"drain_s": 100}
    with proxied(tmp_path, sections=sections, east=east.address, west=west.address) as proxy:
        create(proxy.settings(), {"eu.ends": 1})
        with at_leader(proxy, "eu.ends") as waits, at_leader(proxy, "eu.ends") as writes:
            waits.sendall(fetch("eu.ends", wait_ms=LONG_MS, correlation_id=11))
            frame = produce("eu.ends", 500_000, acks=1)
            writes.sendall(frame[:300_000])
            wait_for(lambda: asked(proxy, "fetch") == asked(proxy, "produce") == 1, "both have begun")
            proxy.process.send_signal(signal.SIGTERM)
            wait_for(lambda: "to drain" in proxy.log.read_text(), "it ends")
            # What had begun comes to its end and is answered; what comes behind it is not taken.
            writes.sendall(frame[300_000:] + metadata(12))
            assert answer(writes)[0] == 1
            assert ended(writes)
            assert answer(waits)[0] == 11
            assert ended(waits)
        assert proxy.process.wait(TIMEOUT) == 0


def ended(connection: socket.socket) -> bool:
    """Whether nothing more comes."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        # What was sent and not taken makes of the end a reset.
        return True


def test_bytes_are_counted_while_a_connection_is_open(proxy: Proxied) -> None:
    create(proxy.settings(), {"counted": 1})
    before = proxy.labelled("bytes_in_total", "east")
    producer = Producer(proxy.settings())
    producer.produce("counted", "x" * 500_000)
    assert producer.flush(TIMEOUT) == 0
    wait_for(lambda: proxy.labelled("bytes_in_total", "east") > before + 500_000, "what it sent is counted")
    del producer


def test_no_client_is_asked_for_telemetry(proxy: Proxied) -> None:
    assert "metadata" in proxy.offered()
    assert not {"get_telemetry_subscriptions", "push_telemetry"} & proxy.offered().keys()
