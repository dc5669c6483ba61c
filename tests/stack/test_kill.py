"""`strandline up` that is killed or stopped at any moment leaves no process, and nothing that stops the next one."""

import os
import signal
from pathlib import Path
from threading import Event

import psycopg
import pytest

from strandline.stack.cache import one_at_a_time
from strandline.stack.jars import kafka_version
from tests.support import TIMEOUT, Up, owned_processes, read_records, run_strandline, wait_for, write_records

STAGES = [
    "kinesis: starting",
    "postgres: initialising",
    "kafka: formatting",
    "postgres: starting",
    "kafka: starting",
    "ready",
]


def assert_nothing_runs(owner: int) -> None:
    wait_for(lambda: not owned_processes(owner), f"all processes of {owner} are gone")


def write_what_is_kept(up: Up) -> None:
    settings = up.settings()
    write_records(settings["kafka"]["bootstrap.servers"], "kept", [b"old"])
    with psycopg.connect(settings["postgres"]["DATABASE_URL"]) as connection:
        connection.execute("create table kept as select 'old' as word")


def assert_it_is_kept(up: Up) -> None:
    settings = up.settings()
    assert read_records(settings["kafka"]["bootstrap.servers"], "kept", 1) == [b"old"]
    with psycopg.connect(settings["postgres"]["DATABASE_URL"]) as connection:
        assert connection.execute("select word from kept").fetchall() == [("old",)]


def test_killed_while_it_starts_and_when_ready_the_next_one_serves_what_is_in_a_directory_of_any_name(
    open_dir: Path,
) -> None:
    data = open_dir / "quo'te\"s, back\\slash = k\u00fcste"
    for stage in ("kinesis: starting", "kafka: starting"):
        with Up("--data", data) as up:
            up.wait_for_message(stage)
            up.end(signal.SIGKILL)
            assert_nothing_runs(up.pid)
    with Up("--data", data) as up:
        write_what_is_kept(up)
        assert (data / "kafka-1" / "broker-1" / "kept-0").is_dir()
        up.end(signal.SIGKILL)
        assert_nothing_runs(up.pid)
    with Up("--data", data) as up:
        assert_it_is_kept(up)


@pytest.mark.soak
@pytest.mark.parametrize("stage", STAGES)
def test_killed_at_any_stage_the_next_one_comes_up(stage: str, open_dir: Path) -> None:
    with Up("--data", open_dir / "data") as up:
        up.wait_for_message(stage)
        up.end(signal.SIGKILL)
        assert_nothing_runs(up.pid)
    with Up("--data", open_dir / "data") as up:
        assert set(up.settings()) == {"kafka", "postgres", "kinesis"}


@pytest.mark.soak
def test_killed_when_ready_the_next_one_serves_the_old_records_and_stops_in_order(open_dir: Path) -> None:
    with Up("--data", open_dir / "data") as up:
        write_what_is_kept(up)
        up.end(signal.SIGKILL)
        assert_nothing_runs(up.pid)
    with Up("--data", open_dir / "data") as up:
        assert_it_is_kept(up)
        assert up.end(signal.SIGINT) == 0
    assert not owned_processes(up.pid)


@pytest.mark.soak
def test_killed_while_it_fetches_kafka_the_next_one_fetches_it_whole(
    tmp_path: Path, local_repository: dict[str, str]
) -> None:
    env = {**local_repository, "STRANDLINE_CACHE": str(tmp_path / "cache")}
    for stage in ["kafka: fetching", "kafka-prepare: formatting", "kafka-prepare: starting"]:
        with Up("--only", "kafka", env=env) as up:
            up.wait_for_message(stage)
            up.end(signal.SIGKILL)
            assert_nothing_runs(up.pid)
    with Up("--only", "kafka", env=env) as up:
        assert up.settings()["kafka"]
        assert up.end(signal.SIGTERM) == 0
    assert_nothing_runs(up.pid)
    kept = [path.name for path in (tmp_path / "cache").rglob("*") if path.is_dir()]
    assert kept == [f"kafka-{kafka_version()}"]


@pytest.mark.parametrize(
    ("signal_", "servers"),
    [(signal.SIGINT, "kinesis,postgres"), (signal.SIGTERM, "kinesis"), (signal.SIGHUP, "kinesis")],
)
def test_stopped_when_ready_it_exits_0_and_leaves_nothing(
    signal_: signal.Signals, servers: str, open_dir: Path
) -> None:
    names = set(servers.split(","))
    with Up("--only", servers, env={"TMPDIR": str(open_dir)}) as up:
        assert set(up.settings()) == names
        assert len(owned_processes(up.pid)) >= len(names)
        assert up.end(signal_) == 0
    assert not owned_processes(up.pid)
    assert not list(open_dir.iterdir())


def test_stopped_half_way_it_says_so_and_leaves_nothing(
    open_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRANDLINE_CACHE", str(tmp_path))
    # What Kafka needs is not in this cache, and we keep it from being fetched: it never becomes ready.
    with one_at_a_time("kafka-jars", Event()), Up(env={"TMPDIR": str(open_dir)}) as up:
        up.wait_for_message("postgres: starting")
        assert up.end(signal.SIGTERM) == 1
        assert up.rest()[-1] == "strandline: stopped before the servers were ready"
    assert not owned_processes(up.pid)
    assert not list(open_dir.iterdir())


def test_when_a_server_dies_it_says_which_and_stops_the_others() -> None:
    with Up("--only", "kinesis,postgres") as up:
        up.settings()
        (kinesis,) = [pid for pid, command in owned_processes(up.pid).items() if "endpoint" in command]
        os.kill(kinesis, signal.SIGKILL)
        assert up.process.wait(TIMEOUT) == 1
        assert "strandline: kinesis died: exit code -9" in up.rest()
    assert not owned_processes(up.pid)


def test_a_second_one_on_the_same_data_is_refused(open_dir: Path) -> None:
    with Up("--only", "kinesis", "--data", open_dir / "data") as first:
        first.settings()
        second = run_strandline("up", "--only", "kinesis", "--data", open_dir / "data")
        assert second.returncode == 1
        assert f"is in use by another strandline (process {first.pid})" in second.stderr
        assert first.end(signal.SIGINT) == 0


def test_a_second_one_beside_the_first_works() -> None:
    with Up("--only", "kinesis,kafka") as first, Up("--only", "kinesis,kafka") as second:
        one, two = first.settings(), second.settings()
        assert one["kinesis"]["AWS_ENDPOINT_URL_KINESIS"] != two["kinesis"]["AWS_ENDPOINT_URL_KINESIS"]
        write_records(one["kafka"]["bootstrap.servers"], "mine", [b"1"])
        write_records(two["kafka"]["bootstrap.servers"], "mine", [b"2"])
        assert read_records(one["kafka"]["bootstrap.servers"], "mine", 1) == [b"1"]
        assert read_records(two["kafka"]["bootstrap.servers"], "mine", 1) == [b"2"]
        assert [first.end(signal.SIGINT), second.end(signal.SIGINT)] == [0, 0]
