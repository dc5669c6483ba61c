"""The servers are real, independent of each other, and say why when they do not come up."""

import os
import re
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import boto3
import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from strandline.errors import OptionError, PortTaken, ServerFailed, StackError, StartCancelled
from strandline.stack import KafkaCluster, Kinesis, Postgres, Stack
from strandline.stack.kafka import kafka_runtime, new_cluster_id
from strandline.stack.ports import LOOPBACK, different_ports, free_port, retry_when_taken
from tests.support import TIMEOUT, owned_processes, read_records, wait_for, write_records
from tests.topics import create_topics


def test_kafka_takes_records_and_gives_them_back(kafka: KafkaCluster) -> None:
    write_records(kafka.address, "round-trip", [b"one", b"two", b"three"])
    assert read_records(kafka.address, "round-trip", 3) == [b"one", b"two", b"three"]


def test_postgres_decodes_its_log(postgres: Postgres) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("create table tide (mark int primary key)")
        connection.execute("create publication tide_all for all tables")
        connection.execute("select pg_create_logical_replication_slot('tide_slot', 'pgoutput')")
        connection.execute("insert into tide values (4711)")
        rows = connection.execute(
            "select data from pg_logical_slot_get_binary_changes"
            "('tide_slot', null, null, 'proto_version', '1', 'publication_names', 'tide_all')"
        ).fetchall()
        connection.execute("select pg_drop_replication_slot('tide_slot')")
        # It would be in the way of others: without a replica identity no table that it publishes can be updated.
        connection.execute("drop publication tide_all")
    assert [bytes(data)[:1] for (data,) in rows] == [b"B", b"R", b"I", b"C"]
    assert b"4711" in bytes(rows[2][0])


def test_postgres_asks_for_its_password(postgres: Postgres) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(postgres.url.replace("postgres:", "postgres:x", 1), connect_timeout=int(TIMEOUT))


@pytest.mark.parametrize("crash", [False, True])
def test_postgres_restarted_is_at_the_same_address_with_what_it_had(postgres: Postgres, *, crash: bool) -> None:
    address, name = postgres.url, f"kept_{crash}"
    with psycopg.connect(address, autocommit=True) as before:
        before.execute(f"create table {name} (mark int)".encode())
        postgres.restart(Event(), crash=crash)
        with pytest.raises(psycopg.OperationalError):
            before.execute("select 1")
    assert postgres.url == address
    with psycopg.connect(address) as after:
        assert after.execute(f"select count(*) from {name}".encode()).fetchall() == [(0,)]


def test_kinesis_takes_records_and_gives_them_back(kinesis: Kinesis) -> None:
    client = boto3.client(
        "kinesis",
        endpoint_url=kinesis.endpoint,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
    )
    client.create_stream(StreamName="tide", ShardCount=1)
    assert client.put_record(StreamName="tide", Data=b"mark", PartitionKey="a")["ShardId"]
    shard = client.list_shards(StreamName="tide")["Shards"][0]["ShardId"]
    cursor = client.get_shard_iterator(StreamName="tide", ShardId=shard, ShardIteratorType="TRIM_HORIZON")
    records = client.get_records(ShardIterator=cursor["ShardIterator"])["Records"]
    assert [record["Data"] for record in records] == [b"mark"]


def test_two_clusters_of_two_brokers_know_nothing_of_each_other(kafka: KafkaCluster) -> None:
    with Stack(["kafka"], kafka_clusters=2, kafka_brokers=2) as stack:
        one, two = stack.kafka
        assert len({one.cluster_id, two.cluster_id, kafka.cluster_id}) == 3
        create_topics(one.settings(), NewTopic("shared", 1, replication_factor=2))
        write_records(one.address, "shared", [b"east"])
        metadata = AdminClient({"bootstrap.servers": one.address}).list_topics(timeout=TIMEOUT)
        assert (str(metadata.cluster_id), sorted(metadata.brokers)) == (one.cluster_id, [1, 2])
        assert sorted(metadata.topics["shared"].partitions[0].replicas) == [1, 2]
        other = AdminClient({"bootstrap.servers": two.address}).list_topics(timeout=TIMEOUT)
        assert str(other.cluster_id) == two.cluster_id
        assert "shared" not in other.topics


