"""What became of tables, kept by triggers, and whether a stream tells the same: per key, in order, all of it."""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from strandline.stack import AcceptedRecord

MOST_IN_A_REQUEST = 500

TABLE = "create table item (id int primary key, version int not null, note text)"
# Whoever changes a row waits for the one before to be committed, so the numbers of a key rise as its commits do.
TRIGGERS = """
create schema kept;
create table kept.history (number bigserial primary key, relation text not null, op text not null, id int, line jsonb);
create function kept.note() returns trigger language plpgsql as $$
declare
    name text := tg_table_name;
begin
    if tg_op = 'TRUNCATE' then
        insert into kept.history (relation, op) values (name, 't');
    elsif tg_op = 'INSERT' then
        insert into kept.history (relation, op, id, line) values (name, 'c', new.id, to_jsonb(new));
    elsif tg_op = 'DELETE' then
        insert into kept.history (relation, op, id) values (name, 'd', old.id);
    elsif old.id <> new.id then
        insert into kept.history (relation, op, id) values (name, 'd', old.id);
        insert into kept.history (relation, op, id, line) values (name, 'c', new.id, to_jsonb(new));
    else
        insert into kept.history (relation, op, id, line) values (name, 'u', new.id, to_jsonb(new));
    end if;
    return null;
end $$;
create function kept.watch(name text) returns void language plpgsql as $$
begin
    execute format('create trigger note after insert or update or delete on %I
        for each row execute function kept.note()', name);
    execute format('create trigger empty after truncate on %I for each statement execute function kept.note()', name);
end $$;
select kept.watch('item');
create table kept.said (who int primary key, times int not null);
create function kept.say(whose int) returns void language plpgsql as $$
declare
    said int;
begin
    insert into kept.said values (whose, 1) on conflict (who) do update set times = kept.said.times + 1
        returning times into said;
    insert into kept.history (relation, op, id, line) values ('message', 'm', whose, json_build_object('said', said));
    perform pg_logical_emit_message(true, 'kept/' || whose, said::text);
end $$;
"""
READ = "select relation, id, op, line from kept.history order by number"

Key = tuple[str, int | None]
"""A table and the key of a row; the table alone for its truncates; whose a message is."""
Id = tuple[int, int, int]
"""The two halves of the commit's LSN, and the ordinal: they compare as ids do."""


class Step(NamedTuple):
    """A change of a row, or a truncate."""

    op: str
    row: dict[str, Any] | None
    """What it is afterwards."""
    unchanged: Sequence[str] = ()
    """The columns that are not told, for they did not change."""


class Told(NamedTuple):
    """What a stream tells of one key."""

    ids: list[Id]
    steps: list[Step]


class Arrival(NamedTuple):
    """A record of a stream."""

    id: Id
    leadership: int
    event: dict[str, Any]
    partition_key: str


def check(
    history: Sequence[tuple[Any, ...]],
    records: Mapping[str, Sequence[AcceptedRecord]],
    *,
    epoch_rows: int | None = None,
    in_flight: int = 8,
) -> int:
    """What arrived is what happened, per key and in order; how many records came again.

    With `epoch_rows`, the most that goes in an epoch, those that came again must be within the documented bound.
    """
    arrivals = {shard: [_arrival(record) for record in found] for shard, found in records.items()}
    happened, arrived, repeats = kept(history), *told(arrivals)
    for key in sorted(happened.keys() | arrived.keys(), key=str):
        _compare(key, happened.get(key, []), arrived[key].steps if key in arrived else [])
    for key, found in arrived.items():
        assert found.ids == sorted(found.ids), f"ids of {key} do not rise"
    if epoch_rows is not None:
        check_repeats(arrivals, epoch_rows=epoch_rows, in_flight=in_flight)
    return repeats


def _arrival(record: AcceptedRecord) -> Arrival:
    event = json.loads(record.data)
    leadership, source = event.pop("leadership", 0), event["source"]
    high, low = (int(part, 16) for part in source["lsn"].split("/"))
    return Arrival((high, low, source["ordinal"]), leadership, event, record.partition_key)


def told(arrivals: Mapping[str, Sequence[Arrival]]) -> tuple[dict[Key, Told], int]:
    """The events of each key in the order of their first arrivals, and the number of repeats: the same events."""
    seen: dict[Id, dict[str, Any]] = {}
    keys: dict[Key, Told] = defaultdict(lambda: Told([], []))
    repeats = 0
    for id_, _, event, partition_key in (arrival for shard in arrivals.values() for arrival in shard):
        key, expected = _key(event)
        assert partition_key == expected
        if id_ in seen:
            assert seen[id_] == event, f"a repeat is not the same event: {event}, and before {seen[id_]}"
            repeats += 1
            continue
        seen[id_] = event
        keys[key].ids.append(id_)
        after = {"said": int(event["message"]["content"])} if event["op"] == "m" else event.get("after")
        keys[key].steps.append(Step(event["op"], after, event.get("unchanged", ())))
    return dict(keys), repeats


def _key(event: dict[str, Any]) -> tuple[Key, str]:
    """What an event is of, and the partition key that it is to have."""
    if event["op"] == "m":
        prefix = event["message"]["prefix"]
        return ("message", int(prefix.removeprefix("kept/"))), f"message/{prefix}"
    table = event["source"]["table"]
    if event["op"] == "t":
        return (table, None), f"public.{table}"
    row = event["after"] or event["before"]
    return (table, row["id"]), f"public.{table}/{row['id']}"


def kept(history: Sequence[tuple[Any, ...]]) -> dict[Key, list[Step]]:
    """The same of the tables' history."""
    keys: dict[Key, list[Step]] = defaultdict(list)
    for table, id_, op, line in history:
        keys[table, id_].append(Step(op, line))
    return dict(keys)


def _compare(key: Key, happened: list[Step], arrived: list[Step]) -> None:
    last: Step | None = None
    for at, (step, found) in enumerate(zip(happened, arrived, strict=False)):
        sent = step.row and {name: value for name, value in step.row.items() if name not in found.unchanged}
        assert (step.op, sent) == (found.op, found.row), f"step {at} of {key} was {step}, and {found} arrived"
        if step.op == "u" and last is not None and last.row is not None and step.row is not None:
            for name in found.unchanged:
                assert last.row.get(name) == step.row[name], f"step {at} of {key} changed '{name}', which is not told"
        last = step
    assert len(happened) == len(arrived), f"{key}: {len(happened)} steps were taken, and {len(arrived)} arrived"


def check_repeats(arrivals: Mapping[str, Sequence[Arrival]], *, epoch_rows: int, in_flight: int) -> None:
    """No record comes after one that is a whole epoch further on.

    But for what a leader before had on its way when it was stopped: no more than its requests in flight hold.
    """
    ids = sorted({arrival.id for shard in arrivals.values() for arrival in shard})
    ranks = {id_: rank for rank, id_ in enumerate(ids)}
    late: Counter[int] = Counter()
    for shard in arrivals.values():
        highest, leadership = -1, 0
        for arrival in shard:
            rank, leadership = ranks[arrival.id], max(leadership, arrival.leadership)
            if arrival.leadership < leadership:
                late[arrival.leadership] += 1
            else:
                assert highest - rank < epoch_rows, f"{arrival} came {highest - rank} events late"
            highest = max(highest, rank)
    for number, count in late.items():
        assert count <= in_flight * MOST_IN_A_REQUEST, f"{count} records of leadership {number} came after it was over"
