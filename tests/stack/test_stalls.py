"""A server, a tool or a fetch that stands still is told in one line; one that is slow and gets on is waited for."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace

import pytest

from strandline.errors import FetchFailed, ServerFailed, StackError
from strandline.locks import try_lock
from strandline.stack import cache, jars, kafka
from strandline.stack.java import Java
from strandline.stack.processes import OVERLOADED, Child

pytestmark = pytest.mark.usefixtures("freezes_count_little")

SLEEPS = "import time; time.sleep(600)"
# Idle, but for a word now and then.
TELLS = "import time\nfor _ in range(25): print('step', flush=True); time.sleep(0.2)"
ENDS = """
import signal, sys, time
def end(*_):
    for number in range(8):
        print("step", flush=True)
        time.sleep(0.2)
    sys.exit(7)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(600)
"""
DOES_NOT_END = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); {SLEEPS}"


def child(program: str, directory: Path) -> Child:
    command = [sys.executable, "-I", "-S", "-c", program]
    return Child(name="tool", command=command, log=directory / "tool.log", cwd=directory)


def ready(program: str, directory: Path) -> Child:
    server = child(program, directory)
    server.start()
    server.wait_until(lambda: "ready" in server.log.read_text(), 60, Event())
    return server


def test_a_server_that_stands_still_is_told_in_one_line_above_its_log(tmp_path: Path) -> None:
    server = child(f"print('almost there', flush=True); {SLEEPS}", tmp_path)
    server.start()
    try:
        with pytest.raises(ServerFailed) as failure:
            server.wait_until(lambda: False, 1.0, Event())
    finally:
        server.stop(server.death_signal, 0)
    assert str(failure.value) == f"tool did not come up: it made no progress for 1 s; {OVERLOADED}"
    assert failure.value.log == ("almost there",)


def test_a_server_that_is_slow_and_logs_is_waited_for(tmp_path: Path) -> None:
    server = child(TELLS, tmp_path)
    server.start()
    server.wait_until(lambda: server.exit_code == 0, 2.0, Event())


def test_a_tool_that_stands_still_is_killed_and_told_in_one_line(tmp_path: Path) -> None:
    tool = child(SLEEPS, tmp_path)
    tool.start()
    with pytest.raises(ServerFailed) as failure:
        tool.wait_for_exit(1.0, Event())
    assert str(failure.value) == f"tool did not end: it made no progress for 1 s; {OVERLOADED}"
    assert tool.exit_code == -9


def test_a_tool_that_is_slow_and_logs_is_waited_for(tmp_path: Path) -> None:
    tool = child(TELLS, tmp_path)
    tool.start()
    tool.wait_for_exit(2.0, Event())
    assert tool.exit_code == 0


def test_a_server_that_is_slow_to_stop_and_gets_on_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = ready(ENDS, tmp_path)
    server.stop(signal.SIGTERM, 1.0)
    assert server.exit_code == 7
    assert not caplog.messages


def test_a_server_that_stands_still_when_it_is_to_stop_is_killed_and_told_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = ready(DOES_NOT_END, tmp_path)
    server.stop(signal.SIGTERM, 0.5)
    assert server.exit_code == -9
    problem = f"tool (process {server.pid}) was killed: asked to stop, it made no progress for 0.5 s"
    assert caplog.messages == [f"{problem}; its next start recovers as after a crash"]


def test_a_server_that_is_to_be_killed_is_killed_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = child(SLEEPS, tmp_path)
    server.start()
    server.stop(signal.SIGKILL, silence_s=0)
    assert server.exit_code == -9
    assert not caplog.messages


def test_a_program_that_cannot_be_run_is_told_in_one_line(tmp_path: Path) -> None:
    tool = Child(name="tool", command=["absent"], log=tmp_path / "no" / "tool.log", cwd=tmp_path)
    with pytest.raises(ServerFailed, match=r"^tool could not be started: .*/no/tool\.log: No such file or directory$"):
        tool.start()


def java(program: str, directory: Path) -> Java:
    """What runs instead of Java."""
    script = directory / "java"
    script.write_text(f"#!/bin/sh\n{program}\n")
    script.chmod(0o755)
    return Java(script, "java", bundled=False)


@pytest.fixture
def impatient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of our own, and short limits."""
    monkeypatch.setenv("STRANDLINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(jars, "FETCH_SILENCE_S", 2.0)
    monkeypatch.setattr(cache, "LOCK_SILENCE_S", 2.0)
    return cache.cache_dir()


def test_a_fetch_by_which_nothing_arrives_is_told_in_one_line(impatient: Path, tmp_path: Path) -> None:
    with pytest.raises(FetchFailed) as failure:
        jars.kafka_jars(java("exec sleep 600", tmp_path), Event())
    line = "cannot fetch Kafka's jars: nothing arrived for 2 s; the first run needs the network, later ones do not"
    assert str(failure.value) == line
    assert not list(impatient.glob("fetching-*"))


def test_a_fetch_by_which_something_arrives_is_not_cut_off(impatient: Path, tmp_path: Path) -> None:
    arrives = "for part in 1 2 3 4 5 6 7 8 9 10; do echo more >> part; sleep 0.5; done"
    # What arrived is not what was wanted, which is found at the end.
    with pytest.raises(FetchFailed, match="it did not arrive"):
        jars.kafka_jars(java(arrives, tmp_path), Event())


def test_a_process_that_prepares_something_is_waited_for_while_it_writes(impatient: Path) -> None:
    held = try_lock(impatient / "things.lock", 0.0)
    assert held is not None

    def work() -> None:
        for _ in range(20):
            with (impatient / "things.part").open("a") as file:
                file.write("more")
            time.sleep(0.25)
        os.close(held)

    other = Thread(target=work)
    other.start()
    with cache.one_at_a_time("things", Event()):
        assert (impatient / "things.part").stat().st_size == 80
    other.join()


def test_a_process_that_prepares_something_and_stands_still_is_told_in_one_line(impatient: Path) -> None:
    held = try_lock(impatient / "things.lock", 0.0)
    assert held is not None
    with pytest.raises(StackError) as failure, cache.one_at_a_time("things", Event()):
        pass
    os.close(held)
    problem = f"another process holds {impatient / 'things.lock'}, and has written nothing for 2 s"
    assert str(failure.value) == f"{problem}; end it and try again"


@pytest.fixture
def preparing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[bool]]:
    """Two starts of Kafka whose preparation ends so; whether each of them prepared."""
    monkeypatch.setenv("STRANDLINE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "kafka").mkdir()
    monkeypatch.setattr(kafka, "find_java", lambda: Java(tmp_path / "java", "java", bundled=False))
    monkeypatch.setattr(kafka, "kafka_jars", lambda *_: [tmp_path / "kafka" / "kafka.jar"])

    def starts(exit_code: int, *, writes: bool = False, error: ServerFailed | None = None) -> list[bool]:
        ran = []

        class Cluster:
            def __init__(self, _name: str, _directory: Path, *, jvm_options: list[str]) -> None:
                self.brokers = [SimpleNamespace(exit_code=exit_code)]
                self._archive = Path(jvm_options[0].partition("=")[2])

            def start(self, *_: object) -> None:
                ran.append(True)
                if error is not None:
                    raise error

            def stop(self) -> None:
                if writes:
                    self._archive.write_text("classes")

        monkeypatch.setattr(kafka, "KafkaCluster", Cluster)
        prepared = []
        for _ in range(2):
            ran.clear()
            kafka.kafka_runtime(Event())
            prepared.append(bool(ran))
        return prepared

    return starts


def test_a_class_archive_is_prepared_once(preparing: Callable[..., list[bool]], tmp_path: Path) -> None:
    assert preparing(143, writes=True) == [True, False]
    assert [file.read_text() for file in tmp_path.glob("kafka/*.jsa")] == ["classes"]


def test_a_java_that_keeps_no_class_archive_is_told_of_and_not_tried_again(
    preparing: Callable[..., list[bool]], caplog: pytest.LogCaptureFixture
) -> None:
    assert preparing(143) == [True, False]
    assert "this Java keeps no class archive" in caplog.text


def test_a_java_that_does_not_know_the_option_is_told_of_and_not_tried_again(
    preparing: Callable[..., list[bool]], caplog: pytest.LogCaptureFixture
) -> None:
    line = "Unrecognized VM option 'ArchiveClassesAtExit=/kafka/classes.jsa'"
    assert preparing(1, error=ServerFailed("kafka", "did not come up", [line])) == [True, False]
    assert "this Java keeps no class archive" in caplog.text


@pytest.mark.parametrize("exit_code", [-9, 1])
def test_a_class_archive_that_was_cut_off_is_told_of_and_prepared_by_the_next_start(
    exit_code: int, preparing: Callable[..., list[bool]], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    assert preparing(exit_code, writes=True) == [True, True]
    assert f"exit code {exit_code}" in caplog.text
    assert not list(tmp_path.glob("kafka/*.jsa"))


def test_a_broker_that_does_not_come_up_is_prepared_again_by_the_next_start(
    preparing: Callable[..., list[bool]], caplog: pytest.LogCaptureFixture
) -> None:
    assert preparing(-9, error=ServerFailed("kafka", "did not come up: it made no progress for 90 s", [])) == [True] * 2
    assert "made no progress for 90 s" in caplog.text


class Broker(Child):
    """Notes what it is sent; ends at the first signal."""

    sent: list[tuple[str, signal.Signals]]
    ended: bool

    @property
    def exit_code(self) -> int | None:
        return 0 if self.ended else None

    def send(self, signal_: signal.Signals) -> None:
        self.sent.append((self.name, signal_))

    def stop(self, first: signal.Signals, *_: object) -> None:
        self.ended = True


def stopped(directory: Path, *, dead: int | None = None) -> list[tuple[str, signal.Signals]]:
    """The signals of a stop of three brokers, of which one is dead, in their order."""
    cluster, sent = kafka.KafkaCluster("kafka", directory, brokers=3), list[tuple[str, signal.Signals]]()
    for number in range(3):
        broker = Broker(name=f"{number}", command=[], log=directory / "log", cwd=directory)
        broker.sent, broker.ended = sent, number == dead
        cluster.brokers.append(broker)
    cluster.stop()
    assert all(broker.exit_code == 0 for broker in cluster.brokers)
    return sent


def test_the_controller_of_a_cluster_is_stopped_last(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert stopped(tmp_path) == [("1", signal.SIGTERM), ("2", signal.SIGTERM), ("0", signal.SIGTERM)]
    assert not caplog.messages


def test_brokers_whose_controller_is_dead_are_killed_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert stopped(tmp_path, dead=0)[:2] == [("1", signal.SIGKILL), ("2", signal.SIGKILL)]
    assert [line.partition(";")[0] for line in caplog.messages] == ["kafka: its controller has ended"]