def test_a_stopped_broker_starts_again_with_its_records() -> None:
    with Stack(["kafka"]) as stack:
        cluster = stack.kafka[0]
        write_records(cluster.address, "kept", [b"before"])
        address, broker = cluster.address, cluster.brokers[0]
        cluster.stop()
        assert broker.exit_code is not None
        assert isinstance(stack.failure(), ServerFailed)
        broker.start()
        cluster.wait_ready()
        assert stack.failure() is None
        assert cluster.address == address
        assert read_records(address, "kept", 1) == [b"before"]


def test_no_cluster_id_can_be_taken_for_an_option() -> None:
    ids = {new_cluster_id() for _ in range(2000)}
    assert len(ids) == 2000
    assert not [cluster_id for cluster_id in ids if cluster_id.startswith("-") or len(cluster_id) != 22]


def test_a_server_that_fails_names_itself_and_quotes_its_log(open_dir: Path) -> None:
    cluster = KafkaCluster("kafka", open_dir / "kafka", temporary=True, jvm_options=["-XX:NoSuchOption"])
    with pytest.raises(ServerFailed) as failure:
        cluster.start(kafka_runtime(Event()), Event())
    assert str(failure.value) == "kafka did not come up: exit code 1"
    assert any("NoSuchOption" in line for line in failure.value.log)
    assert failure.value.__notes__[0].startswith("kafka | ")


def test_a_failure_is_not_explained_by_the_log_of_an_earlier_run(open_dir: Path) -> None:
    (open_dir / "kafka").mkdir()
    (open_dir / "kafka" / "broker-1.log").write_text("Address already in use\n")
    cluster = KafkaCluster("kafka", open_dir / "kafka", temporary=True, jvm_options=["-XX:NoSuchOption"])
    with pytest.raises(ServerFailed) as failure:
        cluster.start(kafka_runtime(Event()), Event())
    assert not any("Address already in use" in line for line in failure.value.log)


def test_when_one_server_fails_the_others_are_stopped(open_dir: Path) -> None:
    with Stack(["postgres"], data=open_dir / "data"):
        pass
    (open_dir / "data" / "postgres" / "data" / "global" / "pg_control").unlink()
    before = set(owned_processes(os.getpid()))
    stack = Stack(data=open_dir / "data", kafka_clusters=2)
    with pytest.raises(ServerFailed, match="postgres did not come up: exit code") as failure:
        stack.start()
    assert any("pg_control" in line for line in failure.value.log)
    assert len(stack.servers) == 4
    assert set(owned_processes(os.getpid())) == before


def test_a_start_that_is_cancelled_leaves_nothing() -> None:
    before = set(owned_processes(os.getpid()))
    stack = Stack(kafka_brokers=2)

    def cancel_once_something_runs() -> None:
        wait_for(lambda: set(owned_processes(os.getpid())) - before, "a server has been started")
        stack.cancelled.set()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(cancel_once_something_runs)
        with pytest.raises(StartCancelled, match="stopped before the servers were ready"):
            stack.start()
    assert set(owned_processes(os.getpid())) == before


def test_settings_of_the_user_do_not_get_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in {
        "PGSSLMODE": "require",
        "PGOPTIONS": "-c nonsense=1",
        "http_proxy": "http://127.0.0.1:9",
        "JAVA_TOOL_OPTIONS": "-XX:NoSuchOption",
        "KAFKA_OPTS": "-XX:NoSuchOption",
    }.items():
        monkeypatch.setenv(variable, value)
    with Stack() as stack:
        assert stack.failure() is None


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")
def test_a_stack_can_be_started_in_a_forked_process(kinesis: Kinesis) -> None:
    child = os.fork()
    if child == 0:
        try:
            with Stack(["kinesis"]) as stack:
                os._exit(0 if stack.failure() is None else 3)
        finally:
            os._exit(4)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def _kafka(home: Path, choose: Callable[[], int]) -> tuple[Callable[[], None], KafkaCluster]:
    cluster = KafkaCluster("kafka", home, temporary=True, choose_port=choose)
    return lambda: cluster.start(kafka_runtime(Event()), Event()), cluster


