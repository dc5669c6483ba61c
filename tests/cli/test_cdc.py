"""`strandline cdc run` with something wrong: one line that says what, and what to do, before anything is begun."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3
import pytest

from strandline.cdc.acknowledged import acknowledge, create_acknowledged_table
from strandline.cdc.lease import create_lease_table
from strandline.cdc.session import Session
from strandline.cdc.slot import identified
from strandline.stack import Kinesis, Refuse
from strandline.stack.postgres import Postgres
from tests.cdc.support import Place
from tests.support import run_warm

FILE = """\
postgres: {{dsn: "{dsn}", slot: {slot}, publication: changes{create}}}
kinesis: {{stream: {name}, region: {region}{kinesis}}}
checkpoint: nowhere
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

    def run(env: dict[str, str] | None = None, *, last: bool = False, **changes: str) -> str:
        values = {
            "dsn": place.dsn,
            "slot": place.slot,
            "name": place.name,
            "create": ", create: {}",
            "region": "us-east-1",
        }
        file = tmp_path / "cdc.yaml"
        file.write_text(FILE.format(**{**values, "kinesis": "", "more": "", **changes}))
        result = run_warm("cdc", "run", "--config", file, env={**os.environ, **kinesis.settings(), **(env or {})})
        assert result.returncode in {1, 2}, result
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
    line = tell(name="nowhere")
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
