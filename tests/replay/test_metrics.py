"""What Prometheus, and whoever asks for the status, is told of a real replay."""

import asyncio
import json
import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from strandline.core.histogram import Histogram
from strandline.replay.metrics import LATE_BELOW
from strandline.replay.plan import Until
from strandline.replay.replay import Replay
from strandline.replay.watch import Watch
from strandline.stack.kafka import KafkaCluster
from tests.replay.support import Peer, Said, capture, connection, get, plan, serving, write
from tests.support import TIMEOUT

LABELLED = dict[tuple[str, str], float]


def fetch(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def samples(page: str) -> LABELLED:
    """By name and by the value of the one label that tells them apart."""
    return {
        (
            sample.name.removeprefix("strandline_replay_"),
            ["", *(sample.labels[name] for name in sample.labels if name != "topic")][-1],
        ): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_a_replay_shows_its_counters_its_partitions_and_its_status(kafka: KafkaCluster) -> None:
    async def answer(peer: Peer, request: bytes) -> None:
        if b"/hangs" not in request:
            peer.write(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n" if b"/no" in request else OK)

    topic = "replay-metrics"
    said = [Said(0, get("/a")), Said(1, get("/no"), NOT_FOUND), Said(2, get("/hangs")), Said(3, get("/after"))]
    capture(kafka.address, topic, {"a": connection("a", said)})
    write(kafka.address, topic, [("bad", b"\xff\xff")])

    async def main() -> None:
        async with serving(answer) as server:
            run = Replay(plan(kafka.address, topic, server, until=Until.NEVER))
            watch = Watch(run)
            with watch.pages("127.0.0.1", 0) as pages:

                async def ask(page: str) -> tuple[int, str]:
                    return await asyncio.to_thread(fetch, pages.address + page)

                assert (await ask("/readyz")) == (503, "the replay has not begun\n")
                assert json.loads((await ask("/status"))[1])["clock"] == "has not begun"
                assert not samples((await ask("/metrics"))[1])
                running = asyncio.ensure_future(run.run())
                async with asyncio.timeout(TIMEOUT):
                    while len(server.arrivals) < 3 or run.buried < 1 or run.output.unsafe or not run.member.ends():
                        await asyncio.sleep(0.01)
                assert (await ask("/readyz")) == (200, "ok\n")
                check_metrics(samples((await ask("/metrics"))[1]), topic)
                status = json.loads((await ask("/status"))[1])
                assert (status["requests"], status["sent"], status["on_their_way"]) == (4, 3, 1)
                (partition,) = status["partitions"]
                assert (partition["frontier"], partition["end"], partition["lag"], partition["in_flight"]) == (
                    2,
                    5,
                    3,
                    2,
                )
                assert partition["oldest"]["id"] == "0-2.0"
                assert partition["oldest"]["waits_for"] == "the target's answer"
                for session in run.engine.sessions:
                    session.give_up("enough")
                run.stop()
                await running

    asyncio.run(main())


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
NOT_FOUND = b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n"


def check_metrics(found: LABELLED, topic: str) -> None:
    counts = {"requests": 4, "sent": 3, "attempts": 3, "answered": 2, "failed": 0, "unsent": 0, "buried_records": 1}
    assert {name: found[f"{name}_total", ""] for name in counts} == counts
    assert found["verdicts_total", "match"] == 2
    assert found["in_flight", ""] == 1
    assert found["waiting_requests", ""] == 2
    assert found["sessions", "exchanging"] == 1
    assert found["paused", "target_down"] == found["paused", "unproven"] == found["stalls_total", ""] == 0
    assert found["lateness_seconds_count", ""] == found["lateness_seconds_bucket", "+Inf"] == 3
    assert found["source_time_seconds", ""] >= 1_780_000_000
    assert found["spool_memory_bytes", ""] > 0
    assert found["frontier", "0"] == 2
    assert found["lag", "0"] == 3
    assert found["records_in_flight", "0"] == 2
    assert found["oldest_unfinished_seconds", "0"] > 0
    assert found["unsafe_results", ""] == 0


def test_the_buckets_of_the_histogram_are_exact() -> None:
    late = Histogram()
    values = [0, 1, 2**16 - 1, 2**16, 2**20 + 5, 2**37 - 1, 2**37]
    for value in values:
        late.add(value)
    *counts, total = late.below(LATE_BELOW)
    assert total == len(values)
    assert counts == [sum(value < 2**power for value in values) for power in LATE_BELOW]