def _postgres(home: Path, choose: Callable[[], int]) -> tuple[Callable[[], None], Postgres]:
    server = Postgres(home, temporary=True, choose_port=choose)
    return lambda: server.start(Event()), server


def _kinesis(home: Path, choose: Callable[[], int]) -> tuple[Callable[[], None], Kinesis]:
    server = Kinesis(home, choose_port=choose)
    return lambda: server.start(Event()), server


@pytest.mark.parametrize("make", [_kafka, _postgres, _kinesis])
def test_a_port_that_is_taken_between_choosing_and_binding_is_chosen_anew(
    open_dir: Path, make: Callable[[Path, Callable[[], int]], tuple[Callable[[], None], KafkaCluster]]
) -> None:
    with socket.create_server((LOOPBACK, 0)) as stranger:
        taken = int(stranger.getsockname()[1])
        chosen = iter([free_port(), taken] if make is _kafka else [taken])
        start, server = make(open_dir / "server", lambda: next(chosen, None) or free_port())
        try:
            start()
            assert next(chosen, None) is None
            assert str(taken) not in server.address
        finally:
            server.stop()


def test_a_port_that_is_always_taken_is_an_error_in_the_end() -> None:
    tries = []

    def start() -> None:
        tries.append(1)
        raise PortTaken("kafka: a port was taken by another process")

    with pytest.raises(PortTaken):
        retry_when_taken(start)
    assert len(tries) == 5


def test_the_ports_of_a_cluster_differ() -> None:
    chosen = iter([20_001, 20_001, 20_002, 20_001, 20_003])
    assert different_ports(3, lambda: next(chosen)) == [20_001, 20_002, 20_003]


def test_ports_that_never_differ_are_an_error_in_the_end() -> None:
    with pytest.raises(StackError, match="2 different ports were asked for, and only 1 found"):
        different_ports(2, lambda: 20_001)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"only": ["kafak"]}, "server 'kafak' is unknown; did you mean 'kafka'?"),
        ({"only": [3]}, "server '3' is unknown"),
        ({"only": None}, "only takes a value of type Collection, not None"),
        ({"only": []}, "no server to start"),
        ({"data": "directory"}, "data takes a value of type Path, not 'directory'"),
        ({"only": "kafka"}, "the servers of a stack are a list: Stack(['kafka']), not Stack('kafka')"),
        ({"kafka_clusters": 0}, "a stack has 1 to 16 Kafka clusters (--kafka-clusters), not 0"),
        ({"kafka_clusters": 17}, "a stack has 1 to 16 Kafka clusters (--kafka-clusters), not 17"),
        ({"kafka_brokers": 0}, "a cluster has 1 to 16 brokers (--kafka-brokers), not 0"),
        ({"kafka_brokers": 17}, "a cluster has 1 to 16 brokers (--kafka-brokers), not 17"),
        ({"kafka_clusters": 1.5}, "kafka_clusters takes a value of type int, not 1.5"),
        ({"kafka_brokers": "x"}, "kafka_brokers takes a value of type int, not 'x'"),
        ({"only": ["kinesis"], "kafka_secure": True}, "kafka_secure is of no use without the server kafka"),
        ({"only": ["postgres"], "kafka_brokers": 2}, "of no use without the server kafka"),
        ({"only": ["kinesis"], "kafka_clusters": 2}, "of no use without the server kafka"),
        ({"only": ["kafka"], "kinesis_keep_bytes": 0}, "kinesis_keep_bytes is of no use without the server kinesis"),
        ({"kinesis_keep_bytes": -1}, "kinesis_keep_bytes is a number of bytes, or 0 to keep nothing, not -1"),
        ({"kinesis_keep_bytes": "1"}, "kinesis_keep_bytes takes a value of type int, not '1'"),
    ],
)
def test_a_stack_that_makes_no_sense_is_refused(options: dict[str, object], problem: str) -> None:
    with pytest.raises(OptionError, match=re.escape(problem)):
        Stack(**options)  # type: ignore[arg-type]
