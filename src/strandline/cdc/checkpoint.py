"""A checkpoint of Spark as far as a status needs it: which epochs were planned, and which are done.

What is in it is only read.
"""

from pathlib import Path
from typing import NamedTuple

import msgspec

from strandline.cdc.mark import Mark
from strandline.errors import StrandlineError
from strandline.units import Nanos

VERSION = "v1"


class Epoch(NamedTuple):
    """An epoch that was planned."""

    number: int
    begun: Nanos
    mark: Mark
    """Where it ends."""


class _Metadata(msgspec.Struct, rename="camel"):
    batch_timestamp_ms: int


class Checkpoint:
    """A directory that Spark writes, perhaps just now."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def last(self) -> Epoch | None:
        """The last epoch that is done."""
        done = self._numbers("commits")
        return self._epoch(done[-1]) if done else None

    def unfinished(self) -> Epoch | None:
        """The epoch that is planned and not done."""
        planned, done = self._numbers("offsets"), self._numbers("commits")
        return self._epoch(planned[-1]) if planned[-1:] != done[-1:] and planned else None

    def _numbers(self, log: str) -> list[int]:
        try:
            return sorted(int(file.name) for file in (self._directory / log).iterdir() if file.name.isdigit())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StrandlineError(f"checkpoint {self._directory}: cannot be read: {error.strerror}") from None

    def _epoch(self, number: int) -> Epoch:
        file = self._directory / "offsets" / str(number)
        try:
            version, metadata, offset = file.read_text().strip().splitlines()
            if version != VERSION:
                raise ValueError(f"it is of version {version}")
            begun = msgspec.json.decode(metadata, type=_Metadata).batch_timestamp_ms
            return Epoch(number, Nanos(begun * 1_000_000), msgspec.json.decode(offset, type=Mark))
        except (OSError, ValueError) as error:
            raise StrandlineError(f"{file}: cannot be read as an epoch of a checkpoint: {error}") from None
