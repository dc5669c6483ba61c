"""`strandline demo proxy`, as its users run it, and where its writer or a reader fails."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from strandline.cli import demo_proxy
from strandline.demo import two_clusters
from strandline.errors import StrandlineError
from tests.support import TIMEOUT, run_strandline

REFUSED = KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "out of order", fatal=True)
WEST: Any = SimpleNamespace(
    brokers=[SimpleNamespace(stop=lambda *_: None, start=lambda: None)], wait_ready=lambda: None
)


class Log:
    """A producer or a consumer of no cluster, by which nothing goes."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings

    def produce(self, *_: Any, **__: Any) -> None:
        pass

    def poll(self, _timeout: float) -> None:
        pass

    def flush(self, _timeout: float) -> int:
        return 0

    def subscribe(self, _topics: list[str]) -> None:
        pass

    def consume(self, _most: int, timeout: float) -> list[Any]:
        time.sleep(timeout)
        return []

    def close(self) -> None:
        pass


class Refusing(Log):
    def produce(self, *_: Any, **__: Any) -> None:
        raise KafkaException(REFUSED)


class Undelivered(Log):
    def produce(self, *_: Any, on_delivery: Any, **__: Any) -> None:
        on_delivery(REFUSED, None)


class Unflushed(Log):
    def flush(self, timeout: float) -> int:
        time.sleep(timeout)
        return 3


class FailsToFlush(Log):
    def flush(self, _timeout: float) -> int:
        raise KafkaException(REFUSED)


class Unreadable(Log):
    def consume(self, _most: int, _timeout: float) -> list[Any]:
        raise KafkaException(REFUSED)


async def trade() -> None:
    await demo_proxy._trade("nowhere", WEST, 0.3, asyncio.Event())


@pytest.mark.parametrize(
    ("producer", "problem"),
    [
        (Refusing, "out of order"),
        (Undelivered, "out of order"),
        (FailsToFlush, "out of order"),
        (Unflushed, "3 orders"),
    ],
)
def test_a_writer_that_fails_ends_the_demo_with_one_line(
    producer: type[Log], problem: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(two_clusters, "Producer", producer)
    monkeypatch.setattr(two_clusters, "Consumer", Log)
    monkeypatch.setattr(two_clusters, "WRITE_SILENCE_S", 0.5)
    with pytest.raises(StrandlineError, match=rf"^the writer failed: .*{problem}[^\n]*$"):
        asyncio.run(asyncio.wait_for(trade(), TIMEOUT))
    output = "".join(capfd.readouterr())
    assert "Nothing is lost" not in output
    assert "Traceback" not in output


def test_a_reader_that_fails_ends_the_demo_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_clusters, "Producer", Log)
    monkeypatch.setattr(two_clusters, "Consumer", Unreadable)
    with pytest.raises(StrandlineError, match=r"^a reader failed: .*out of order[^\n]*$"):
        asyncio.run(asyncio.wait_for(trade(), TIMEOUT))


def test_the_writer_has_one_request_in_flight_since_a_broker_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_clusters, "Producer", Log)
    settings: dict[str, Any] = two_clusters.Clerk("nowhere", ["orders"])._producer.settings  # type: ignore[attr-defined]
    assert settings["enable.idempotence"]
    assert settings["max.in.flight"] == 1


def test_the_demo_of_the_proxy_kills_a_cluster_and_loses_nothing() -> None:
    done = run_strandline("demo", "proxy", "--seconds", "3", timeout=5 * TIMEOUT)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "The west is killed (SIGKILL)" in done.stdout
    assert done.stdout.rstrip().endswith("Nothing is lost.")


def test_a_time_that_cannot_be_is_refused() -> None:
    done = run_strandline("demo", "proxy", "--seconds", "0")
    assert done.returncode == 2
    assert "--seconds takes more than 0" in done.stderr
