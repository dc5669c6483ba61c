"""Our own tables in Postgres, in a schema of their own: made where they are missing, and used with errors that say
what to do.
"""

from collections.abc import Mapping

from strandline.cdc.session import Row, Session
from strandline.errors import CannotReplicate, PostgresRefused

SCHEMA = "create schema if not exists strandline"
IS_THERE = """
    select from pg_namespace n left join pg_class c on c.relnamespace = n.oid and c.relname = $1
    where n.nspname = 'strandline' and ($1 = '' or c.oid is not null)"""
# Somebody else makes it at the same moment.
MADE_ALREADY = {"23505", "42P06", "42P07", "42710"}
MISSING = {"42P01", "3F000"}
DENIED = "42501"
GRANT = (
    "have their owner run: GRANT USAGE ON SCHEMA strandline TO ..., and GRANT SELECT, INSERT, UPDATE, DELETE ON ALL "
    "TABLES IN SCHEMA strandline TO ..."
)


def create(session: Session, statements: Mapping[str, str], remedy: str) -> None:
    """Make the schema and tables, by their names, where they are missing."""
    for name, statement in {"": SCHEMA, **statements}.items():
        try:
            session.query(statement)
        except PostgresRefused as error:
            # Postgres asks for the right to create before it looks whether that is needed.
            if error.code in MADE_ALREADY or (error.code == DENIED and is_there(session, name)):
                continue
            what = f"the table strandline.{name}" if name else "the schema strandline"
            raise CannotReplicate(f"{what} cannot be created: {error.problem}", remedy) from None


def is_there(session: Session, name: str) -> bool:
    """Whether a table is made, or the schema, which has no name."""
    return bool(session.query(IS_THERE, name))


def ask(session: Session, sql: str, *parameters: object) -> list[Row]:
    """The rows of a statement over our tables; one that is missing, or not open to us, is told with what to do."""
    try:
        return session.query(sql, *parameters)
    except PostgresRefused as error:
        if error.code in MISSING:
            remedy = "have it created (postgres.create in the file)"
            raise CannotReplicate(f"{error.problem} in this database", remedy) from None
        if error.code == DENIED:
            raise CannotReplicate(error.problem, GRANT) from None
        raise
