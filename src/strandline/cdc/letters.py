"""What a status tells of dead letters: how many are in their place, as far as that is quickly found."""

from pathlib import Path

from strandline.cdc.config import DeadLetterSection
from strandline.cdc.session import Session, quoted
from strandline.counts import counted
from strandline.errors import PostgresRefused

MOST_COUNTED = 100_000
UNDEFINED_TABLE = "42P01"
UNDEFINED_SCHEMA = "3F000"


def put_away(session: Session, section: DeadLetterSection) -> str:
    """How many there are, and where."""
    if section.directory is not None:
        return f"{_files(Path(section.directory))} in {section.place}"
    if section.table is not None:
        return f"{_rows(session, section.table)} in {section.place}"
    return f"in {section.place}, not counted"


def _files(directory: Path) -> str:
    try:
        count = sum(file.suffix == ".jsonl" for file in directory.iterdir())
    except FileNotFoundError:
        return "none"
    except OSError as error:
        return f"not to be counted ({error.strerror})"
    if not count:
        return "none"
    return counted(count, "file")


def _rows(session: Session, table: str) -> str:
    name = ".".join(map(quoted, table.split(".")))
    try:
        found = session.query(f"select count(*) from (select from {name} limit {MOST_COUNTED + 1}) as letters")  # noqa: S608
    except PostgresRefused as error:
        return "none" if error.code in {UNDEFINED_TABLE, UNDEFINED_SCHEMA} else f"not to be counted ({error.problem})"
    count = int(found[0][0] or 0)
    if count > MOST_COUNTED:
        return f"more than {MOST_COUNTED:,}"
    return f"{count:,}" if count else "none"
