"""A server, a tool or a fetch that stands still is told in one line; one that is slow and gets on is waited for."""

import os
import sys
import time
from pathlib import Path
from threading import Event, Thread

import pytest

from strandline.errors import FetchFailed, ServerFailed, StackError
from strandline.locks import try_lock
from strandline.stack import cache, jars
from strandline.stack.java import Java
from strandline.stack.processes import OVERLOADED, Child

SLEEPS = "import time; time.sleep(600)"
# Idle, but for a word now and then.
TELLS = "import time\nfor _ in range(25): print('step', flush=True); time.sleep(0.2)"


def child(program: str, directory: Path) -> Child:
    command = [sys.executable, "-I", "-S", "-c", program]
    return Child(name="tool", command=command, log=directory / "tool.log", cwd=directory)


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
