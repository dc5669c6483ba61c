"""Changes become events: valid JSON, with what was before and after, under the key of their row."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import MalformedChange
from strandline.wire.change import Events
from strandline.wire.event import EventFormat, Flat
from strandline.wire.pgoutput import (
    UNCHANGED,
    Change,
    Column,
    Delete,
    Insert,
    LogicalMessage,
    OldKey,
    OldRow,
    Relation,
    ReplicaIdentity,
    Row,
    Truncate,
    Type,
    Update,
)

COMMITTED = 1_794_820_663_123_456
TS = "2026-11-16T09:17:43.123456+00:00"
SOURCE = {"db": "shop", "schema": "public", "table": "orders", "lsn": "16/B374D848", "xid": 771, "ts": TS}
FACTS = {f"__{name}": fact for name, fact in SOURCE.items()}
KINDS = {"id": 23, "note": 25, "doc": 3802}


def orders(identity: ReplicaIdentity = ReplicaIdentity.DEFAULT, **kinds: int) -> Relation:
    full = identity is ReplicaIdentity.FULL
    columns = tuple(Column(name, kind, -1, full or name == "id") for name, kind in (kinds or KINDS).items())
    return Relation(7, "public", "orders", identity, columns)


def events(message: Change | Truncate | LogicalMessage, described: Relation | None = None, **how: Any) -> list[Any]:
    """What a message becomes: op, partition key and the event, read back."""
    encoder = Events(EventFormat(database="shop", **how))
    encoder.learn(described or orders())
    stamp = encoder.stamp(0x16_B374_D848, 771, COMMITTED)
    made = encoder.of(message, stamp, 3)
    assert [event.ordinal for event in made] == list(range(3, 3 + len(made)))
    assert all(event.event.startswith((b'{"op":"', b'{"__op":"')) for event in made)
    return [(event.op, event.partition_key, json.loads(event.event)) for event in made]


def envelope(op: str, before: Any, after: Any, ordinal: int = 3, **notes: Any) -> dict[str, Any]:
    source = {**SOURCE, "ordinal": ordinal}
    return {"op": op, "before": before, "after": after, **notes, "source": source, "ts": TS}


def flat(op: str, columns: dict[str, Any], ordinal: int = 3, **notes: Any) -> dict[str, Any]:
    return {"__op": op, **FACTS, "__ordinal": ordinal, **notes, **columns}


ROW: Row = [b"1", b"x", b'{"a": null}']
READ = {"id": 1, "note": "x", "doc": {"a": None}}


def test_an_insert_tells_the_new_row() -> None:
    assert events(Insert(7, ROW)) == [("c", "public.orders/1", envelope("c", None, READ))]
    assert events(Insert(7, ROW), flat=True) == [("c", "public.orders/1", flat("c", READ))]


def test_a_row_of_a_snapshot_is_an_insert_by_another_name() -> None:
    encoder = Events(EventFormat(database="shop"))
    encoder.learn(orders())
    event = encoder.table(7).inserted(ROW, encoder.stamp(0x16_B374_D848, 771, COMMITTED), 3, "r")
    assert (event.op, event.schema, event.table) == ("r", "public", "orders")
    assert json.loads(event.event) == envelope("r", None, READ)


def test_a_delete_tells_the_old_key_or_the_old_row() -> None:
    key = Delete(7, OldKey([b"1", None, None]))
    assert events(key) == [("d", "public.orders/1", envelope("d", {"id": 1}, None))]
    assert events(key, flat=True) == [("d", "public.orders/1", flat("d", {"id": 1}))]
    full = orders(ReplicaIdentity.FULL)
    assert events(Delete(7, OldRow(ROW)), full) == [("d", "public.orders", envelope("d", READ, None))]


def test_a_value_that_did_not_change_is_left_out_and_named_and_never_null() -> None:
    update = Update(7, None, [b"1", UNCHANGED, None])
    after = {"id": 1, "doc": None}
    assert events(update) == [("u", "public.orders/1", envelope("u", None, after, unchanged=["note"]))]
    assert events(update, flat=True) == [("u", "public.orders/1", flat("u", after, __unchanged=["note"]))]
    assert events(Insert(7, [b"1", UNCHANGED, None]))[0][2] == envelope("c", None, after, unchanged=["note"])


def test_a_value_that_did_not_change_is_taken_from_the_old_row_where_that_is_told() -> None:
    update = Update(7, OldRow(ROW), [b"1", UNCHANGED, UNCHANGED])
    ((_, _, event),) = events(update, orders(ReplicaIdentity.FULL))
    assert event == envelope("u", READ, READ)
    update = Update(7, OldKey([b"k", None, None]), [UNCHANGED, UNCHANGED, None])
    ((_, key, event),) = events(update, orders(id=25, note=25, doc=3802), split_key_changes=True)
    assert key == "public.orders/k"
    assert event == envelope("u", {"id": "k"}, {"id": "k", "doc": None}, unchanged=["note"])


MOVE = Update(7, OldKey([b"1", None, None]), [b"2", b"x", UNCHANGED])
MOVED = {"id": 2, "note": "x"}


def test_a_changed_key_is_one_update_under_the_new_key() -> None:
    assert events(MOVE) == [("u", "public.orders/2", envelope("u", {"id": 1}, MOVED, unchanged=["doc"]))]
    expected = flat("u", MOVED, __before={"id": 1}, __unchanged=["doc"])
    assert events(MOVE, flat=True) == [("u", "public.orders/2", expected)]


def test_a_changed_key_is_a_delete_and_an_insert_where_the_format_says_so() -> None:
    assert events(MOVE, split_key_changes=True) == [
        ("d", "public.orders/1", envelope("d", {"id": 1}, None)),
        ("c", "public.orders/2", envelope("c", None, MOVED, 4, unchanged=["doc"])),
    ]
    stay = Update(7, OldKey([b"1", None, None]), ROW)
    assert [op for op, _, _ in events(stay, split_key_changes=True)] == ["u"]


def test_with_the_whole_old_row_the_format_says_what_the_key_is() -> None:
    full, update = orders(ReplicaIdentity.FULL), Update(7, OldRow([b"1", b"x", None]), [b"2", b"x", None])
    how: dict[str, Any] = {"split_key_changes": True}
    assert [event[:2] for event in events(update, full, **how)] == [("u", "public.orders")]
    keyed = events(update, full, **how, full_keys={"public.orders": ["id"]})
    assert [event[:2] for event in keyed] == [("d", "public.orders/1"), ("c", "public.orders/2")]
    assert [event[:2] for event in events(update, full, **how, key_template="{note}")] == [("u", "x")]
    assert [event[:2] for event in events(update, full, **how, key_template="{id}")] == [("d", "1"), ("c", "2")]


@pytest.mark.parametrize(("is_flat", "mark"), [(False, ""), (True, "__")])
def test_the_null_of_json_is_told_from_that_of_sql(is_flat: bool, mark: str) -> None:
    notes = [
        events(Insert(7, [b"1", b"null", doc]), flat=is_flat)[0][2].get(f"{mark}json_null")
        for doc in (b"null", None, b"[]")
    ]
    assert notes == [["doc"], None, None]
    ((_, _, event),) = events(Delete(7, OldRow([b"1", None, b"null"])), orders(ReplicaIdentity.FULL), flat=is_flat)
    assert event[f"{mark}json_null_before"] == ["doc"]


def test_a_truncate_is_an_event_for_each_table_under_the_tables_own_key() -> None:
    found = events(Truncate((7, 7), cascade=True, restart_identity=False))
    assert [(op, key) for op, key, _ in found] == [("t", "public.orders")] * 2
    about = {"cascade": True, "restart_identity": False}
    assert found[1][2] == {"op": "t", "truncate": about, "source": {**SOURCE, "ordinal": 4}, "ts": TS}
    ((_, _, event),) = events(Truncate((7,), cascade=True, restart_identity=False), flat=True)
    assert event == flat("t", {}, __truncate=about)


@pytest.mark.parametrize(("content", "told"), [(b"hi \0 \xc3\xbc", "hi \0 ü"), (b"\xff", {"base64": "/w=="})])
def test_a_logical_message_tells_its_prefix_and_its_content(content: bytes, told: Any) -> None:
    ((op, key, event),) = events(LogicalMessage(True, 9, "my prefix", content))
    assert (op, key) == ("m", "message/my prefix")
    assert event["message"] == {"prefix": "my prefix", "content": told, "transactional": True}


@pytest.mark.parametrize(("is_flat", "op"), [(False, '{"op":"begin","source"'), (True, '{"__op":"begin","__db"')])
def test_what_is_of_no_transaction_has_neither_id_nor_time_and_a_marker_names_no_table(is_flat: bool, op: str) -> None:
    encoder = Events(EventFormat(database="shop", flat=is_flat))
    event = encoder.marker("begin", encoder.stamp(255, None, None), 0)
    assert (event.op, event.schema, event.table, event.partition_key) == ("begin", "", "", "transaction")
    assert event.event.decode().startswith(op)
    facts = json.loads(event.event)
    assert (facts if is_flat else facts["source"]) | {"x": 1} == (
        {"__op": "begin", "__db": "shop", "__lsn": "0/FF", "__xid": None, "__ts": None, "__ordinal": 0, "x": 1}
        if is_flat
        else {"db": "shop", "lsn": "0/FF", "xid": None, "ts": None, "ordinal": 0, "x": 1}
    )


def test_a_table_described_again_is_as_it_was_described_last() -> None:
    encoder = Events(EventFormat(database="shop"))
    stamp = encoder.stamp(1, 2, COMMITTED)
    encoder.learn(Type(900, "pg_catalog", "int4"))
    after = []
    for kind in (25, 900):
        encoder.learn(orders(id=kind))
        after.append(json.loads(encoder.of(Insert(7, [b"1"]), stamp, 0)[0].event)["after"])
    assert after == [{"id": "1"}, {"id": 1}]


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (Insert(8, [b"1"]), "a change is of relation 8, and none of that number was described"),
        (Insert(7, [b"1"]), "a row of public.orders has 1 columns, and the table has 3"),
        (Update(7, OldKey([b"1"]), ROW), "a row of public.orders has 1 columns"),
        (Delete(7, OldKey([])), "a row of public.orders has 0 columns"),
        (Insert(7, [b"1", b"x", b"{"]), "public.orders, column doc: a value of type json is none"),
    ],
)
def test_a_change_that_does_not_fit_its_table_is_refused(message: Change, told: str) -> None:
    with pytest.raises(MalformedChange, match=told):
        events(message)


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8) | st.sampled_from(
    ["__op", "___op", "leadership", "_leadership", "__leadership", "__before", "%b", "%"]
)


@given(st.lists(NAMES, unique=True))
def test_in_a_flat_event_no_column_takes_the_place_of_a_fact_or_of_another(names: list[str]) -> None:
    found = [Flat.column(name) for name in names]
    assert len(set(found)) == len(names)
    assert not any(name == "leadership" or (name.startswith("__") and name[2:] in {"op", "before"}) for name in found)


VALUES = st.none() | st.just(UNCHANGED) | st.binary(max_size=10) | st.sampled_from([b"null", b"1", b"{}", b"\\x00"])
KIND = st.sampled_from([16, 17, 20, 23, 25, 114, 701, 1007, 1009, 1184, 1700, 3802, 99_999])


@given(st.lists(st.tuples(NAMES, KIND, st.booleans(), VALUES, VALUES), unique_by=lambda column: column[0]), st.data())
def test_whatever_the_columns_and_values_an_event_is_valid_and_takes_the_sinks_mark(
    columns: list[Any], data: st.DataObject
) -> None:
    identity = data.draw(st.sampled_from(ReplicaIdentity))
    described = Relation(7, "s", "t", identity, tuple(Column(name, kind, -1, key) for name, kind, key, _, _ in columns))
    old, new = [column[3] for column in columns], [column[4] for column in columns]
    messages: list[Change] = [Insert(7, new), Update(7, OldRow(old), new), Delete(7, OldKey(old))]
    message = data.draw(st.sampled_from(messages))
    is_flat, split = data.draw(st.booleans()), data.draw(st.booleans())
    encoder = Events(EventFormat(database="%d", flat=is_flat, split_key_changes=split))
    encoder.learn(described)
    with contextlib.suppress(MalformedChange):
        for event in encoder.of(message, encoder.stamp(1, 2, 3), 0):
            marked = b'{"leadership":5,' + event.event[1:]
            pairs = json.loads(marked, object_pairs_hook=list)
            assert len({name for name, _ in pairs}) == len(pairs)
