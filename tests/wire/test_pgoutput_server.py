"""A real server's frames, decoded: its rows as SQL has them, its types as documented."""

import base64
import json
import secrets
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from strandline.wire.change import Events
from strandline.wire.event import Event, EventFormat
from strandline.wire.pgoutput import (
    UNCHANGED,
    Begin,
    Commit,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Relation,
    ReplicaIdentity,
    StreamAbort,
    StreamCommit,
    StreamStart,
    StreamStop,
    Type,
    Update,
    decode,
)
from strandline.wire.pgtext import SETTINGS

Connection = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture(params=[16, 18])
def session(request: pytest.FixtureRequest) -> Iterator[tuple[Connection, str]]:
    """A session as replication has it, and a schema of its own with a slot and a publication of the same name."""
    postgres = request.getfixturevalue("postgres16" if request.param == 16 else "postgres")
    name = f"wire_{secrets.token_hex(4)}"
    options = " ".join(f"-c {setting}={value}" for setting, value in SETTINGS.items())
    with psycopg.connect(postgres.url, autocommit=True, options=options, connect_timeout=10) as connection:
        connection.execute(f"CREATE SCHEMA {name}; SET search_path TO {name}")
        connection.execute(f"CREATE PUBLICATION {name} FOR TABLES IN SCHEMA {name}")
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
        try:
            yield connection, name
        finally:
            connection.execute("SELECT pg_drop_replication_slot(%s)", [name])
            connection.execute(f"DROP PUBLICATION {name}; DROP SCHEMA {name} CASCADE")


def messages(connection: Connection, slot: str, **options: str) -> list[Message]:
    """What the slot holds, decoded."""
    given = {"proto_version": "1", "publication_names": slot, "messages": "true"} | options
    words = [word for pair in given.items() for word in pair]
    query = "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, VARIADIC %s)"
    found, streaming = [], False
    for (frame,) in connection.execute(query, [slot, words]):
        message = decode(frame, streaming=streaming)
        streaming = not isinstance(message, StreamStop) and (streaming or isinstance(message, StreamStart))
        found.append(message)
    return found


def events(found: list[Message], **how: Any) -> list[tuple[Event, Any]]:
    """The events of messages that stand in no stream, and what is read in them."""
    encoder, made = Events(EventFormat(database="postgres", **how)), list[Event]()
    stamp = encoder.stamp(0, None, None)
    for message in found:
        match message:
            case Begin():
                stamp = encoder.stamp(message.lsn, message.xid, message.committed)
            case Relation() | Type():
                encoder.learn(message)
            case Commit():
                assert message.lsn == stamp.lsn < message.end
                assert message.committed == stamp.committed
            case _:
                made += encoder.of(message, stamp, len(made))  # type: ignore[arg-type]
    return [(event, json.loads(event.event)) for event in made]


TYPES = """
    CREATE TYPE mood AS ENUM ('happy', 'so so');
    CREATE DOMAIN positive AS int CHECK (VALUE > 0);
    CREATE DOMAIN tags AS text[];
    CREATE DOMAIN feeling AS mood;
    CREATE TYPE pair AS (a int, b text);
    CREATE TABLE kinds (
        id int8 PRIMARY KEY, small int2, whole int4, truth bool, single float4, double float8, exact numeric,
        day date, clock time, moment timestamp, instant timestamptz, span interval, doc json, tree jsonb, raw bytea,
        unique_id uuid, feels mood, felt feeling, more positive, marks tags, address inet, fixed char(4),
        bits bit(3), numbers int4[], nested int4[][], words text[], moments timestamptz[], docs jsonb[], raws bytea[]
    );
    CREATE TABLE odd (id int PRIMARY KEY, moods mood[], shifted int[], couple pair, gap int4range, price money,
                      early timestamptz, late timestamp, nothing jsonb, old timestamptz);
"""
ROWS = r"""
    INSERT INTO kinds VALUES
    (9223372036854775807, -32768, 2147483647, true, 1.1, 1e300, 123456789012345678901234567890.0010,
     '2026-11-16', '09:17:43.5', '2026-11-16 09:17:43.123456', '2026-11-16 09:17:43+02', '1 year 2 days 03:04:05.6',
     '{"a": [1, 2.50, null]}', '{"b": {"c": "\u00fc"}}', '\x00ff10', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'so so',
     'happy', 7, '{a,NULL,"x y"}', '10.0.0.1/8', 'ab', B'101', '{1,NULL,-3}', '{{1,2},{3,4}}',
     ARRAY['', 'NULL', NULL, 'a"b', 'c\d', '{e}', 'f,g', E'h\ti', 'ü'], '{2026-11-16 09:17:43.5+00,infinity}',
     ARRAY['{"x": [1]}'::jsonb, NULL, '"y"'], ARRAY['\x00'::bytea, '', NULL]),
    (1, 0, 0, false, 'NaN', '-Infinity', 'NaN', 'infinity', '24:00', '-infinity', 'infinity', '0', '[]', '[]', '', NULL,
     'happy', 'happy', 1, '{}', '::1', '', B'000', '{}', '{}', '{}', '{}', '{}', '{}');
    INSERT INTO kinds VALUES
    (2, NULL, NULL, NULL, 'Infinity', 'NaN', 'Infinity', '-infinity', NULL, 'infinity', '-infinity', NULL, NULL, NULL),
    (3, 1, 1, true, 0.1, 5e-324, '-Infinity', '0001-01-01', '00:00', '9999-12-31 23:59:59.999999',
     '0001-01-01 00:00+00', '-1 day', '"t"', '1e2')
"""


