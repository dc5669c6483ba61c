"""`strandline cdc run` with something wrong: one line that says what, and what to do, before anything is begun."""

import asyncio
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3
import pytest

from strandline.cdc.acknowledged import acknowledge, create_acknowledged_table
from strandline.cdc.assembly import Offset
from strandline.cdc.config import CdcConfig, files_of
from strandline.cdc.deadletter import DeadLetter, Directory
from strandline.cdc.lease import create_lease_table
from strandline.cdc.mark import Mark
from strandline.cdc.session import Session
from strandline.cdc.slot import identified, look
from strandline.config import load
from strandline.stack import Kinesis, Refuse
from strandline.stack.postgres import Postgres
from strandline.wire.pgoutput import lsn_text
from tests.cdc.support import Place
from tests.support import TIMEOUT, run_warm

FILE = """\
postgres: {{dsn: "{dsn}", slot: {slot}, publication: {publication}{create}}}
kinesis: {{stream: {name}, region: {region}{kinesis}}}
checkpoint: {checkpoint}
{more}
"""
Tell = Callable[..., str]


@pytest.fixture(scope="module")
def place(postgres: Postgres, kinesis: Kinesis) -> Iterator[Place]:
    """A database and a stream in which all is as it should be."""
    with Place(postgres) as place:
        place.prepare("create table t (id int primary key)", published="table t")
        keys = {"aws_access_key_id": "local", "aws_secret_access_key": "local"}
        client = boto3.client("kinesis", endpoint_url=kinesis.endpoint, region_name="us-east-1", **keys)
        client.create_stream(StreamName=place.name, ShardCount=1)
        yield place


@pytest.fixture
def tell(place: Place, kinesis: Kinesis, tmp_path: Path) -> Tell:
    """Runs it with something changed; the one line that it says, or the last."""

    def run(env: dict[str, str] | None = None, *, last: bool = False, code: int | None = None, **changes: str) -> str:
        values = {
            "dsn": place.dsn,
            "slot": place.slot,
            "name": place.name,
            "create": ", create: {}",
            "region": "us-east-1",
            "checkpoint": "nowhere",
            "publication": "changes",
        }
        file = tmp_path / "cdc.yaml"
        file.write_text(FILE.format(**{**values, "kinesis": "", "more": "", **changes}))
        result = run_warm("cdc", "run", "--config", file, env={**os.environ, **kinesis.settings(), **(env or {})})
        assert result.returncode in ({1, 2} if code is None else {code}), result
        *before, line = result.stderr.splitlines()
        assert last or not before
        for secret in (place.dsn.split(":")[2].split("@")[0], "secret-of-"):
            assert secret not in line
        return line

    return run


def test_a_role_that_may_not_replicate(place: Place, tell: Tell) -> None:
    role = place.role("plain")
    assert f"role '{role}' may not replicate; have a superuser run: ALTER ROLE \"{role}\" REPLICATION" in tell(
        dsn=place.dsn_of(role)
    )


def test_a_role_that_may_not_use_our_tables(place: Place, tell: Tell) -> None:
    assert tell(name="nowhere")  # they are made by now
    role = place.role("reader", "replication")
    line = tell(dsn=place.dsn_of(role), create="")
    assert "permission denied for schema strandline; have their owner run: GRANT USAGE ON SCHEMA strandline" in line
    place.sql(f"grant usage on schema strandline to {role}")
    assert "permission denied for table lease; have their owner run: GRANT" in tell(dsn=place.dsn_of(role), create="")


def test_a_publication_that_is_missing(place: Place, tell: Tell) -> None:
    place.sql("alter publication changes rename to others")
    try:
        assert "publication 'changes' does not exist in this database; create it (CREATE PUBLICATION" in tell(create="")
    finally:
        place.sql("alter publication others rename to changes")


def test_a_table_that_is_missing_is_a_failure_as_a_stream_is(tell: Tell) -> None:
    line = tell(publication="more", create=", create: {tables: [absent]}", code=1)
    assert "publication 'more' cannot be created: relation \"public.absent\" does not exist" in line


def test_a_master_that_spark_does_not_know_is_a_fault_of_the_file(tell: Tell) -> None:
    assert "'spark': 'foo' is no master of Spark; it is local" in tell(more="spark: {master: foo}", code=2)


def test_a_slot_that_is_missing_or_of_another_plugin(place: Place, tell: Tell) -> None:
    assert tell(name="nowhere")  # our tables are made by now
    assert "slot 'absent' does not exist; have it created (postgres.create in the file)" in tell(
        slot="absent", create=""
    )
    place.sql(f"select pg_create_logical_replication_slot('{place.slot}_x', '$libdir/pgoutput')")
    line = tell(slot=f"{place.slot}_x", create="")
    assert "not of pgoutput; choose another name for ours, or drop that one" in line


