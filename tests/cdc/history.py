"""What became of a table, kept by triggers, and whether a stream tells the same: per key, in order, all of it."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from strandline.stack import AcceptedRecord

TABLE = "create table item (id int primary key, version int not null, note text)"
# Whoever changes a row waits for the one before to be committed, so the numbers of a key rise as its commits do.
TRIGGERS = """
create schema kept;
create table kept.history (number bigserial primary key, op text not null, id int not null, version int);
create function kept.note() returns trigger language plpgsql as $$
begin
    if tg_op = 'INSERT' then
        insert into kept.history (op, id, version) values ('c', new.id, new.version);
    elsif tg_op = 'DELETE' then
        insert into kept.history (op, id, version) values ('d', old.id, null);
    elsif old.id <> new.id then
        insert into kept.history (op, id, version) values ('d', old.id, null), ('c', new.id, new.version);
    else
        insert into kept.history (op, id, version) values ('u', new.id, new.version);
    end if;
    return null;
end $$;
create trigger note after insert or update or delete on item for each row execute function kept.note();
"""
READ = "select id, op, version from kept.history order by number"


class Told(NamedTuple):
    """What a stream tells of one key."""

    ids: list[tuple[str, int]]
    steps: list[tuple[str, int | None]]
    repeats: int


def told(records: Mapping[str, Sequence[AcceptedRecord]]) -> dict[int, Told]:
    """The events of each key in the order of their first arrivals. A repeat must be the same event."""
    seen: dict[tuple[str, int], dict[str, Any]] = {}
    keys: dict[int, Told] = defaultdict(lambda: Told([], [], 0))
    for record in (record for shard in records.values() for record in shard):
        event = json.loads(record.data)
        event.pop("leadership", None)
        source = event["source"]
        if source["table"] != "item":
            continue
        row = event["after"] or event["before"]
        key, id_ = row["id"], (source["lsn"], source["ordinal"])
        assert record.partition_key == f"public.item/{key}"
        if id_ in seen:
            assert seen[id_] == event, "a repeat is not the same event"
            keys[key] = keys[key]._replace(repeats=keys[key].repeats + 1)
            continue
        seen[id_] = event
        keys[key].ids.append(id_)
        keys[key].steps.append((event["op"], None if event["after"] is None else event["after"]["version"]))
    return dict(keys)


def kept(history: Sequence[tuple[Any, ...]]) -> dict[int, list[tuple[str, int | None]]]:
    """The same of the table's history."""
    keys: dict[int, list[tuple[str, int | None]]] = defaultdict(list)
    for id_, op, version in history:
        keys[id_].append((op, version))
    return dict(keys)


def check(history: Sequence[tuple[Any, ...]], records: Mapping[str, Sequence[AcceptedRecord]]) -> int:
    """What arrived is what happened, per key and in order; how many records came again."""
    happened, arrived = kept(history), told(records)
    assert {key: found.steps for key, found in arrived.items()} == happened
    for key, found in arrived.items():
        places = [(tuple(int(part, 16) for part in lsn.split("/")), ordinal) for lsn, ordinal in found.ids]
        assert places == sorted(places), f"ids of key {key} do not rise"
    return sum(found.repeats for found in arrived.values())