def raw_as_base64(value: Any) -> Any:
    """Bytes as SQL tells them, as we do."""
    if isinstance(value, list):
        return [raw_as_base64(each) for each in value]
    return None if value is None else base64.b64encode(bytes.fromhex(value[2:])).decode()


def test_every_type_is_told_as_sql_tells_it_in_json(session: tuple[Connection, str]) -> None:
    connection, name = session
    connection.execute(TYPES)
    connection.execute(ROWS)
    rows = connection.execute("SELECT row_to_json(kinds)::text FROM kinds ORDER BY id").fetchall()
    expected = [json.loads(text, parse_int=str, parse_float=str) for (text,) in rows]
    for row in expected:
        row["raw"], row["raws"] = raw_as_base64(row["raw"]), raw_as_base64(row["raws"])
    found = [
        json.loads(event.event, parse_int=str, parse_float=str)["after"]
        for event, _ in events(messages(connection, name))
    ]
    assert sorted(found, key=lambda row: int(row["id"])) == expected


def test_what_has_no_json_of_its_own_is_told_as_its_text(session: tuple[Connection, str]) -> None:
    connection, name = session
    connection.execute(TYPES)
    connection.execute("""INSERT INTO odd VALUES (1, '{happy,NULL}', '[0:1]={1,2}', ROW(1, 'x y'), '[1,5)', '1234.5',
        '0044-03-15 12:00:00+00 BC', '12026-01-01 00:00', 'null', '2026-01-01 00:00+00')""")
    ((_, event),) = events(messages(connection, name))
    assert event["after"] == {
        "id": 1, "moods": "{happy,NULL}", "shifted": "[0:1]={1,2}", "couple": '(1,"x y")', "gap": "[1,5)",
        "price": "$1,234.50", "early": "0044-03-15 12:00:00+00 BC", "late": "12026-01-01 00:00:00", "nothing": None,
        "old": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip
    assert event["json_null"] == ["nothing"]


def test_changes_are_told_as_the_replica_identity_allows(session: tuple[Connection, str]) -> None:
    connection, name = session
    connection.execute("""
        CREATE TABLE keyed (id int PRIMARY KEY, note text, big text);
        ALTER TABLE keyed ALTER big SET STORAGE EXTERNAL;
        CREATE TABLE whole (LIKE keyed INCLUDING ALL);
        ALTER TABLE whole REPLICA IDENTITY FULL;
        CREATE TABLE indexed (a int NOT NULL, b text NOT NULL, c int);
        CREATE UNIQUE INDEX by_b ON indexed (b, a);
        ALTER TABLE indexed REPLICA IDENTITY USING INDEX by_b;
    """)
    big = "x" * 9000
    for table in ("keyed", "whole"):
        connection.execute(f"INSERT INTO {table} VALUES (1, 'a', %s)", [big])
        connection.execute(f"UPDATE {table} SET note = NULL")
        connection.execute(f"UPDATE {table} SET id = 2")
        connection.execute(f"DELETE FROM {table}")
    connection.execute("INSERT INTO indexed VALUES (1, 'x,y', 3)")
    connection.execute("UPDATE indexed SET a = 5")
    connection.execute("TRUNCATE keyed, indexed RESTART IDENTITY CASCADE")
    found = messages(connection, name)
    relations = {message.name: message for message in found if isinstance(message, Relation)}
    assert [relations[table].identity for table in ("keyed", "whole", "indexed")] == [
        ReplicaIdentity.DEFAULT, ReplicaIdentity.FULL, ReplicaIdentity.INDEX,
    ]  # fmt: skip
    made = [
        (
            op.op,
            op.partition_key.removeprefix(f"{name}."),
            event.get("before"),
            event.get("after"),
            event.get("unchanged"),
        )
        for op, event in events(found, split_key_changes=True)
    ]
    row = {"id": 1, "note": "a", "big": big}
    bare, moved = {**row, "note": None}, {"id": 2, "note": None, "big": big}
    without = {"id": 1, "note": None}
    assert made == [
        ("c", "keyed/1", None, row, None),
        ("u", "keyed/1", None, without, ["big"]),
        ("d", "keyed/1", {"id": 1}, None, None),
        ("c", "keyed/2", None, {"id": 2, "note": None}, ["big"]),
        ("d", "keyed/2", {"id": 2}, None, None),
        ("c", "whole", None, row, None),
        ("u", "whole", row, bare, None),
        ("u", "whole", bare, moved, None),
        ("d", "whole", moved, None, None),
        ("c", "indexed/1,x\\,y", None, {"a": 1, "b": "x,y", "c": 3}, None),
        ("d", "indexed/1,x\\,y", {"a": 1, "b": "x,y"}, None, None),
        ("c", "indexed/5,x\\,y", None, {"a": 5, "b": "x,y", "c": 3}, None),
        ("t", "keyed", None, None, None),
        ("t", "indexed", None, None, None),
    ]


def test_a_key_that_is_stored_apart_is_known_by_every_update(session: tuple[Connection, str]) -> None:
    connection, name = session
    connection.execute("CREATE TABLE long (id text PRIMARY KEY, n int)")
    connection.execute("ALTER TABLE long ALTER id SET STORAGE EXTERNAL")
    connection.execute("INSERT INTO long VALUES (repeat('k', 2200), 1)")
    connection.execute("UPDATE long SET n = 2")
    found = messages(connection, name)
    (update,) = [message for message in found if isinstance(message, Update)]
    assert update.new == [UNCHANGED, b"2"]
    (inserted, _), (updated, event) = events(found)
    assert inserted.partition_key == updated.partition_key
    assert event["after"] == {"id": "k" * 2200, "n": 2}


def test_logical_messages_are_told_with_their_transaction_or_without(session: tuple[Connection, str]) -> None:
    connection, name = session
    # The second is committed, and brings the first to the log.
    for transactional, content in ((False, "'\\xff00'::bytea"), (True, "'in'::text")):
        connection.execute(f"SELECT pg_logical_emit_message({transactional}, %s, {content})", [name])
    found = [
        (message.transactional, message.content)
        for message in messages(connection, name)
        if isinstance(message, LogicalMessage) and message.prefix == name
    ]
    assert found == [(False, b"\xff\0"), (True, b"in")]


def test_a_large_transaction_is_streamed_with_the_id_of_each_subtransaction(session: tuple[Connection, str]) -> None:
    connection, name = session
    connection.execute("SET logical_decoding_work_mem = '64kB'")
    connection.execute("CREATE TABLE bulk (id int PRIMARY KEY, pad text)")
    fill = "INSERT INTO bulk SELECT n, repeat('x', 100) FROM generate_series(%s::int, %s::int) AS n"
    with connection.transaction():
        connection.execute(fill, [1, 1500])
        connection.execute("SAVEPOINT before")
        connection.execute(fill, [2001, 3500])
        connection.execute("ROLLBACK TO before")
        connection.execute(fill, [4001, 5500])
    found = messages(connection, name, proto_version="2", streaming="on")
    (committed,) = [message for message in found if isinstance(message, StreamCommit)]
    aborted = {message.subxid for message in found if isinstance(message, StreamAbort)}
    assert {message.xid for message in found if isinstance(message, StreamStart)} == {committed.xid}
    assert committed.lsn < committed.end
    assert committed.xid not in aborted
    ids = [message.new[0] for message in found if isinstance(message, Insert) and message.xid not in aborted]
    assert ids == [b"%d" % number for number in (*range(1, 1501), *range(4001, 5501))]


@pytest.mark.parametrize("rows", [1, 1500], ids=["whole", "streamed"])
def test_the_origin_of_a_transaction_that_was_replicated_is_told(session: tuple[Connection, str], rows: int) -> None:
    connection, name = session
    connection.execute("SET logical_decoding_work_mem = '64kB'")
    connection.execute("CREATE TABLE bulk (id int PRIMARY KEY, pad text)")
    connection.execute("SELECT pg_replication_origin_create(%s)", [name])
    connection.execute("SELECT pg_replication_origin_session_setup(%s)", [name])
    try:
        with connection.transaction():
            connection.execute("SELECT pg_replication_origin_xact_setup('0/1234', now())")
            fill = "INSERT INTO bulk SELECT n, repeat('x', 100) FROM generate_series(1, %s::int) AS n"
            connection.execute(fill, [rows])
        found = messages(connection, name, proto_version="2", streaming="on")
    finally:
        connection.execute("SELECT pg_replication_origin_session_reset(), pg_replication_origin_drop(%s)", [name])
    origins = [message for message in found if isinstance(message, Origin)]
    assert {origin.name for origin in origins} == {name}
    assert any(isinstance(message, StreamStart) for message in found) is (rows > 1)
    # Where it is from is known with the commit: of one that is sent while it runs, only who.
    assert [origin.lsn for origin in origins if rows == 1] == [0x1234] * (rows == 1)
