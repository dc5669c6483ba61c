"""The checker: it finds nothing wrong with the gateway, and each of four gateways out that cheat by one record."""

import asyncio
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock
from uuid import uuid4

import pytest
from websockets.asyncio.server import serve

from strandline.cli import gateway as command
from strandline.core.gap import Gap
from strandline.errors import GatewayRefused, StrandlineError
from strandline.gateway import session, written
from strandline.gateway.feed import Feed, Record
from strandline.gateway.hub import Hub
from strandline.gateway.server import Gateway
from strandline.gateway.verify import Outcome, Trial, verify
from strandline.gateway.visitor import ALL, Visitor
from strandline.kafka.partition import Partition
from strandline.stack import KafkaCluster
from strandline.stack.ports import free_port
from tests.gateway.support import JWT, run, serving, token, verify_until
from tests.ordered.support import create_topic

Change = Callable[[list[Record]], list[Record]]


def tried(
    kafka: KafkaCluster,
    *,
    clients: int = 12,
    seconds: float = 3.0,
    rate: int = 300,
    deletes: bool = False,
    until: Callable[[Outcome], bool] = lambda _: True,
) -> Outcome:
    """A trial that takes so long, and on until something is so."""
    topic = f"verify-{uuid4().hex[:8]}"
    create_topic(kafka.address, topic, 3)
    outcomes = []

    async def test() -> None:
        limits = {"cold_every_s": 0.01}
        async with serving(kafka.address, [topic], recent_bytes=5_000, token_every_s=0.3, limits=limits) as gateway:
            settings = {"bootstrap.servers": kafka.address}
            trial = Trial(
                url=gateway.address,
                kafka=settings,
                topic=topic,
                clients=clients,
                seconds=seconds,
                rate=rate,
                deletes=deletes,
            )
            outcomes.append(await verify_until(trial, until))

    run(test)
    return outcomes[0]


def test_every_client_sees_every_record_once_in_order_or_an_exact_gap(kafka: KafkaCluster) -> None:
    outcome = tried(
        kafka,
        clients=200,
        seconds=8.0,
        rate=60,
        deletes=True,
        until=lambda so_far: so_far.connects > 800 and so_far.gaps > 0 and so_far.seen > 50 * so_far.written,
    )
    assert outcome.faults == []
    assert outcome.connects > 400
    assert outcome.gaps
    assert outcome.seen > 50 * outcome.written


def test_a_gateway_that_is_not_there_or_does_not_serve_the_topic_is_told_before_anything_is_written(
    kafka: KafkaCluster,
) -> None:
    topic, other = (f"verify-{uuid4().hex[:8]}" for _ in range(2))
    for name in (topic, other):
        create_topic(kafka.address, name)

    async def test() -> None:
        settings = {"bootstrap.servers": kafka.address}
        nobody = f"ws://127.0.0.1:{free_port()}"
        async with serving(kafka.address, [topic]) as gateway, serving(kafka.address, [topic], **JWT) as strict:
            for url, problem in (
                (nobody, "nobody can be"),
                (strict.address, "401 .*--token-file"),
                (gateway.address, f"'{other}'"),
            ):
                with pytest.raises(GatewayRefused, match=problem):
                    await verify(Trial(url=url, kafka=settings, topic=other))

    run(test)


def test_a_gateway_that_asks_for_a_token_is_tried_with_one_from_a_file(kafka: KafkaCluster, tmp_path: Path) -> None:
    topic = f"verify-{uuid4().hex[:8]}"
    create_topic(kafka.address, topic)
    file = tmp_path / "token"

    async def told(gateway: Gateway, shown: str) -> tuple[int | None, str]:
        file.write_text(shown)
        where = ["--url", gateway.address, "--topic", topic, "--kafka", kafka.address, "--token-file", str(file)]
        course = ["--clients", "3", "--seconds", "1"]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "strandline", "gateway", "verify", *where, *course),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        return process.returncode, said.decode()

    async def test() -> None:
        good = token(["verify.*"], valid_s=600)
        async with serving(kafka.address, [topic], **JWT) as gateway:
            for shown in ("", "two words", "t\u00f6ken"):
                assert await told(gateway, shown) == (2, f"strandline: --token-file {file} holds no token\n")
            code, said = await told(gateway, "unknown")
            assert (code, said.count("HTTP 401 (it does not take this token)")) == (1, 1)
            code, said = await told(gateway, f"{good}\n")
            assert (code, said.endswith(" told, 0 faults\n")) == (0, True), said
            assert good not in said

    run(test)


def test_a_client_that_is_stopped_while_it_reads_nothing_is_cut_off() -> None:
    async def test() -> None:
        async with serve(lambda connection: connection.wait_closed(), "127.0.0.1", 0, close_timeout=0.1) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            trial = Trial(url=f"ws://127.0.0.1:{port}", kafka={}, topic="t")
            visitor = Visitor(trial, 0, Outcome(), writer=Mock())
            visitor._random = Mock(random=lambda: 0.5)  # it freezes, for a second
            async with trial.dial() as connection:
                frozen = asyncio.create_task(visitor._drop(connection))
                await asyncio.sleep(0)
                frozen.cancel()
                await asyncio.wait([frozen])
                assert connection.transport.is_closing()

    run(test)


