"""Decoded changes to events: what a table's rows look like as JSON, and the key that keeps them in order.

- A table is compiled once, when Postgres describes it, and again when that changes: names are JSON already, and every
  column has its converter. The path of a row is a conversion per column and one formatting.
- A value that was not sent since it did not change is taken from the old row where that is told, and else left out of
  the new row and named as unchanged. It is never null.
- An update of the key is one event under the new key, with the old key as what was before; or, where the format says
  so, a delete under the old key and an insert under the new, of two ordinals in a row. Columns that were not sent are
  missing from that insert too.
- A truncate is an event for each table, under the table's own key: it is not in order with the keys of the rows.
- A logical message is keyed by its prefix, and the markers of transactions by one key of their own.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NoReturn

from strandline.errors import MalformedChange
from strandline.wire.event import Event, EventFormat, Stamp, form_of, listed, quoted
from strandline.wire.partition_key import KeyRule, bounded
from strandline.wire.pgoutput import (
    UNCHANGED,
    Delete,
    Insert,
    LogicalMessage,
    OldKey,
    OldRow,
    Relation,
    Row,
    Truncate,
    Type,
    Update,
)
from strandline.wire.pgtext import converter, is_json_null, json_value, string

MARKER_KEY: Final = "transaction"
OWN_SCHEMA: Final = "strandline"


class Table:
    """Rows of one relation to events."""

    __slots__ = (
        "_converters", "_form", "_identity", "_json", "_key", "_labels", "_layout", "_name", "_names", "_schema",
        "_split", "relation",
    )  # fmt: skip

    def __init__(self, relation: Relation, types: Mapping[int, Type], chosen: EventFormat) -> None:
        self.relation = relation
        self._schema, self._name = relation.schema, relation.name
        self._form = form = form_of(chosen, relation.schema, relation.name)
        self._split = chosen.split_key_changes
        self._key = KeyRule(relation, chosen.key_template, chosen.full_keys)
        self._identity = [at for at, column in enumerate(relation.columns) if column.key]
        self._names = [form.column(column.name) for column in relation.columns]
        self._converters = [converter(column.type, types) for column in relation.columns]
        self._labels = [quoted(name) + b":" for name in self._names]
        self._layout = b",".join(label.replace(b"%", b"%%") + b"%b" for label in self._labels)
        self._json = [at for at, convert in enumerate(self._converters) if convert is json_value]

    def inserted(self, row: Row, stamp: Stamp, ordinal: int, op: str = "c") -> Event:
        """The event of a new row, or (op "r") of one that a snapshot read."""
        if self._json:
            return self._made(op, stamp, ordinal, None, row)
        try:
            event = self._form.inserted(op, stamp, ordinal, self._whole(row))
        except _NotSent:
            return self._made(op, stamp, ordinal, None, row)
        return Event(ordinal, op, self._schema, self._name, self._key.of(row), event)

    def updated(self, change: Update, stamp: Stamp, ordinal: int) -> Sequence[Event]:
        """The event of a changed row, or the two of a changed key."""
        old, new = change.old, change.new
        if old is None:
            return (self._made("u", stamp, ordinal, None, new),)
        new = self._completed(new, old)
        if self._split and any(old.row[at] != new[at] for at in self._key.columns):
            return (
                self._made("d", stamp, ordinal, old, None),
                self._made("c", stamp, ordinal + 1, None, new),
            )
        return (self._made("u", stamp, ordinal, old, new),)

    def deleted(self, change: Delete, stamp: Stamp, ordinal: int) -> Event:
        """The event of a row that is gone."""
        return self._made("d", stamp, ordinal, change.old, None)

    def truncated(self, change: Truncate, stamp: Stamp, ordinal: int) -> Event:
        """The event of the table's emptying."""
        how = b'{"cascade":%b,"restart_identity":%b}' % (_truth(change.cascade), _truth(change.restart_identity))
        event = self._form.other(b"t", stamp, ordinal, self._form.note(b"truncate", how))
        return Event(ordinal, "t", self.relation.schema, self.relation.name, self._key.table, event)

    def _made(self, op: str, stamp: Stamp, ordinal: int, old: OldKey | OldRow | None, new: Row | None) -> Event:
        """The event of whatever is told of a row before and after, under its last key."""
        notes, before, after = b"", None, None
        row: Row = []
        if old is not None:
            row = old.row
            before = self._members(row) if isinstance(old, OldRow) else self._some(row, self._identity)
            notes = self._json_nulls(b"json_null_before", row)
        if new is not None:
            row = new
            after = self._members(row)
            if UNCHANGED in row:
                missing = [name for name, value in zip(self._names, row, strict=True) if value is UNCHANGED]
                notes += self._form.note(b"unchanged", listed(missing))
            notes += self._json_nulls(b"json_null", row)
        event = self._form.row(op.encode(), stamp, ordinal, before, after, notes=notes)
        return Event(ordinal, op, self.relation.schema, self.relation.name, self._key.of(row), event)

    def _members(self, row: Row) -> bytes:
        """A row as the members of an object, without what was not sent."""
        return self._some(row, range(len(row))) if UNCHANGED in row else self._whole(row)

    def _whole(self, row: Row) -> bytes:
        """A row of which everything was sent."""
        if len(row) != len(self._names):
            raise self._misfit(row)
        try:
            values = [
                b"null" if value is None else convert(value) if value is not UNCHANGED else _not_sent()
                # They are as many; to have that checked again costs a tenth of the whole.
                for convert, value in zip(self._converters, row)  # noqa: B905
            ]
        except MalformedChange:
            # It says where when the columns are taken one by one.
            return self._some(row, range(len(row)))
        return self._layout % tuple(values)

    def _some(self, row: Row, columns: Sequence[int]) -> bytes:
        """Some columns of a row, without what was not sent."""
        if len(row) != len(self._names):
            raise self._misfit(row)
        members = []
        for at in columns:
            value = row[at]
            if value is UNCHANGED:
                continue
            try:
                members.append(self._labels[at] + (b"null" if value is None else self._converters[at](value)))
            except MalformedChange as error:
                place = f"{self.relation.schema}.{self.relation.name}, column {self.relation.columns[at].name}"
                raise MalformedChange(f"{place}: {error}") from None
        return b",".join(members)

    def _json_nulls(self, note: bytes, row: Row) -> bytes:
        holding = [self._names[at] for at in self._json if is_json_null(row[at])] if self._json else None
        return self._form.note(note, listed(holding)) if holding else b""

    def _completed(self, new: Row, old: OldKey | OldRow) -> Row:
        """The new row with what was not sent taken from the old one, as far as that tells it."""
        if len(old.row) != len(new):
            raise self._misfit(old.row)
        if UNCHANGED not in new:
            return new
        told = range(len(new)) if isinstance(old, OldRow) else self._identity
        return [old.row[at] if value is UNCHANGED and at in told else value for at, value in enumerate(new)]

    def _misfit(self, row: Row) -> MalformedChange:
        name = f"{self.relation.schema}.{self.relation.name}"
        return MalformedChange(f"a row of {name} has {len(row)} columns, and the table has {len(self._names)}")


