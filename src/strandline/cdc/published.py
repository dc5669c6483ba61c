"""What a snapshot reads: the tables of a publication as pgoutput would describe them, and where their rows lie."""

import json
from typing import Any, Final

from msgspec import Struct

from strandline.cdc.session import Session, quoted
from strandline.core.chunks import Size, Span, cut
from strandline.wire.change import OWN_SCHEMA
from strandline.wire.partition_key import KeyRule
from strandline.wire.pgoutput import Column, Relation, ReplicaIdentity, Type

TIMEOUT: Final = 60.0
"""There may be many tables."""
# Postgres tells the names of types from here on; those below are the same everywhere.
FIRST_TOLD: Final = 10_000
# Columns, and which of them are the replica identity, as pgoutput has it. A domain is named by its base type. The rows
# of a partitioned table lie in its leaves; foreign and unlogged ones are not replicated. pg_partition_tree would tell
# them too, and lock them all until the snapshot is given up.
TABLES: Final = """
    select json_build_object('oid', c.oid::bigint, 'schema', n.nspname, 'name', c.relname, 'identity', c.relreplident,
        'where', coalesce(t.rowfilter, ''),
        'columns', (
            select coalesce(json_agg(json_build_array(a.attname, a.atttypid::bigint, a.atttypmod,
                c.relreplident = 'f' or exists (
                    select from pg_index i where i.indrelid = c.oid and (
                        c.relreplident = 'd' and i.indisprimary and i.indimmediate
                        or c.relreplident = 'i' and i.indisreplident)
                    and a.attnum = any ((i.indkey::int2[])[0:i.indnkeyatts - 1])),
                base.nspname, base.typname) order by a.attnum), '[]')
            from pg_attribute a, lateral (
                with recursive up as (
                    select y.typname, y.typnamespace, y.typbasetype from pg_type y where y.oid = a.atttypid
                    union all
                    select y.typname, y.typnamespace, y.typbasetype from up join pg_type y on y.oid = up.typbasetype)
                select b.nspname, up.typname from up join pg_namespace b on b.oid = up.typnamespace
                where up.typbasetype = 0) base
            where a.attrelid = c.oid and a.attname = any (t.attnames) and not a.attisdropped),
        'leaves', (
            select coalesce(json_agg(json_build_array(l.oid::bigint, s.nspname, l.relname, l.relfilenode::bigint,
                json_build_array(pg_relation_size(l.oid) / current_setting('block_size')::int,
                    pg_table_size(l.oid) / current_setting('block_size')::int)) order by l.oid), '[]')
            from (
                with recursive within as (
                    select c.oid as relid
                    union all
                    select i.inhrelid from within
                    join pg_inherits i on i.inhparent = within.relid and not i.inhdetachpending
                    join pg_class p on p.oid = i.inhrelid and p.relispartition)
                select relid from within) as within
            join pg_class l on l.oid = within.relid and l.relkind = 'r' and l.relpersistence = 'p'
            join pg_namespace s on s.oid = l.relnamespace))
    from pg_publication_tables t
    join pg_namespace n on n.nspname = t.schemaname
    join pg_class c on c.relnamespace = n.oid and c.relname = t.tablename
    where t.pubname = $1 and n.nspname <> $2 order by n.nspname, c.relname"""


class Leaf(Struct, frozen=True):
    """Where rows lie: a table, or a partition of one."""

    oid: int
    schema: str
    name: str
    file: int
    """The number of its file when the snapshot was taken. It is another when the table is rewritten."""
    size: Size

    def sql(self) -> str:
        """Its name in a statement."""
        return f"{quoted(self.schema)}.{quoted(self.name)}"


class SnapshotTable(Struct, frozen=True, kw_only=True):
    """A table of which rows are read."""

    relation: Relation
    types: tuple[Type, ...]
    where: str
    """The publication's condition in SQL, or nothing."""
    leaves: tuple[Leaf, ...]

    @property
    def oid(self) -> int:
        """What it is known by, whatever its name is."""
        return self.relation.oid

    @property
    def name(self) -> tuple[str, str]:
        """Schema and name."""
        return self.relation.schema, self.relation.name

    @property
    def blocks(self) -> int:
        """How large it is, with what is stored apart."""
        return sum(leaf.size.whole for leaf in self.leaves)


class Chunk(Struct, frozen=True, kw_only=True):
    """What a task reads at once."""

    table: SnapshotTable
    leaf: int
    span: Span

    def sql(self) -> str:
        """The statement that gives its rows, each behind the place where it lies, in the order of that."""
        columns = "".join(f", {quoted(column.name)}" for column in self.table.relation.columns)
        where = f" and ({self.table.where})" if self.table.where else ""
        return (
            f"copy (select ctid{columns} from only {self.table.leaves[self.leaf].sql()} where "  # noqa: S608  (quoted)
            f"ctid >= '({self.span.first},0)' and ctid < '({self.span.end},0)'{where}) to stdout"
        )


def published_tables(session: Session, publication: str) -> list[SnapshotTable]:
    """The tables of a publication, as the session sees them; ours, of which no events come, left out."""
    return [_table(json.loads(row[0] or "")) for row in session.query(TABLES, publication, OWN_SCHEMA, timeout=TIMEOUT)]


def check_keys(session: Session, publication: str, template: str) -> None:
    """Refuse a template of partition keys that some table of a publication has not the columns for."""
    for table in published_tables(session, publication):
        KeyRule(table.relation, template, {})


def chunks(tables: list[SnapshotTable], most: int) -> list[Chunk]:
    """Tables in chunks of at most so many blocks, in order."""
    places = [(table, leaf) for table in tables for leaf in range(len(table.leaves))]
    spans = cut([table.leaves[leaf].size for table, leaf in places], most)
    return [Chunk(table=places[span.table][0], leaf=places[span.table][1], span=span) for span in spans]


def _table(told: dict[str, Any]) -> SnapshotTable:
    columns = told["columns"]
    return SnapshotTable(
        relation=Relation(
            told["oid"],
            told["schema"],
            told["name"],
            ReplicaIdentity(told["identity"]),
            tuple(Column(name, kind, modifier, key) for name, kind, modifier, key, _, _ in columns),
        ),
        types=tuple(Type(kind, schema, base) for _, kind, _, _, schema, base in columns if kind >= FIRST_TOLD),
        where=told["where"],
        leaves=tuple(Leaf(oid, schema, name, file, Size(*size)) for oid, schema, name, file, size in told["leaves"]),
    )
