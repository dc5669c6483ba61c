"""Several processes on one port: a client goes on with another where its own is killed, and limits hold over all."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen
from uuid import uuid4

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from strandline.gateway.client import GatewayClient, Message
from strandline.stack import KafkaCluster
from strandline.stack.ports import free_port
from tests.gateway.support import ANYONE, Plain, run, write
from tests.ordered.support import create_topic
from tests.support import TIMEOUT


class Served:
    """A gateway as the command runs it."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, pages: str) -> None:
        self.process = process
        self.url = url
        self._pages = pages

    def workers(self) -> list[int]:
        """The ids of its workers."""
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    async def figures(self) -> dict[str, float]:
        """Its metrics, by name."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> dict[str, float]:
        with urlopen(f"{self._pages}/metrics", timeout=TIMEOUT) as answer:
            lines = [line.split() for line in answer.read().decode().splitlines() if not line.startswith("#")]
        return {name.removeprefix("strandline_gateway_"): float(value) for name, value in lines}

    async def until(self, name: str, value: float) -> None:
        """Wait until a metric has a value."""
        while (await self.figures())[name] != value:
            await asyncio.sleep(0.05)

    async def until_others_serve(self, *gone: int) -> None:
        """Wait until there are workers in the place of some."""
        while len(running := self.workers()) < 2 or set(running) & set(gone):
            await asyncio.sleep(0.05)
        await self.until("workers", 2)

    async def until_ready(self) -> None:
        """Wait until it says that it serves everything."""

        def is_ready() -> bool:
            try:
                with urlopen(f"{self._pages}/readyz", timeout=TIMEOUT) as answer:
                    return bool(answer.status == 200)
            except HTTPError as error:
                error.close()
                return False

        while not await asyncio.to_thread(is_ready):
            await asyncio.sleep(0.05)


@asynccontextmanager
async def served(kafka: str, topic: str, directory: Path, **config: Any) -> AsyncIterator[Served]:
    file = directory / "gateway.yaml"
    free = "127.0.0.1:0"
    read = {**ANYONE, "kafka": kafka, "listen": free, "topics": {topic: {}}, "workers": 2, "observe": free}
    file.write_text(json.dumps({**read, **config}))
    command = [sys.executable, "-m", "strandline", "gateway", "--config", str(file)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    assert process.stdout is not None
    assert process.stderr is not None
    pages: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    passing_on = asyncio.create_task(_pass_on(process.stderr, pages))
    try:
        line = (await process.stdout.readline()).decode()
        yield Served(process, line.split()[-1], await pages)
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
        passing_on.cancel()


async def _pass_on(told: asyncio.StreamReader, pages: asyncio.Future[str]) -> None:
    """Pass on what a gateway says besides, and note where its pages are."""
    while line := (await told.readline()).decode():
        sys.stderr.write(line)
        found = re.search(r"(http://\S+)/metrics$", line)
        if found is not None and not pages.done():
            pages.set_result(found[1])


@asynccontextmanager
async def connected(gateway: Served) -> AsyncIterator[Plain]:
    async with connect(gateway.url, compression=None, max_size=None) as connection:
        yield Plain(connection)


@pytest.fixture
def topic(kafka: KafkaCluster) -> str:
    name = f"gateway-{uuid4().hex[:8]}"
    create_topic(kafka.address, name, 2)
    return name


def test_a_client_whose_worker_is_killed_goes_on_with_another_and_sees_everything_once(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    count = 1200

    async def test() -> None:
        limits = {"cold_every_s": 0.01}
        async with served(kafka.address, topic, tmp_path, token_every_s=0.3, limits=limits) as gateway:
            clients = [GatewayClient(gateway.url, ["a"], client_id=str(place)) for place in range(12)]
            heard: list[list[int]] = [[] for _ in clients]

            async def listen(place: int) -> None:
                async with clients[place] as client:
                    async for item in client:
                        assert isinstance(item, Message)
                        heard[place].append(item.data)
                        if len(heard[place]) == count:
                            return

            listeners = [asyncio.create_task(listen(place)) for place in range(len(clients))]
            while not all(client._place.positions for client in clients):
                await asyncio.sleep(0.01)
            killed = gateway.workers()
            assert len(killed) == 2
            for low in range(0, count, 100):
                await asyncio.to_thread(write, kafka.address, topic, [(n % 2, "a", n) for n in range(low, low + 100)])
                if low in {300, 700}:
                    os.kill(killed[low == 700], signal.SIGKILL)
                    # The next one dies only when another serves in the place of the first.
                    await gateway.until_others_serve(killed[low == 700])
                    await gateway.until_ready()
            await asyncio.gather(*listeners)
            for place, numbers in enumerate(heard):
                assert sorted(numbers) == list(range(count)), place
                for partition in range(2):
                    of_it = [n for n in numbers if n % 2 == partition]
                    assert of_it == sorted(of_it)
            # Both were killed, so everybody has lost a connection at least once; nobody's token or place was refused.
            assert all(client.connects > 1 for client in clients)
            figures = await gateway.figures()
            assert figures["delivered_total"] >= count
            assert figures["partitions"] == 2

    run(test)


def test_the_command_verify_finds_nothing_wrong_with_two_workers_and_says_so(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    async def test() -> None:
        limits = {"cold_every_s": 0.01}
        how = {"recent_bytes": 20_000, "token_every_s": 0.3, "limits": limits}
        async with served(kafka.address, topic, tmp_path, **how) as gateway:
            where = ["--url", gateway.url, "--topic", topic, "--kafka", kafka.address]
            how_much = ["--clients", "30", "--seconds", "3", "--rate", "200", "--deletes", "--seed", "7"]
            command = [sys.executable, "-m", "strandline", "gateway", "verify", *where, *how_much]
            process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            told, _ = await process.communicate()
            assert process.returncode == 0
            assert told.decode().endswith(", 0 faults\n")
            found = re.match(r"([\d,]+) records written, ([\d,]+) seen by 30 clients", told.decode())
            assert found is not None
            written, seen = (int(number.replace(",", "")) for number in found.groups())
            assert 0 < written < seen

    run(test)


def test_limits_hold_over_all_workers_and_what_a_killed_one_held_is_free(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    write(kafka.address, topic, [(0, "a", n) for n in range(5)])

    async def test() -> None:
        limits = {"connections_per_address": 6, "cold_every_s": 600}
        async with served(kafka.address, topic, tmp_path, limits=limits) as gateway:
            told = []
            # The kernel chooses the worker by the client's port: some of these come to each.
            for _ in range(12):
                async with connected(gateway) as client:
                    await client.say("resume", channels=["a"], positions={topic: {"0": 0}}, client_id="one")
                    told.append((await client.until("resume_ack", "error"))[-1])
            assert told[0]["messages_replayed"] == 5
            assert {answer.get("code") for answer in told[1:]} == {"replay_limited"}
            assert all(0 < answer["retry_after"] <= 600 for answer in told[1:])
            await gateway.until("open_connections", 0)
            kept = [await connect(gateway.url, compression=None) for _ in range(6)]
            for _ in range(12):
                with pytest.raises(InvalidStatus) as caught:
                    await connect(gateway.url, compression=None)
                assert caught.value.response.status_code == 503
            await gateway.until("refused_connections_total", 12)
            killed = gateway.workers()
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            for connection in kept:
                await connection.wait_closed()
            await gateway.until_others_serve(*killed)
            again = [await connect(gateway.url, compression=None) for _ in range(6)]
            with pytest.raises(InvalidStatus):
                await connect(gateway.url, compression=None)
            for connection in again:
                await connection.close()

    run(test)


def test_all_workers_end_in_good_order_when_the_gateway_is_told_to_and_also_when_it_is_killed(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    async def test() -> None:
        for how, code in ((signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)):
            async with served(kafka.address, topic, tmp_path) as gateway:
                workers = gateway.workers()
                clients = [Plain(await connect(gateway.url, compression=None)) for _ in range(6)]
                for client in clients:
                    await client.say("subscribe", channels=["a"])
                    await client.until("subscribed")
                gateway.process.send_signal(how)
                for client in clients:
                    with pytest.raises(ConnectionClosed) as caught:
                        await client.until("never")
                    assert caught.value.rcvd is not None
                    assert caught.value.rcvd.code == 1001
                assert await gateway.process.wait() == code
                while any(map(_runs, workers)):
                    await asyncio.sleep(0.02)

    run(test)


def test_workers_that_still_wait_for_kafka_end_with_the_gateway(tmp_path: Path) -> None:
    async def test() -> None:
        file = tmp_path / "gateway.yaml"
        nobody = f"127.0.0.1:{free_port()}"
        config = {**ANYONE, "kafka": nobody, "listen": "127.0.0.1:0", "topics": {"some": {}}, "workers": 2}
        file.write_text(json.dumps(config))
        command = [sys.executable, "-m", "strandline", "gateway", "--config", str(file)]
        gateway = Served(await asyncio.create_subprocess_exec(*command), "", "")
        while len(workers := gateway.workers()) < 2:
            await asyncio.sleep(0.02)
        gateway.process.kill()
        await gateway.process.wait()
        while any(map(_runs, workers)):
            await asyncio.sleep(0.02)

    run(test)


def test_a_gateway_that_still_waits_for_kafka_stops_when_it_is_told_to(tmp_path: Path) -> None:
    config = {**ANYONE, "kafka": f"127.0.0.1:{free_port()}", "listen": "127.0.0.1:0", "topics": {"some": {}}}

    async def stopped(workers: int) -> tuple[int | None, bytes]:
        file = tmp_path / f"gateway-{workers}.yaml"
        file.write_text(json.dumps({**config, "workers": workers}))
        command = [sys.executable, "-m", "strandline", "gateway", "--config", str(file)]
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        assert process.stderr is not None
        while b"waiting for Kafka" not in await process.stderr.readline():
            assert process.returncode is None
        process.terminate()
        told = (await process.stderr.read()).splitlines()[-1]
        return await process.wait(), told

    async def test() -> None:
        expected = 1, b"strandline: stopped before it served anything"
        assert set(await asyncio.gather(stopped(1), stopped(2))) == {expected}

    run(test)


def _runs(pid: int) -> bool:
    """Whether a process runs; one that nobody has taken note of yet has ended all the same."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_worker_that_cannot_serve_ends_the_start(kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    async def test() -> None:
        file = tmp_path / "gateway.yaml"
        config = {**ANYONE, "kafka": kafka.address, "listen": "127.0.0.1:0", "topics": {"no-such": {}}, "workers": 2}
        file.write_text(json.dumps(config))
        command = [sys.executable, "-m", "strandline", "gateway", "--config", str(file)]
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        _, told = await process.communicate()
        assert process.returncode == 1
        assert "no-such" in told.decode()

    run(test)