class _NotSent(Exception):
    """A value is not there."""


def _not_sent() -> NoReturn:
    raise _NotSent


class Events:
    """Messages to events. It knows the tables that were described to it.

    Our own tables, which a publication of all tables has too, bring none: each event would bring the next.
    """

    def __init__(self, chosen: EventFormat) -> None:
        self._chosen = chosen
        self._form = form_of(chosen)
        self._types: dict[int, Type] = {}
        self._tables: dict[int, Table] = {}
        self._ours: set[int] = set()

    def stamp(self, lsn: int, xid: int | None, committed: int | None) -> Stamp:
        """What the events of a transaction share. A message outside any has neither id nor time."""
        return self._form.stamp(lsn, xid, committed)

    def learn(self, described: Relation | Type) -> None:
        """Keep what Postgres tells of a table or a type; it is so from here on."""
        if isinstance(described, Type):
            self._types[described.oid] = described
        elif described.schema == OWN_SCHEMA:
            self._ours.add(described.oid)
        else:
            self._tables[described.oid] = Table(described, self._types, self._chosen)

    def table(self, oid: int) -> Table:
        """A table that was described."""
        table = self._tables.get(oid)
        if table is None:
            raise MalformedChange(f"a change is of relation {oid}, and none of that number was described before it")
        return table

    def of(
        self, message: Insert | Update | Delete | Truncate | LogicalMessage, stamp: Stamp, ordinal: int
    ) -> Sequence[Event]:
        """The events of a message, the first of this ordinal and each of the next."""
        if isinstance(message, LogicalMessage):
            return (self._emitted(message, stamp, ordinal),)
        if isinstance(message, Truncate):
            others = (oid for oid in message.relations if oid not in self._ours)
            return [self.table(oid).truncated(message, stamp, ordinal + place) for place, oid in enumerate(others)]
        if message.relation in self._ours:
            return ()
        table = self.table(message.relation)
        if isinstance(message, Insert):
            return (table.inserted(message.new, stamp, ordinal),)
        if isinstance(message, Update):
            return table.updated(message, stamp, ordinal)
        return (table.deleted(message, stamp, ordinal),)

    def marker(self, op: Literal["begin", "commit"], stamp: Stamp, ordinal: int) -> Event:
        """The event of a transaction's beginning or end."""
        return Event(ordinal, op, "", "", MARKER_KEY, self._form.other(op.encode(), stamp, ordinal))

    def _emitted(self, message: LogicalMessage, stamp: Stamp, ordinal: int) -> Event:
        prefix = message.prefix.encode()
        about = b'{"prefix":%b,"content":%b,"transactional":%b}' % (
            string(prefix),
            string(message.content),
            _truth(message.transactional),
        )
        event = self._form.other(b"m", stamp, ordinal, self._form.note(b"message", about))
        return Event(ordinal, "m", "", "", bounded(b"message/" + prefix), event)


def _truth(value: bool) -> bytes:
    return b"true" if value else b"false"
