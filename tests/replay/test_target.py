"""A target that is down, goes away, is slow, breaks off, answers nonsense, or cannot be trusted."""

import asyncio
import gc
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import uvloop

from strandline.errors import OptionError, TargetDown, TargetRefused
from strandline.replay.health import WhenDown
from strandline.replay.limits import Limits
from strandline.replay.replay import Replay
from strandline.replay.target import Target
from strandline.stack.certificates import Authority
from strandline.stack.kafka import KafkaCluster
from tests.replay.support import (
    OK,
    Held,
    Peer,
    Said,
    Server,
    answering,
    capture,
    committed,
    connection,
    due,
    get,
    plan,
    post,
    replay,
    results,
    running,
    serving,
    until,
)
from tests.support import TIMEOUT, run_warm


def test_a_host_is_looked_up_once_for_all_who_connect_at_a_time_and_each_address_is_tried() -> None:
    looked_up = 0

    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def look_up(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
            nonlocal looked_up
            looked_up += 1
            await asyncio.sleep(0)
            assert host == "service.example"
            # Nobody listens at the first of them.
            return [(socket.AF_INET, 1, 6, "", (address, port)) for address in ("127.0.0.2", "127.0.0.1")]

        async with serving() as server:
            loop.getaddrinfo = look_up  # type: ignore[assignment, method-assign]
            target = Target(f"http://service.example:{server.port}")
            for times in (1, 2):
                await asyncio.gather(*(target.try_connection() for _ in range(20)))
                assert looked_up == times

    asyncio.run(main())


@contextmanager
def saying_nothing(address: str, port: int) -> Iterator[None]:
    """Whoever connects here waits for an answer of the kernel that does not come."""
    with socket.socket() as listening, ExitStack() as waiting:
        listening.bind((address, port))
        listening.listen(0)
        while True:
            one = waiting.enter_context(socket.socket())
            one.settimeout(0.1)
            try:
                one.connect((address, port))
            except TimeoutError:
                break
        yield


def test_an_address_that_says_nothing_leaves_time_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    # Half of it for the first address; the rest is more than a machine stalls.
    monkeypatch.setattr("strandline.replay.target.CONNECT_WITHIN", 8.0)

    async def look_up(_host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, 1, 6, "", (address, port)) for address in ("127.0.0.2", "127.0.0.1")]

    async def main() -> None:
        async with serving() as server:
            asyncio.get_running_loop().getaddrinfo = look_up  # type: ignore[assignment, method-assign]
            with saying_nothing("127.0.0.2", server.port):
                await Target(f"http://service.example:{server.port}").try_connection()

    asyncio.run(main())


@pytest.mark.parametrize("host", ["search..internal", f"{'a' * 64}.internal"])
def test_a_host_that_can_be_no_name_is_refused(host: str) -> None:
    with pytest.raises(OptionError, match=f"'http://{host}:9200' has no host that can be"):
        Target(f"http://{host}:9200")


