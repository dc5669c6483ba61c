"""Directories that somebody has named for us to write to."""

import tempfile
from pathlib import Path

from strandline.errors import OptionError


def check_directory(directory: Path, setting: str, *, make: bool = False) -> None:
    """Refuse a directory in which no file can be made.

    By making one: what may be done cannot be told beforehand for all file systems, nor for root.
    """
    try:
        if make:
            directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError as error:
        problem = f"'{directory}' is no directory that can be written to ({error.strerror})"
        raise OptionError(f"{setting}: {problem}") from None
