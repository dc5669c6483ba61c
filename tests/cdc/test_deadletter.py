"""Places for dead letters: what is written is all there, and what cannot be written is an error."""

import asyncio
import base64
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, TopicPartition
from psycopg import sql

from strandline.cdc.deadletter import CREATE, DeadLetter, DeadLetterPlace, Directory, KafkaTopic, PostgresTable
from strandline.errors import DeadLetterFailed
from strandline.stack.kafka import KafkaCluster
from strandline.stack.ports import free_port
from strandline.stack.postgres import Postgres
from tests.support import TIMEOUT, wait_for

LETTERS = [
    DeadLetter(0x16_B374D848, 3, "too large", "key ü", b'{"fill":"' + b"x" * 2_000_000 + b'"}'),
    DeadLetter(0x16_B374D848, 4, "no key", None, b"\x00\xff"),
    DeadLetter(0x17_00000000, 0, "no event", "a", None),
]


def write(place: DeadLetterPlace, letters: list[DeadLetter] = LETTERS) -> None:
    async def run() -> None:
        try:
            await place.write(letters)
        finally:
            place.close()

    asyncio.run(run())


def test_a_topic_holds_the_payload_in_pieces_with_reason_and_id(kafka: KafkaCluster) -> None:
    topic = f"dead-letters-{os.getpid()}"
    write(KafkaTopic(kafka.settings(), topic))
    consumer = Consumer({**kafka.settings(), "group.id": "none", "enable.partition.eof": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[tuple[Any, Any, dict[str, str | None]]] = []
    while len(found) < 5:
        message = consumer.poll(TIMEOUT)
        assert message is not None
        assert message.error() is None
        told: Any = message.headers()
        headers = {name: value if value is None else value.decode() for name, value in told}
        found.append((message.key(), message.value(), headers))
    consumer.close()
    common = {"reason": "too large", "lsn": "16/B374D848", "ordinal": "3", "partition_key": "key ü"}
    assert b"".join(value or b"" for _, value, _ in found[:3]) == LETTERS[0].payload
    assert [headers for _, _, headers in found[:3]] == [{**common, "piece": f"{piece}/3"} for piece in (1, 2, 3)]
    assert {key for key, _, _ in found[:3]} == {b"16/B374D848 3"}
    assert [value for _, value, _ in found[3:]] == [b"\x00\xff", None]
    assert [headers["partition_key"] for _, _, headers in found[3:]] == [None, "a"]


def test_a_topic_that_cannot_be_written_is_an_error() -> None:
    nowhere = {"bootstrap.servers": f"127.0.0.1:{free_port()}", "delivery.timeout.ms": 500, "request.timeout.ms": 400}
    with pytest.raises(DeadLetterFailed, match=r"dead letters to Kafka topic 'lost': .*Nothing was acknowledged"):
        write(KafkaTopic(nowhere, "lost"))


def test_a_directory_holds_a_file_for_each_set_and_the_same_set_once(tmp_path: Path) -> None:
    place = Directory(tmp_path / "dead" / "letters")
    write(place)
    write(place)
    write(place, LETTERS[:1])
    files = sorted((tmp_path / "dead" / "letters").iterdir())
    assert len(files) == 2
    assert all(file.name.startswith("00000016B374D848-0000000003-") and file.suffix == ".jsonl" for file in files)
    whole = max(files, key=lambda file: file.stat().st_size)
    lines = [json.loads(line) for line in whole.read_text().splitlines()]
    assert [(line["lsn"], line["ordinal"], line["reason"], line["partition_key"]) for line in lines] == [
        ("16/B374D848", 3, "too large", "key ü"),
        ("16/B374D848", 4, "no key", None),
        ("17/0", 0, "no event", "a"),
    ]
    assert [line["payload"] and base64.b64decode(line["payload"]) for line in lines] == [
        letter.payload for letter in LETTERS
    ]


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DeadLetterFailed, match=r"directory .*/file: File exists"):
        write(Directory(tmp_path / "file"))


def test_a_table_is_made_and_holds_each_record_once(postgres: Postgres) -> None:
    table = f"public.dead_letters_{os.getpid()}"
    place = PostgresTable(postgres.url, table)
    write(place)
    write(place)
    with psycopg.connect(postgres.url) as connection:
        rows = connection.execute(
            f"SELECT lsn::text, ordinal, reason, partition_key, payload FROM {table} ORDER BY lsn, ordinal"
        ).fetchall()
        connection.execute(f"DROP TABLE {table}")
    assert rows == [
        ("16/B374D848", 3, "too large", "key ü", LETTERS[0].payload),
        ("16/B374D848", 4, "no key", None, b"\x00\xff"),
        ("17/0", 0, "no event", "a", None),
    ]


@pytest.mark.parametrize("is_there", [False, True])
def test_tasks_that_put_the_same_away_at_the_same_moment_are_not_in_each_others_way(
    postgres: Postgres, *, is_there: bool
) -> None:
    table = f"public.dead_letters_{os.getpid()}"
    url = f"{postgres.url}?options=-c%20default_transaction_isolation%3Dserializable"
    with psycopg.connect(postgres.url) as connection, ThreadPoolExecutor(1) as pool:
        connection.execute(sql.SQL(CREATE).format(sql.Identifier(*table.split("."))))
        if is_there:
            connection.commit()
        connection.execute(f"INSERT INTO {table} VALUES ('17/0', 0, 'no event', 'a', NULL)")
        other = pool.submit(write, PostgresTable(url, table))
        wait_for(lambda: other.done() or waiters(postgres), "the other waits")
        connection.commit()
        other.result(TIMEOUT)
        found = connection.execute(f"SELECT count(*) FROM {table}").fetchall()
        connection.execute(f"DROP TABLE {table}")
    assert found == [(3,)]


def waiters(postgres: Postgres) -> list[tuple[Any, ...]]:
    with psycopg.connect(postgres.url) as connection:
        return connection.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchall()


@pytest.mark.parametrize(
    ("table", "problem"),
    [("nowhere.letters", 'schema "nowhere" does not exist'), ("pg_class", "column .* does not exist")],
)
def test_a_table_that_cannot_be_written_is_an_error(postgres: Postgres, table: str, problem: str) -> None:
    with pytest.raises(DeadLetterFailed, match=f"table {table}: .*{problem}"):
        write(PostgresTable(postgres.url, table))


def test_a_server_that_is_down_is_an_error_without_its_password() -> None:
    with pytest.raises(DeadLetterFailed, match="refused") as failed:
        write(PostgresTable(f"postgresql://somebody:secret@127.0.0.1:{free_port()}/none"))
    assert "secret" not in str(failed.value)


def test_a_connection_string_that_cannot_be_read_is_an_error_without_its_password() -> None:
    with pytest.raises(DeadLetterFailed, match="the connection string cannot be read") as failed:
        write(PostgresTable("postgresql://somebody:sec%ret@127.0.0.1/none"))
    assert "sec%ret" not in str(failed.value)
    assert failed.value.__suppress_context__