def test_a_host_that_is_nowhere_is_told_to_everyone_and_to_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        target = Target("http://nowhere.invalid")
        outcomes = await asyncio.gather(*(target.try_connection() for _ in range(20)), return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {socket.gaierror}
        # One who does not wait for it.
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(target.try_connection(), 0)

    uvloop.run(main())
    gc.collect()
    assert not caplog.records


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def three(kafka: KafkaCluster, topic: str, every: float = 100) -> list[str]:
    """A connection with three requests; their paths."""
    paths = ["/1", "/2", "/3"]
    said = [Said(number * every, get(path)) for number, path in enumerate(paths)]
    capture(kafka.address, topic, {"c": connection("c", said, close_at=3 * every)})
    return paths


async def with_target(
    kafka: KafkaCluster, topic: str, answer: Callable[[Peer, bytes], Awaitable[None]], path: Path
) -> Server:
    """Replay three requests onto a target that answers so."""
    async with serving(answer) as server:
        await replay(plan(kafka.address, topic, server, results=path))
    return server


def test_a_target_that_is_down_stops_the_clock_and_nothing_is_lost(kafka: KafkaCluster, topic: str) -> None:
    paths = three(kafka, topic)

    async def main() -> None:
        server = Server(port=free_port())
        async with running(plan(kafka.address, topic, server)) as run:
            await until(lambda: run.is_running and run.engine.timeline.reached(), "there is a first request")
            await until(lambda: run.engine.leave.against, "the target is found down")
            stood_at = run.engine.timeline.reached()
            await asyncio.sleep(0.5)
            assert run.engine.timeline.reached() == stood_at
            assert run.engine.counters.sent == 0
            await server.start()
        assert server.paths == paths
        assert all(arrival.at >= due(run, at) for arrival, at in zip(server.arrivals, [0, 100, 200], strict=True))
        # The time that the clock stood still does not count: nothing is sent after it arrived.
        late = max(arrival.at - due(run, at) for arrival, at in zip(server.arrivals, [0, 100, 200], strict=True))
        assert run.engine.counters.lateness.most <= late
        assert run.engine.counters.failed == 0
        await server.go_away()

    uvloop.run(main())
    assert committed(kafka.address, topic) == [4]


def test_a_target_that_goes_away_in_the_middle_gets_the_rest_when_it_is_back(kafka: KafkaCluster, topic: str) -> None:
    said = [Said(50 * number, get(f"/{number}")) for number in range(20)]
    capture(kafka.address, topic, {"c": connection("c", said, close_at=1000)})
    held = Held("/5")

    async def main() -> None:
        async with serving(held) as server:
            async with running(plan(kafka.address, topic, server)) as run:
                await until(lambda: "/5" in server.paths, "some arrive")
                await server.go_away()
                await until(lambda: run.engine.leave.against, "the target is found down")
                assert len(server.arrivals) == 6
                held.let_go()
                await server.start()
            assert list(dict.fromkeys(server.paths)) == [f"/{number}" for number in range(20)]
            assert run.engine.counters.failed == 0
            await until(lambda: not server.open, "no connection is left")

    uvloop.run(main())
    assert committed(kafka.address, topic) == [21]


def test_told_to_fail_requests_fail_after_some_refusals_and_are_committed(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    three(kafka, topic)
    url = f"http://127.0.0.1:{free_port()}"
    run = uvloop.run(
        replay(plan(kafka.address, topic, url, when_down=WhenDown.FAIL, results=tmp_path / "results.jsonl"))
    )
    assert run.engine.counters.failed == 3
    found = results(tmp_path / "results.jsonl")
    assert [(result["verdict"], len(result["attempts"])) for result in found] == [("no_target", 0)] * 3
    assert all(f"cannot connect to {url}" in result["error"] for result in found)
    assert committed(kafka.address, topic) == [4]


def test_a_target_that_is_down_for_too_long_ends_the_replay_and_nothing_is_committed(
    kafka: KafkaCluster, topic: str
) -> None:
    three(kafka, topic)
    limits = Limits(down_for=timedelta(seconds=0.5))
    with pytest.raises(TargetDown, match=r"could not be reached for 0\.5 s"):
        uvloop.run(replay(plan(kafka.address, topic, f"http://127.0.0.1:{free_port()}", limits=limits)))
    assert committed(kafka.address, topic)[0] <= 0


def test_an_answer_that_breaks_off_is_asked_for_four_times_and_then_the_next_request_goes_out(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    three(kafka, topic)

    async def break_off(peer: Peer, request: bytes) -> None:
        if request.startswith(b"GET /2 "):
            peer.write(OK[:-1])
            await asyncio.sleep(0.02)
            peer.reset()
        else:
            peer.write(OK)

    server = uvloop.run(with_target(kafka, topic, break_off, tmp_path / "results.jsonl"))
    assert server.paths == ["/1", "/2", "/2", "/2", "/2", "/3"]
    assert len({arrival.mark for arrival in server.arrivals}) == 3
    failed = results(tmp_path / "results.jsonl")[1]
    assert len(failed["attempts"]) == 4
    assert "in the middle of its answer" in failed["error"]
    assert committed(kafka.address, topic) == [4]


def test_what_is_not_http_is_reported_and_the_replay_goes_on(kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    three(kafka, topic)
    server = uvloop.run(with_target(kafka, topic, answering(b"what do you want?\r\n\r\n"), tmp_path / "results.jsonl"))
    assert list(dict.fromkeys(server.paths)) == ["/1", "/2", "/3"]
    found = results(tmp_path / "results.jsonl")
    assert [result["error"] for result in found] == ["the answer is not HTTP/1"] * 3
    assert committed(kafka.address, topic) == [4]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\n\r\nok",
    ],
    ids=["said", "unsaid", "http-1.0", "by-closing"],
)
def test_a_target_that_closes_after_each_answer_gets_every_request_once(
    kafka: KafkaCluster, topic: str, answer: bytes, tmp_path: Path
) -> None:
    paths = three(kafka, topic)
    server = uvloop.run(with_target(kafka, topic, answering(answer, close=True), tmp_path / "results.jsonl"))
    assert server.paths == paths
    assert [arrival.connection for arrival in server.arrivals] == [1, 2, 3]
    assert [result["verdict"] for result in results(tmp_path / "results.jsonl")] == ["match"] * 3


def test_answers_end_where_http_says(kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    heads = {
        "/interim": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK,
        "/head": b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n",
        "/no-content": b"HTTP/1.1 204 No Content\r\n\r\n",
        "/unchanged": b"HTTP/1.1 304 Not Modified\r\nContent-Length: 1000\r\n\r\n",
        "/chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX: y\r\n\r\n",
        "/plain": OK,
    }
    said = [
        Said(10 * n, post(path, b"body", "Expect: 100-continue") if path == "/interim" else get(path), answer)
        for n, (path, answer) in enumerate(heads.items())
    ]
    said[1] = Said(10, get("/head").replace(b"GET", b"HEAD"), heads["/head"])
    capture(kafka.address, topic, {"c": connection("c", said)})

    async def answer(peer: Peer, request: bytes) -> None:
        for byte in heads[request.split(b" ", 2)[1].decode()]:
            peer.write(bytes([byte]))

    server = uvloop.run(with_target(kafka, topic, answer, tmp_path / "results.jsonl"))
    assert [arrival.path for arrival in server.arrivals] == list(heads)
    assert {arrival.connection for arrival in server.arrivals} == {1}
    found = results(tmp_path / "results.jsonl")
    assert [(result["verdict"], result["same_body"], result["error"]) for result in found] == [
        ("match", True, None)
    ] * 6


def test_an_answer_that_does_not_come_in_time_is_given_up(kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    capture(kafka.address, topic, {"c": connection("c", [Said(0, get("/1"))])})

    async def main() -> None:
        async with serving(lambda peer, request: asyncio.sleep(60)) as server:
            limits = Limits(answer_within=timedelta(seconds=0.2))
            await replay(plan(kafka.address, topic, server, limits=limits, results=tmp_path / "results.jsonl"))
            assert server.paths == ["/1"] * 4
            await until(lambda: not server.open, "no connection is left")

    uvloop.run(main())
    [result] = results(tmp_path / "results.jsonl")
    assert result["error"] == "no answer within 0.2 s"
    assert committed(kafka.address, topic) == [1]


def test_a_slow_target_keeps_its_connection_waiting_and_no_other(kafka: KafkaCluster, topic: str) -> None:
    slow = [Said(0, get("/slow/1")), Said(10, get("/slow/2"))]
    quick = [Said(20 * number, get(f"/quick/{number}")) for number in range(5)]
    capture(kafka.address, topic, {"slow": connection("slow", slow), "quick": connection("quick", quick)})
    answered = asyncio.Event()

    async def answer(peer: Peer, request: bytes) -> None:
        if request.startswith(b"GET /slow/1"):
            await answered.wait()
        peer.write(OK)

    async def main() -> None:
        async with serving(answer) as server:
            async with running(plan(kafka.address, topic, server)):
                await until(lambda: "/quick/4" in server.paths, "all of the quick ones arrive")
                assert "/slow/2" not in server.paths
                answered.set()
            assert server.paths[-1] == "/slow/2"

    uvloop.run(main())


def secured(authority: Authority, tmp_path: Path, host: str) -> ssl.SSLContext:
    certificate, key = authority.issue("target", [host])
    (tmp_path / "target.pem").write_text(key + certificate)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "target.pem")
    return context


def test_a_target_with_tls_gets_all_on_one_handshake(kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    paths = three(kafka, topic)
    authority = Authority("test")

    async def main() -> None:
        async with serving(tls=secured(authority, tmp_path, "127.0.0.1")) as server:
            trust = ssl.create_default_context(cadata=authority.certificate)
            await replay(
                plan(kafka.address, topic, server, target=Target(f"https://127.0.0.1:{server.port}", tls=trust))
            )
            assert server.paths == paths
            assert server.count == 1

    uvloop.run(main())


@pytest.mark.parametrize(
    ("host", "remedy"),
    [
        ("127.0.0.1", "name its authority with --target-ca"),
        ("127.0.0.2", "write a --target whose host the certificate names"),
        ("elsewhere.example", "write a --target whose host the certificate names"),
    ],
    ids=["authority", "address", "host"],
)
def test_a_wrong_certificate_ends_the_command_with_exit_code_1_and_nothing_sent_or_committed(
    kafka: KafkaCluster, topic: str, tmp_path: Path, host: str, remedy: str
) -> None:
    three(kafka, topic)
    authority = Authority("test")
    trusted = tmp_path / "trusted.pem"
    trusted.write_text((authority if host != "127.0.0.1" else Authority("other")).certificate)

    async def main() -> None:
        async with serving(tls=secured(authority, tmp_path, host)) as server:
            url = f"https://127.0.0.1:{server.port}"
            read = ("--kafka", kafka.address, "--topic", topic, "--group", f"{topic}-group", "--until", "live")
            result = await asyncio.to_thread(
                run_warm, "replay", "--target", url, "--target-ca", trusted, *read, "--observe", "127.0.0.1:0"
            )
            # The reason in the parentheses is OpenSSL's, and its words differ by version.
            problem = rf"strandline: {url}: its certificate is not taken \(.+\); {remedy}"
            assert re.fullmatch(problem, result.stderr.splitlines()[-1])
            assert result.returncode == 1
            assert not server.arrivals

    uvloop.run(main())
    assert committed(kafka.address, topic)[0] <= 0


@asynccontextmanager
async def without_tls(port: int) -> AsyncIterator[int]:
    """Answers a handshake as web servers do that speak no TLS; the port."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", port) as server:
        yield server.sockets[0].getsockname()[1]


NO_TLS = "https://{0}: the target does not speak TLS on this port; write http://{0}, or another port"


@pytest.mark.parametrize("when_down", WhenDown)
def test_https_to_a_port_without_tls_ends_the_replay_with_nothing_sent_or_committed(
    kafka: KafkaCluster, topic: str, when_down: WhenDown
) -> None:
    three(kafka, topic)

    async def main() -> None:
        async with without_tls(0) as port:
            with pytest.raises(TargetRefused) as refusal:
                await replay(plan(kafka.address, topic, f"https://127.0.0.1:{port}", when_down=when_down))
            assert str(refusal.value) == NO_TLS.format(f"127.0.0.1:{port}")

    uvloop.run(main())
    assert committed(kafka.address, topic)[0] <= 0


def test_https_to_a_target_that_comes_up_without_tls_ends_the_replay(kafka: KafkaCluster, topic: str) -> None:
    three(kafka, topic)

    async def main() -> None:
        port = free_port()
        run = Replay(plan(kafka.address, topic, f"https://127.0.0.1:{port}"))
        ending = asyncio.create_task(run.run())
        await until(lambda: run.is_running and run.engine.leave.against, "the target is found down")
        async with without_tls(port):
            with pytest.raises(TargetRefused) as refusal:
                await asyncio.wait_for(ending, TIMEOUT)
        assert str(refusal.value) == NO_TLS.format(f"127.0.0.1:{port}")

    uvloop.run(main())


def test_https_to_a_target_that_answers_without_tls_for_a_while_waits_as_for_one_that_is_down(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    paths = three(kafka, topic)
    authority = Authority("test")
    held = Held("/1")

    async def main() -> None:
        secure = secured(authority, tmp_path, "127.0.0.1")
        async with serving(held, tls=secure) as server:
            trust = ssl.create_default_context(cadata=authority.certificate)
            target = Target(f"https://127.0.0.1:{server.port}", tls=trust)
            async with running(plan(kafka.address, topic, server, target=target)) as run:
                await until(lambda: server.paths, "one arrives")
                await server.go_away()
                async with without_tls(server.port):
                    await until(lambda: run.engine.leave.against, "the target is found down")
                held.let_go()
                await server.start(secure)
            assert list(dict.fromkeys(server.paths)) == paths

    uvloop.run(main())
    assert committed(kafka.address, topic) == [4]
