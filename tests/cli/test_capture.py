"""`strandline capture` as a person runs it: what it says, how it stops, and what is in Kafka then."""

import asyncio
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from strandline.capture.config import Settings
from strandline.capture.recorder import Reliable
from strandline.cli.commands import app
from strandline.stack import KafkaCluster
from strandline.stack.certificates import Authority
from strandline.stack.ports import free_port
from tests.capture.support import OK, Upstream, in_kafka, new_topic, run
from tests.support import TIMEOUT, frozen, run_warm, wait_for

POST = b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi"


@contextmanager
def capture(*arguments: str | Path) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "strandline", "capture", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=TIMEOUT)


def ready_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate(timeout=TIMEOUT)
    return line.strip()


def page(port: int, name: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{name}", timeout=TIMEOUT) as answer:
        return str(answer.read().decode())


def test_it_says_where_it_captures_and_at_the_end_what_it_did(kafka: KafkaCluster, tmp_path: Path) -> None:
    async def go() -> str:
        async with Upstream().listening() as upstream:
            port, pages = free_port(), free_port()
            to = f"http://127.0.0.1:{upstream.port}"
            (tmp_path / "c.yaml").write_text("topic: wrong\nnode_id: here\nredaction: {headers: {x: remove}}\n")
            with capture(
                *("--listen", f"127.0.0.1:{port}", "--to", to, "--kafka", kafka.address, "--topic", topic),
                *("--config", tmp_path / "c.yaml", "--observe", f"127.0.0.1:{pages}"),
            ) as process:
                line = await asyncio.to_thread(ready_line, process)
                assert line == f"capturing http://127.0.0.1:{port} -> {to} into {topic} on {kafka.address}"
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(POST.replace(b"\r\n", b"\r\nX: secret\r\n", 1))
                assert await reader.readexactly(len(OK)) == OK
                assert await asyncio.to_thread(page, pages, "readyz") == "ok\n"
                text = await asyncio.to_thread(page, pages, "metrics")
                process.send_signal(signal.SIGTERM)
                _, told = await asyncio.to_thread(process.communicate, None, TIMEOUT)
                assert process.returncode == 0
                assert "1 request on 1 connection, 3 records written" in told
                writer.close()
                return text

    topic = new_topic()
    text = run(go())
    for line in (
        "strandline_capture_connections_total 1.0",
        "strandline_capture_open_connections 1.0",
        "strandline_capture_requests_total 1.0",
        "strandline_capture_held_requests 0.0",
        "strandline_capture_release_wait_seconds_count 1.0",
        'strandline_capture_bytes_total{to="client"} 40.0',
    ):
        assert line in text.splitlines()
    (found,) = in_kafka(kafka.address, topic)
    assert found.requests == [POST]
    assert found.id.startswith("here-")


@pytest.mark.parametrize("is_patient", [True, False])
def test_what_was_asked_is_answered_before_it_ends_and_a_second_signal_does_not_wait(
    kafka: KafkaCluster, is_patient: bool
) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", 0)) as upstream:
        to = f"http://127.0.0.1:{upstream.getsockname()[1]}"
        arguments = ("--listen", f"127.0.0.1:{port}", "--to", to, "--kafka", kafka.address, "--topic", new_topic())
        with capture(*arguments) as process:
            ready_line(process)
            with socket.create_connection(("127.0.0.1", port), TIMEOUT) as client:
                client.sendall(POST)
                behind, _ = upstream.accept()
                with behind:
                    behind.settimeout(TIMEOUT)
                    assert behind.recv(100) == POST
                    process.send_signal(signal.SIGINT)
                    wait_for(lambda: is_refused(port), "no more connections are taken")
                    if is_patient:
                        behind.sendall(OK)
                        assert client.recv(100) == OK
                    else:
                        process.send_signal(signal.SIGINT)
                    assert process.wait(TIMEOUT) == (0 if is_patient else 1)


def test_a_capture_that_is_not_whole_ends_with_1(kafka: KafkaCluster, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("stop_within_s: 1\nreliable: none\n")
    port, topic = free_port(), new_topic()
    with socket.create_server(("127.0.0.1", 0)) as upstream:
        to = f"http://127.0.0.1:{upstream.getsockname()[1]}"
        given = ("--listen", f"127.0.0.1:{port}", "--to", to, "--kafka", kafka.address, "--topic", topic)
        with capture(*given, "--config", tmp_path / "c.yaml") as process:
            ready_line(process)
            with frozen(kafka), socket.create_connection(("127.0.0.1", port), TIMEOUT) as client:
                client.sendall(POST)
                behind, _ = upstream.accept()
                with behind:
                    behind.sendall(OK)
                    assert client.recv(100) == OK
                process.send_signal(signal.SIGTERM)
                _, told = process.communicate(timeout=TIMEOUT)
            assert process.returncode == 1
            problem = f"strandline: the capture is not whole: not all records are in {topic}; see what was logged"
            assert told.splitlines()[-1] == problem


def is_refused(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), TIMEOUT):
            return False
    except OSError:
        return True


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ([], 2, "nowhere to listen: --listen"),
        (["--listen", "x"], 2, "no upstream: --to"),
        (["--listen", "x", "--to", "http://h"], 2, "--listen takes HOST:PORT"),
        (["--listen", "h:1", "--to", "http://h", "--sample", "3"], 2, "--sample takes 0 to 1"),
        (["--listen", "h:1", "--to", "http://h", "--tls-key", "k"], 2, "belong together"),
        (["--listen", "h:1", "--to", "http://h", "--set", "nonsense=1"], 2, "a setting for Kafka"),
        (["--listen", "h:1", "--to", "http://h", "--set", "linger.ms=hunter2"], 2, "a setting for Kafka"),
        (["--listen", "127.0.0.1:0", "--to", "http://h", "--kafka", "127.0.0.1:1"], 1, "Kafka at 127.0.0.1:1"),
    ],
)
def test_wrong_use_is_one_clear_line(arguments: list[str], code: int, told: str) -> None:
    result = run_warm("capture", *arguments)
    assert result.returncode == code
    assert told in result.stderr.splitlines()[-1]
    assert "hunter2" not in result.stderr


