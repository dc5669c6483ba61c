"""The publication: which tables, rows and columns are read; made on request, checked before reading."""

from collections.abc import Sequence
from dataclasses import dataclass

from strandline.cdc.session import Session, quoted
from strandline.errors import CannotReplicate, OptionError, PostgresRefused
from strandline.wire.change import OWN_SCHEMA
from strandline.wire.partition_key import table_name

# Postgres ends the statement of whoever updates such a table, so its owner learns of it before we do.
WITHOUT_IDENTITY = """
    select distinct format('%I.%I', n.nspname, c.relname) as name
    from pg_publication_tables t
    join pg_publication p using (pubname)
    join pg_namespace n on n.nspname = t.schemaname
    join pg_class c on c.relnamespace = n.oid and c.relname = t.tablename
    where p.pubname = any ($1::text[]) and (p.pubupdate or p.pubdelete) and not exists (
        select from pg_index i where i.indrelid = c.oid and (
            c.relreplident = 'd' and i.indisprimary and i.indisvalid or c.relreplident = 'i' and i.indisreplident)
    ) and c.relreplident <> 'f'
    order by name"""
# With replica identity FULL the log names no key. What a key includes without being known by it comes last.
FULL_KEYS = """
    select n.nspname, c.relname, a.attname
    from pg_publication_tables t
    join pg_namespace n on n.nspname = t.schemaname
    join pg_class c on c.relnamespace = n.oid and c.relname = t.tablename
    join pg_index i on i.indrelid = c.oid and i.indisprimary and i.indisvalid
    cross join unnest(i.indkey::int2[]) with ordinality as k (number, place)
    join pg_attribute a on a.attrelid = c.oid and a.attnum = k.number
    where t.pubname = any ($1::text[]) and c.relreplident = 'f' and k.place <= i.indnkeyatts
    group by n.nspname, c.relname, a.attname, k.place
    order by n.nspname, c.relname, k.place"""
# Also where the table is not made yet: it would be published from then on.
PUBLISHES = """
    select from pg_publication p where p.pubname = $1 and (
        p.puballtables
        or exists (select from pg_publication_namespace s join pg_namespace n on n.oid = s.pnnspid
            where s.pnpubid = p.oid and n.nspname = $2)
        or exists (select from pg_publication_tables t
            where t.pubname = p.pubname and t.schemaname = $2 and t.tablename = $3))"""
MOST_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTable:
    """A table of a publication: all of it, or some columns, or the rows for which a condition in SQL holds."""

    schema: str
    name: str
    columns: Sequence[str] = ()
    where: str | None = None

    def sql(self) -> str:
        """As it stands in a statement."""
        columns = f" ({', '.join(map(quoted, self.columns))})" if self.columns else ""
        where = f" WHERE ({self.where})" if self.where is not None else ""
        return f"TABLE {quoted(self.schema)}.{quoted(self.name)}{columns}{where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What to publish; every table of the database where neither tables nor schemas are named."""

    name: str
    tables: Sequence[PublishedTable] = ()
    schemas: Sequence[str] = ()

    def sql(self) -> str:
        """The statement that makes it. Partitions are published as their table, whose key they share."""
        parts = [table.sql() for table in self.tables]
        parts += [f"TABLES IN SCHEMA {quoted(schema)}" for schema in self.schemas]
        what = ", ".join(parts) if parts else "ALL TABLES"
        return f"CREATE PUBLICATION {quoted(self.name)} FOR {what} WITH (publish_via_partition_root = true)"


def create_publication(session: Session, publication: Publication) -> None:
    """Make a publication. One of that name that is there already stays as it is."""
    if session.query("select from pg_publication where pubname = $1", publication.name):
        return
    try:
        session.query(publication.sql())
    except PostgresRefused as error:
        match error.code:
            case "42710":
                return
            case "42501":
                raise CannotReplicate(
                    f"publication '{publication.name}' cannot be created: {error.problem}",
                    f"have the tables' owner (for schemas and all tables: a superuser) run: {publication.sql()}",
                ) from None
            case _:
                problem = f"publication '{publication.name}' cannot be created: {error.problem}"
                raise OptionError(f"{problem}; the statement was: {publication.sql()}") from None


def check_publications(session: Session, names: Sequence[str]) -> None:
    """Refuse publications that do not exist, and tables of which updates and deletes could not be told."""
    found = {
        row[0]
        for row in session.query("select pubname from pg_publication where pubname = any ($1::text[])", array(names))
    }
    missing = [name for name in names if name not in found]
    if missing:
        raise CannotReplicate(
            f"publication '{missing[0]}' does not exist in this database",
            f"create it (CREATE PUBLICATION {quoted(missing[0])} FOR TABLE ...) or have it created",
        )
    tables = [row[0] or "" for row in session.query(WITHOUT_IDENTITY, array(names))]
    if tables:
        named = ", ".join(tables[:MOST_NAMED])
        more = f" and {len(tables) - MOST_NAMED} more" if len(tables) > MOST_NAMED else ""
        raise CannotReplicate(
            f"without a replica identity, Postgres refuses updates and deletes of {named}{more}",
            f"add a primary key, or run: ALTER TABLE {tables[0]} REPLICA IDENTITY FULL",
        )


def check_dead_letters(session: Session, publication: str, table: str) -> None:
    """Refuse a table for dead letters whose changes are published: each would bring the next, and larger."""
    schema, dot, name = table.rpartition(".")
    if not dot:
        schema = session.query("select current_schema()")[0][0] or "public"
    if schema != OWN_SCHEMA and session.query(PUBLISHES, publication, schema, name):
        raise OptionError(
            f"dead_letters.table is '{table}', whose changes are published by '{publication}': name it "
            f"{OWN_SCHEMA}.dead_letters (tables of that schema bring no events), or one that is not published"
        )


def full_keys(session: Session, names: Sequence[str]) -> dict[str, list[str]]:
    """The primary keys of published tables with replica identity FULL, by the tables' names, as they are now."""
    found: dict[str, list[str]] = {}
    for schema, table, column in session.query(FULL_KEYS, array(names)):
        found.setdefault(table_name(schema or "", table or ""), []).append(column or "")
    return found


def array(values: Sequence[str]) -> str:
    """Texts as a text[] of Postgres."""
    escaped = (value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return "{" + ",".join(f'"{value}"' for value in escaped) + "}"
