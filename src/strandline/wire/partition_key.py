"""The partition key of a row: rows of one key stay in order, so it is made of nothing but what tells rows apart.

- By default it is `schema.table/key`, of the columns of the replica identity (the primary key, or the index chosen for
  it) as Postgres prints them: `public.orders/17`, `public.lines/17,3`. Different rows have different keys.
- With replica identity FULL Postgres does not say which columns are the primary key: the caller
  does (`full_keys`), as it is when reading begins.
- Where there are no such columns (nobody said, replica identity NOTHING, no primary key, or a column that was said is
  no longer there) it is `schema.table`: the order of the whole table, one record after the other. A hash of the row
  would scatter a row's changes.
- By a template: `{schema}.{table}.{customer}` takes the named columns' text; null is `null`. A column outside the
  replica identity is refused, for a delete does not tell it. Text between the columns is the user's to choose: rows
  that it gives the same key share their order.
- A key of more than 256 bytes, or one that is not UTF-8, is its SHA-256 in hex: Kinesis takes 256 characters.

Two texts of one number (1.0 and 1.00 as a numeric key) are two keys; Postgres, too, tells such an update as one of the
key.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from string import Formatter
from typing import Final, TypeAlias

from strandline.errors import MalformedChange, OptionError, did_you_mean
from strandline.wire.pgoutput import UNCHANGED, Relation, ReplicaIdentity, Row, Value
from strandline.wire.pgtext import string

LONGEST: Final = 256
PLAIN_NAME: Final = re.compile(r"[^\W\d]\w*")

PartitionKey: TypeAlias = Callable[[Row], str]


class KeyRule:
    """How the rows of a table are keyed. A row is another one when one of `columns`, by their places, is another."""

    __slots__ = ("_name", "_parts", "columns", "of", "table")

    def __init__(self, relation: Relation, template: str | None, full_keys: Mapping[str, Sequence[str]]) -> None:
        self._name = table_name(relation.schema, relation.name)
        self.table = bounded(self._name.encode())
        """The key of what concerns the table as a whole."""
        self.columns = _known_by(relation, full_keys.get(self._name, ()))
        self.of: PartitionKey
        """The partition key of a row."""
        self._parts: list[bytes | int] = []
        if template is not None:
            self._parts = _parsed(template, relation)
            self.columns = sorted({*self.columns, *(part for part in self._parts if isinstance(part, int))})
            self.of = self._by_template
        elif not self.columns:
            self.of = self._of_the_table
        else:
            self.of = _by_columns(self._name, self.columns)

    def _of_the_table(self, _row: Row) -> str:
        return self.table

    def _by_template(self, row: Row) -> str:
        parts = [part if isinstance(part, bytes) else _told(row[part], self._name) for part in self._parts]
        # Kinesis takes no empty key.
        return bounded(b"".join(parts)) or self.table


def bounded(key: bytes) -> str:
    """A key that Kinesis takes."""
    if len(key) <= LONGEST:
        try:
            return key.decode()
        except UnicodeDecodeError:
            pass
    return sha256(key).hexdigest()


def table_name(schema: str, table: str) -> str:
    """A table's name in one piece, in quotes where a name holds more than letters, digits and underscores."""
    return ".".join(name if PLAIN_NAME.fullmatch(name) else string(name.encode()).decode() for name in (schema, table))


def _known_by(relation: Relation, full_key: Sequence[str]) -> list[int]:
    """The places of the columns that tell rows apart, as far as they are known."""
    if relation.identity is ReplicaIdentity.FULL:
        places = {column.name: at for at, column in enumerate(relation.columns)}
        return [places[name] for name in full_key] if places.keys() >= set(full_key) else []
    if relation.identity is ReplicaIdentity.NOTHING:
        return []
    return [at for at, column in enumerate(relation.columns) if column.key]


def _by_columns(table: str, columns: Sequence[int]) -> PartitionKey:
    begin = f"{table}/".encode()
    if len(columns) == 1:
        (only,) = columns

        def by_one(row: Row) -> str:
            return bounded(begin + _told(row[only], table))

        return by_one

    def by_several(row: Row) -> str:
        texts = (_told(row[at], table).replace(b"\\", b"\\\\").replace(b",", b"\\,") for at in columns)
        return bounded(begin + b",".join(texts))

    return by_several


def _told(value: Value, table: str) -> bytes:
    if value is UNCHANGED:
        raise MalformedChange(f"{table}: an update does not tell its row's key, which is stored apart; update Postgres")
    return b"null" if value is None else value


def _parsed(template: str, relation: Relation) -> list[bytes | int]:
    """The pieces of a template: text, and the places of columns."""
    places = {column.name: at for at, column in enumerate(relation.columns)}
    keyed = any(column.key for column in relation.columns)
    given = {"schema": relation.schema.encode(), "table": relation.name.encode()}
    parts: list[bytes | int] = []
    for literal, name, spec, conversion in pieces(template):
        parts.append(literal.encode())
        if name is None:
            continue
        if spec or conversion:
            raise OptionError(f"partition key '{template}': '{name}' is to stand alone between its braces")
        if name in given:
            parts.append(given[name])
            continue
        if name not in places:
            hint = did_you_mean(name, [*given, *places])
            raise OptionError(f"partition key '{template}': {relation.name} has no column '{name}'; {hint}")
        if keyed and not relation.columns[places[name]].key:
            raise OptionError(
                f"partition key '{template}': a delete in {relation.name} does not tell '{name}', for it is not part "
                "of the replica identity; take columns of that, or ALTER TABLE ... REPLICA IDENTITY FULL"
            )
        parts.append(places[name])
    return parts


def pieces(template: str) -> list[tuple[str, str | None, str | None, str | None]]:
    """A template cut at its braces; one that cannot be is refused."""
    try:
        return list(Formatter().parse(template))
    except ValueError as error:
        raise OptionError(f"partition key '{template}': {error}") from None