def test_each_option_reaches_the_capture_and_goes_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[Settings, str, tuple[str, int] | None]] = []

    async def take(settings: Settings, to: str, pages: tuple[str, int] | None) -> None:
        found.append((settings, to, pages))

    monkeypatch.setattr("strandline.cli.capture._run", take)
    authority = Authority("somebody's")
    certificate, key = authority.issue("front", ["127.0.0.1"])
    for name, text in {"ca": authority.certificate, "certificate": certificate, "key": key}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "c.yaml").write_text(
        "listen: wrong:1\ntopic: wrong\npartitions: 9\nidle_after_s: 7\n"
        "connect_within_s: 6\nstop_within_s: 5\nbuffer_bytes: 2000000\n"
    )
    places = shlex.split("--listen h:1 --to https://u --kafka k:1 --topic t --observe o:2 --set client.id=c")
    rest = shlex.split("--node-id here --partitions 3 --reliable all --release-after 4 --sample 0.5")
    tls = [part for option in ("tls-certificate", "tls-key") for part in (f"--{option}", tmp_path / option[4:])]
    given = [*places, *rest, *map(str, tls), "--upstream-ca", f"{tmp_path}/ca", "--config", f"{tmp_path}/c.yaml"]
    app(["capture", *given], exit_on_error=False, print_error=False, result_action="return_value")
    ((settings, to, pages),) = found
    assert (settings.listen, to, settings.upstream, pages) == (("h", 1), "https://u", ("u", 443), ("o", 2))
    assert (settings.topic, settings.partitions, settings.node) == ("t", 3, "here")
    assert (settings.reliable, settings.release_after_s, settings.sample) == (Reliable.ALL, 4, 0.5)
    assert settings.kafka == {"bootstrap.servers": "k:1", "client.id": "c"}
    assert (settings.idle_after_s, settings.connect_within_s, settings.stop_within_s) == (7, 6, 5)
    assert settings.buffer_bytes == 2_000_000
    assert settings.front_tls is not None
    assert settings.upstream_tls is not None
    assert [each["subject"] for each in settings.upstream_tls.get_ca_certs()] == [((("commonName", "somebody's"),),)]


@pytest.mark.server
@pytest.mark.parametrize("option", ["listen", "observe"])
def test_a_port_that_is_taken_is_told_with_its_option(option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        place = f"127.0.0.1:{stranger.getsockname()[1]}"
        places = {"listen": "127.0.0.1:0", "observe": "127.0.0.1:0", option: place}
        given = [f"--{name}={value}" for name, value in places.items()]
        result = run_warm("capture", *given, "--to", "http://h", "--reliable", "none", "--kafka", "127.0.0.1:1")
    assert result.returncode == 1
    problem = f"cannot listen on {place}: Address already in use; change --{option}, or {option} in the file"
    assert result.stderr.splitlines()[-1] == f"strandline: {problem}"


@pytest.mark.soak
def test_a_body_of_a_gigabyte_takes_no_more_memory_than_a_small_one(kafka: KafkaCluster) -> None:
    size, piece = 1 << 30, b"x" * (1 << 18)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        got = 0
        while got < size:
            got += len(await reader.read(1 << 18))
        writer.write(OK)
        writer.close()

    async def go() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port, to = free_port(), f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        command = ("--listen", f"127.0.0.1:{port}", "--to", to, "--kafka", kafka.address, "--topic", new_topic())
        with capture(*command) as process:
            await asyncio.to_thread(ready_line, process)
            before = peak_kb(process.pid)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"PUT / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % size)
            for _ in range(size // len(piece)):
                writer.write(piece)
                await writer.drain()
            assert await reader.readexactly(len(OK)) == OK
            # The buffer for Kafka holds 64 MiB, and librdkafka some of it once more.
            assert peak_kb(process.pid) - before < 200 << 10
            writer.close()
        server.close()

    run(go())


def peak_kb(pid: int) -> int:
    """The most memory that a process has had, in kilobytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