def test_a_slot_that_is_gone_though_something_of_it_was_acknowledged(place: Place, tell: Tell) -> None:
    with Session(place.dsn) as session:
        create_lease_table(session)
        create_acknowledged_table(session)
        acknowledge(session, identified(session, "gone")[0], 0x1234, 1)
    line = tell(slot="gone", last=True)
    assert "slot 'gone' is gone: changes after 0/1234 are lost; to go on, drop the slot" in line
    assert place.sql("select 1 from pg_replication_slots where slot_name = 'gone'") == []


def test_a_table_without_a_replica_identity(place: Place, tell: Tell) -> None:
    place.sql("create table bare (a int)", "alter publication changes add table bare")
    try:
        assert "of public.bare; add a primary key, or run: ALTER TABLE public.bare REPLICA IDENTITY FULL" in tell()
    finally:
        place.sql("drop table bare")


def test_a_partition_key_of_columns_that_are_not_there(place: Place, tell: Tell) -> None:
    for wrong, told in {
        "{idd}": "t has no column 'idd'; did you mean 'id'?",
        "{id": "expected '}' before end of string",
    }.items():
        assert f"partition key '{wrong}': {told}" in tell(more=f"events: {{partition_key: '{wrong}'}}")
    assert place.sql("select 1 from pg_replication_slots where active") == []


