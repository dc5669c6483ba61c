"""Tables with replica identity FULL: keyed by their primary key where they have one, and else as a whole."""

from strandline.cdc.assembly import Offset
from strandline.cdc.changes import Changes, ChangeSettings
from strandline.cdc.publication import full_keys
from strandline.cdc.replication import ReplicationSettings
from strandline.cdc.session import Session
from strandline.wire.event import EventFormat
from tests.cdc.support import Place
from tests.support import TIMEOUT

TABLES = (
    "create table keyed (a int, note text, b text, primary key (b, a) include (note))",
    'create table "Odd name" (id int primary key, note text)',
    "create table bare (a int)",
    "create table plain (id int primary key)",
    *(f"alter table {name} replica identity full" for name in ("keyed", '"Odd name"', "bare")),
)


def test_rows_are_keyed_by_the_primary_key_where_there_is_one(either: Place) -> None:
    either.prepare(*TABLES)
    with Session(either.dsn) as session:
        keys = full_keys(session, [either.publication])
    assert keys == {"public.keyed": ["b", "a"], 'public."Odd name"': ["id"]}
    either.in_one(
        "insert into keyed values (1, 'x', 'k'), (2, 'x', 'k')",
        "update keyed set note = 'y' where a = 2",
        "update keyed set a = 3 where a = 2",
        "delete from keyed where a = 1",
        "insert into \"Odd name\" values (7, 'x')",
        "insert into bare values (1), (2)",
        "update bare set a = 5 where a = 1",
        "insert into plain values (9)",
    )
    settings = ChangeSettings(
        replication=ReplicationSettings(dsn=either.dsn, slot=either.slot, publications=[either.publication]),
        events=EventFormat(database=either.name, full_keys=keys, split_key_changes=True),
    )
    with Changes(settings, Offset()) as changes:
        taken = changes.take(TIMEOUT)
    assert taken is not None
    (batch,) = taken.batches
    assert list(zip(batch["op"].to_pylist(), batch["partition_key"].to_pylist(), strict=True)) == [
        ("c", "public.keyed/k,1"),
        ("c", "public.keyed/k,2"),
        ("u", "public.keyed/k,2"),
        ("d", "public.keyed/k,2"),
        ("c", "public.keyed/k,3"),
        ("d", "public.keyed/k,1"),
        ("c", 'public."Odd name"/7'),
        ("c", "public.bare"),
        ("c", "public.bare"),
        ("u", "public.bare"),
        ("c", "public.plain/9"),
    ]
