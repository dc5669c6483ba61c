"""The publication: which tables, rows and columns are read; made on request, checked before reading."""

from collections.abc import Sequence
from dataclasses import dataclass

from strandline.cdc.session import Session, quoted
from strandline.errors import CannotReplicate, OptionError, PostgresRefused
from strandline.wire.change import OWN_SCHEMA
from strandline.wire.partition_key import table_name

# Postgres ends the statement of whoever updates or deletes rows of such a table.
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
# Of tables with a list of columns: what it lacks of the replica identity; with FULL, Postgres takes no list. Of those
# with a condition: what it asks for beyond the identity.
NOT_COVERED = r"""
    with identity as (
        select r.oid, a.attnum, a.attname, c.relreplident = 'f' as is_full
        from pg_publication_rel r join pg_class c on c.oid = r.prrelid
        join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
        where c.relreplident = 'f' or exists (
            select from pg_index i where i.indrelid = c.oid and (
                c.relreplident = 'd' and i.indisprimary or c.relreplident = 'i' and i.indisreplident)
            and a.attnum = any ((i.indkey::int2[])[0:i.indnkeyatts - 1])))
    select format('%I.%I', n.nspname, c.relname), found.attname, found.is_asked
    from pg_publication p
    join pg_publication_rel r on r.prpubid = p.oid
    join pg_class c on c.oid = r.prrelid
    join pg_namespace n on n.oid = c.relnamespace
    cross join lateral (
        select i.attname, false as is_asked from identity i
        where i.oid = r.oid and r.prattrs is not null and (i.is_full or i.attnum <> all (r.prattrs::int2[]))
        union all
        select a.attname, true from regexp_matches(r.prqual::text, ':varattno (\d+)', 'g') as used
        join pg_attribute a on a.attrelid = c.oid and a.attnum = used[1]::int2
        where not exists (select from identity i where i.oid = r.oid and i.attnum = a.attnum)) as found
    where p.pubname = any ($1::text[]) and (p.pubupdate or p.pubdelete)
    order by 1, 3, 2 limit 1"""
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
# Neither names it nor all of its schema, nor publishes everything.
WITHOUT = """
    select from pg_publication p where p.pubname = $1 and not p.puballtables
        and not exists (select from pg_publication_namespace s join pg_namespace n on n.oid = s.pnnspid
            where s.pnpubid = p.oid and n.nspname = $2)
        and not exists (select from pg_publication_rel r join pg_class c on c.oid = r.prrelid
            join pg_namespace n on n.oid = c.relnamespace
            where r.prpubid = p.oid and n.nspname = $2 and c.relname = $3)"""
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
    """Make a publication. One of that name that is there already stays, and must have what is wanted.

    One that must not be is not made at all: it would end the statements of whoever updates its tables.
    """
    if session.query("select from pg_publication where pubname = $1", publication.name):
        _check_content(session, publication)
        return
    session.query("begin")
    try:
        session.query(publication.sql())
        check_publications(session, [publication.name])
        session.query("commit")
    except PostgresRefused as error:
        session.query("rollback")
        match error.code:
            # Another instance has made it: before, or at this moment.
            case "42710" | "23505":
                _check_content(session, publication)
            case "42501":
                raise CannotReplicate(
                    f"publication '{publication.name}' cannot be created: {error.problem}",
                    f"have the tables' owner (for schemas and all tables: a superuser) run: {publication.sql()}",
                ) from None
            case _:
                problem = f"publication '{publication.name}' cannot be created: {error.problem}"
                raise CannotReplicate(problem, f"the statement was: {publication.sql()}") from None
    except CannotReplicate:
        session.query("rollback")
        raise


def _check_content(session: Session, publication: Publication) -> None:
    """Refuse one that lacks a table or a schema that is wanted: one that was made for less, or lost a dropped table.

    What it has beyond that, and conditions and columns, are whoever made it.
    """
    wanted = [(table.schema, table.name, table.sql()) for table in publication.tables]
    wanted += [(schema, "", f"TABLES IN SCHEMA {quoted(schema)}") for schema in publication.schemas]
    for schema, table, sql in wanted:
        if session.query(WITHOUT, publication.name, schema, table):
            what = f"table '{schema}.{table}'" if table else f"schema '{schema}'"
            raise CannotReplicate(
                f"publication '{publication.name}' is there and does not have {what}",
                f"run: ALTER PUBLICATION {quoted(publication.name)} ADD {sql} (its changes come from then on, and not "
                "the rows that are there), or take it out of postgres.create",
            )


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
            f"create it (CREATE PUBLICATION {quoted(missing[0])} FOR TABLE ...), or have `strandline cdc run` do so "
            "(postgres.create in its file)",
        )
    tables = [row[0] or "" for row in session.query(WITHOUT_IDENTITY, array(names))]
    if tables:
        named = ", ".join(tables[:MOST_NAMED])
        more = f" and {len(tables) - MOST_NAMED} more" if len(tables) > MOST_NAMED else ""
        raise CannotReplicate(
            f"without a replica identity, Postgres refuses updates and deletes of {named}{more}",
            f"add a primary key, or run: ALTER TABLE {tables[0]} REPLICA IDENTITY FULL",
        )
    for table, column, is_asked in session.query(NOT_COVERED, array(names)):
        if is_asked == "t":
            problem = f"the condition of {table} asks for '{column}', which is not part of the table's replica identity"
            remedy = f"ask for columns of that alone, or run: ALTER TABLE {table} REPLICA IDENTITY FULL"
        else:
            problem = f"the columns of {table} leave out '{column}', which is part of the table's replica identity"
            remedy = "add it to them (with REPLICA IDENTITY FULL, name no columns)"
        raise CannotReplicate(f"{problem}: Postgres would refuse updates and deletes of the table", remedy)


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