def _changed_once(change: Change) -> Callable[[Sequence[Record], Sequence[session.Session]], list[Record]]:
    """A change to one run of records: the first of several behind some that are as they should be, for live clients."""
    left = [20]

    def changed(records: Sequence[Record], to: Sequence[session.Session]) -> list[Record]:
        # Some of those who hear it may be cut off before they have read it, and get it again as it should be.
        is_heard = len(records) > 1 and sum(client.is_plain for client in to) > 2
        left[0] -= is_heard or left[0] > 1
        if left[0] or not is_heard:
            return list(records)
        left[0] -= 1
        return change(list(records))

    return changed


@pytest.mark.parametrize(
    ("fault", "change"),
    [
        ("was never seen", lambda records: records[1:]),
        ("came twice", lambda records: [*records, records[-1]]),
        ("came out of order", lambda records: [*records[:-2], records[-1], records[-2]]),
    ],
    ids=["drops", "repeats", "reorders"],
)
def test_a_gateway_that_drops_repeats_or_reorders_one_record_is_found_out(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch, fault: str, change: Change
) -> None:
    send, cheat = Hub._send, _changed_once(change)
    changed: list[int] = []

    def cheating(self: Hub, feed: Feed, records: Sequence[Record], to: Sequence[session.Session]) -> None:
        sent = cheat(records, to)
        if sent != list(records):
            changed.append(len(sent) - len(records))
        send(self, feed, sent, to)

    monkeypatch.setattr(Hub, "_send", cheating)
    faults: list[str] = []
    while not changed:  # on a slow machine a trial may end before there was anything to change
        faults = tried(kafka, seconds=1.5).faults
    assert len(changed) == 1
    assert any(fault in told for told in faults), faults


@pytest.mark.parametrize("by", [-1, 1])
def test_a_gateway_that_misstates_a_gap_by_one_is_found_out(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch, by: int
) -> None:
    tell = session.Session.tell_gaps
    misstated: set[str] = set()

    def cheating(self: session.Session, partition: Partition, gaps: Iterable[Gap]) -> None:
        gaps = list(gaps)
        name = "" if self._replay is None else self._replay.client_id
        # To those who hear everything: who hears some channels may have missed nothing by it. And whenever there is a
        # gap: who is cut off behind a lie, and asks again for the rest, has been told the truth in the end.
        if ALL in self.wanted and gaps and gaps[0].end > gaps[0].first + 1:
            misstated.add(name)
            gaps[0] = replace(gaps[0], end=gaps[0].end + by)
        tell(self, partition, gaps)

    monkeypatch.setattr(session.Session, "tell_gaps", cheating)
    monkeypatch.setattr(written, "DELETE_SHARE", 0.2)
    faults: list[str] = []
    while not misstated:  # on a slow machine a trial may end before anybody was told of a gap
        faults = tried(kafka, seconds=2.5, deletes=True).faults
    assert {told.partition(",")[0] for told in faults} <= misstated
    assert faults


def test_the_command_fails_where_something_is_wrong_and_says_what(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def found(_: Trial, tell: Callable[[Outcome], None]) -> Outcome:
        return Outcome(written=5, seen=4, connects=3, faults=["verify-0, partition 0: offset 3 was never seen"])

    monkeypatch.setattr(command, "run_trial", found)
    with pytest.raises(StrandlineError, match="ws://gateway:1 did not keep its word: 1 fault"):
        command.verify(url="ws://gateway:1", topic="t", kafka="127.0.0.1:1")
    told = capsys.readouterr().out
    assert told.endswith("1 fault\n  verify-0, partition 0: offset 3 was never seen\n")


def test_the_command_ends_when_it_is_told_to_and_says_that_nothing_is_proven(kafka: KafkaCluster) -> None:
    topics = {how: f"verify-{uuid4().hex[:8]}" for how in (signal.SIGINT, signal.SIGTERM)}
    for topic in topics.values():
        create_topic(kafka.address, topic)

    async def told(gateway: Gateway, how: signal.Signals) -> tuple[int | None, list[str]]:
        where = ["--url", gateway.address, "--topic", topics[how], "--kafka", kafka.address]
        command = [
            sys.executable,
            "-m",
            "strandline",
            "gateway",
            "verify",
            *where,
            "--clients",
            "3",
            "--seconds",
            "600",
        ]
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        while not gateway.hub.feeds[Partition(topics[how], 0)].end:
            await asyncio.sleep(0.02)
        process.send_signal(how)
        _, told = await process.communicate()
        return process.returncode, told.decode().splitlines()[1:]

    async def test() -> None:
        async with serving(kafka.address, topics.values()) as gateway:
            outcomes = await asyncio.gather(*(told(gateway, how) for how in topics))
        line = "strandline: stopped before the end of the trial, so nothing is proven"
        assert outcomes == [(1, [line])] * 2

    run(test)