def test_before_the_first_run_nobody_has_led(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "cdc.yaml"
    with Place(place.server) as fresh:
        file.write_text(f"postgres: {{dsn: '{fresh.dsn}'}}\nkinesis: {{stream: s}}\ncheckpoint: nowhere\n")
        told = run_warm("cdc", "status", "--config", file)
    assert told.stdout.splitlines() == ["leader        nobody has led yet", "slot          'strandline' does not exist"]


def test_a_status_tells_how_far_all_is_and_how_far_behind(place: Place, tmp_path: Path) -> None:
    with Session(place.dsn) as session:
        state = look(session, place.slot)
    assert state is not None
    # Not where the command runs, but where the file is.
    checkpoint = tmp_path / "checkpoint"
    place.sql("insert into t values (1)")
    for number, ordinal in enumerate((5, 9)):
        for log in ("offsets", "commits"):
            (checkpoint / log).mkdir(parents=True, exist_ok=True)
        now = time.time_ns()
        offset = Offset(end=state.confirmed, lsn=0x1234, ordinal=ordinal)
        mark = Mark.at(state, "", {}).moved(offset, (now - 90 * 10**9) // 1_000)
        told = json.dumps({"batchTimestampMs": now // 10**6 - 30_000})
        (checkpoint / "offsets" / str(number)).write_text(f"v1\n{told}\n{json.dumps(mark.told())}")
    (checkpoint / "commits" / "0").write_text("v1\n{}")
    file = tmp_path / "cdc.yaml"
    file.write_text(
        f"postgres: {{dsn: '{place.dsn}', slot: {place.slot}}}\nkinesis: {{stream: s}}\ncheckpoint: checkpoint"
    )
    lines = dict(line.split(maxsplit=1) for line in run_warm("cdc", "status", "--config", file).stdout.splitlines())
    assert lines["slot"] == f"{place.slot} of {place.name}, read by nobody"
    assert lines["acknowledged"] == lsn_text(state.confirmed)
    for line, pattern, least in (
        ("lag", r"[\d,]+ bytes of log, ([\d.]+) s", 90),
        ("delivered", r"0/1234 5, epoch 0, begun ([\d.]+) s ago", 30),
        ("unfinished", r"up to 0/1234 9, epoch 1, for ([\d.]+) s", 30),
    ):
        found = re.fullmatch(pattern, lines[line])
        assert found is not None, lines
        assert least <= float(found[1]) < least + 2 * TIMEOUT


def test_a_status_counts_dead_letters_where_that_is_cheap(place: Place, tmp_path: Path) -> None:
    file, dead = tmp_path / "cdc.yaml", tmp_path / "dead"

    def told(section: str) -> str:
        base = f"postgres: {{dsn: '{place.dsn}'}}\nkinesis: {{stream: s}}\ncheckpoint: nowhere\n"
        file.write_text(f"{base}dead_letters: {section}\n")
        (line,) = (
            line for line in run_warm("cdc", "status", "--config", file).stdout.splitlines() if line.startswith("dead")
        )
        return line

    assert told("{directory: dead}") == f"dead letters  none in directory {dead}"
    asyncio.run(Directory(dead).write([DeadLetter(5, 1, "too large", "a", b"{}")]))
    assert told("{directory: dead}") == f"dead letters  1 file in directory {dead}"
    assert told("{table: strandline.letters}") == "dead letters  none in table strandline.letters"
    place.sql("create schema put", "create table put.away (id int primary key)", "insert into put.away values (1), (2)")
    assert told("{table: put.away}") == "dead letters  2 in table put.away"
    assert told("{kafka: {topic: t, brokers: b}}") == "dead letters  in topic t, not counted"


def test_a_directory_for_large_transactions_in_which_no_file_can_be_made(tell: Tell) -> None:
    # Root, as which tests may run, has the right to write to the second; there is no file that could be made in it.
    for wrong in ("/absent", "/proc/self"):
        told = tell(code=2, more=f"spill: {{directory: {wrong}}}")
        assert f"spill.directory: '{wrong}' is no directory that can be written to (No such file or directory)" in told


def test_a_directory_for_dead_letters_in_which_no_file_can_be_made(tell: Tell) -> None:
    told = tell(code=2, more="dead_letters: {directory: /proc/x}")
    assert (
        "dead_letters.directory: '/proc/x' is no directory that can be written to (No such file or directory)" in told
    )


def test_a_database_that_is_not_named_is_told_in_one_line_though_the_slot_is_to_be_watched(tmp_path: Path) -> None:
    file = tmp_path / "cdc.yaml"
    file.write_text(f"postgres: {{}}\nkinesis: {{stream: s}}\ncheckpoint: {tmp_path}\nobserve: 127.0.0.1:0\n")
    env = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    told = run_warm("cdc", "run", "--config", file, env=env)
    assert told.returncode == 2
    *_, line = told.stderr.splitlines()
    assert line.startswith("strandline: postgres.dsn is missing, and DATABASE_URL is not set")
    assert "Traceback" not in told.stderr


def test_a_checkpoint_that_cannot_be_written(tell: Tell, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for wrong, reason in (("/proc/x", "No such file or directory"), (f"{tmp_path}/file", "File exists")):
        assert tell(checkpoint=wrong, code=2) == (
            f"strandline: checkpoint: '{wrong}' is no directory that can be written to ({reason})"
        )


def test_a_status_tells_in_one_line_that_a_checkpoint_cannot_be_read(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "cdc.yaml"
    # What a file cannot be: root, as which tests may run, is refused nothing else.
    file.write_text(f"postgres: {{dsn: '{place.dsn}'}}\nkinesis: {{stream: s}}\ncheckpoint: {file}\n")
    told = run_warm("cdc", "status", "--config", file)
    assert told.returncode == 1
    assert told.stderr == f"strandline: checkpoint {file}: cannot be read: Not a directory\n"


def test_directories_are_taken_from_where_the_file_is(tmp_path: Path) -> None:
    file = tmp_path / "cdc.yaml"
    places = "checkpoint: done\ndead_letters: {directory: dead}\nspill: {directory: /large}\n"
    file.write_text(f"postgres: {{}}\nkinesis: {{stream: s}}\n{places}")
    found = files_of(load(file, CdcConfig), file.parent)
    assert (found.checkpoint, found.spill.directory) == (f"{tmp_path}/done", "/large")
    assert found.dead_letters is not None
    assert found.dead_letters.directory == f"{tmp_path}/dead"


def test_a_table_of_dead_letters_that_is_published_itself(place: Place, tell: Tell) -> None:
    refused = "whose changes are published by 'changes': name it strandline.dead_letters"
    assert refused in tell(more="dead_letters: {table: t}")
    place.sql("create schema apart", "alter publication changes add tables in schema apart")
    try:
        assert refused in tell(more="dead_letters: {table: apart.letters}")
    finally:
        place.sql("alter publication changes drop tables in schema apart")
    for table in ("apart.letters", "strandline.dead_letters"):
        assert "stream 'nowhere'" in tell(name="nowhere", more=f"dead_letters: {{table: {table}}}")


def test_a_stream_that_is_not_there_or_takes_less_than_we_would_send(tell: Tell) -> None:
    line = tell(name="nowhere", code=1)
    assert "stream 'nowhere': ResourceNotFoundException" in line
    assert "create it, or check its name, the account and the region" in line
    assert "takes records of 1,048,576 bytes: change the one or the other" in tell(
        kinesis=", max_record_bytes: 2000000"
    )


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("UnrecognizedClientException", "check the access key, the secret and the session token"),
        ("InvalidSignatureException", "check the secret, the region and this machine's clock"),
        ("ExpiredTokenException", "the credentials have expired: renew them and start again"),
    ],
)
def test_wrong_credentials(kinesis: Kinesis, place: Place, tell: Tell, code: str, advice: str) -> None:
    kinesis.set_faults(place.name, Refuse(code=code), actions=["DescribeStreamSummary"])
    try:
        assert advice in tell()
    finally:
        kinesis.set_faults(place.name)


def test_no_credentials_and_a_wrong_region(tell: Tell) -> None:
    with tempfile.TemporaryDirectory() as home:
        nobody = {
            "AWS_ACCESS_KEY_ID": "",
            "AWS_SECRET_ACCESS_KEY": "",
            "HOME": home,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        assert "no AWS credentials found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in tell(nobody)
    assert "Kinesis: Provided region_name 'not a region'" in tell(region="not a region")


def test_an_address_to_be_observed_at_that_is_none(tell: Tell) -> None:
    for wrong in ("9464", "127.0.0.1:99999"):
        assert f"observe is HOST:PORT, such as 127.0.0.1:9464, not '{wrong}'" in tell(more=f"observe: '{wrong}'")
