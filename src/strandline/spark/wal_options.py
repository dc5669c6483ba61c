"""The options of `postgres_wal`, read once: an unknown or a wrong one is refused before anything is done."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import msgspec

from strandline.cdc.changes import ChangeSettings
from strandline.cdc.replication import ReplicationSettings
from strandline.cdc.rows import SCHEMA
from strandline.cdc.spill import MAX_DISK
from strandline.errors import OptionError, did_you_mean
from strandline.spark.options import choice, count, known, span
from strandline.spark.supervised import OPTION as FROZEN
from strandline.spark.supervised import frozen_after_option
from strandline.wire.event import EventFormat

NAMES = ("dsn", "slot", "publications", "form", "partitionKey", "splitKeyChanges", "markers", "inProgress", "serveAt")
COLUMNS = "columns"
LIMITS = ("maxRowsPerEpoch", "maxBytesPerEpoch", "idleEvery", "spillDirectory", "maxSpillBytes")
LEADERSHIP = "leadership"
OPTIONS = {name.lower(): name for name in (*NAMES, *LIMITS, COLUMNS, LEADERSHIP, FROZEN)}
REQUIRED = {"dsn": "the connection string of Postgres", "slot": "its name", "publications": "names, commas between"}
TRUTH = ("false", "true")


@dataclass(frozen=True, slots=True, kw_only=True)
class WalOptions:
    """What to read, how an event looks, and how much goes in an epoch."""

    dsn: str = field(repr=False)
    slot: str
    publications: tuple[str, ...]
    is_flat: bool
    partition_key: str | None
    split_key_changes: bool
    markers: bool
    in_progress: bool
    """Whether large transactions are sent while they run."""
    serve_at: str
    """The address of the driver at which tasks fetch rows."""
    columns: tuple[str, ...]
    """Of a row; those that are not wanted cost nothing."""
    max_rows: int
    max_bytes: int
    spill_directory: Path | None
    """Where large transactions are kept while they run; where temporary files go unless told."""
    max_spill_bytes: int
    idle_every: timedelta
    """How often the slot is moved on while nothing of ours is written."""
    leadership: int | None
    """Of whoever reads, where what is acknowledged is to be kept in Postgres for the next."""
    frozen_after: timedelta
    """A process that stands still for so long is killed."""

    @classmethod
    def parse(cls, raw: Mapping[str, str]) -> "WalOptions":
        """Read the options; raises OptionError."""
        options = known(raw, OPTIONS)
        for name, what in REQUIRED.items():
            if not options.get(name):
                raise OptionError(f"option '{name}' is missing: {what}")
        return cls(
            dsn=options["dsn"],
            slot=options["slot"],
            publications=tuple(name.strip() for name in options["publications"].split(",")),
            is_flat=choice(options, "form", ("envelope", "flat")) == "flat",
            partition_key=options.get("partitionkey"),
            split_key_changes=choice(options, "splitKeyChanges", TRUTH) == "true",
            markers=choice(options, "markers", TRUTH) == "true",
            in_progress=choice(options, "inProgress", ("true", "false")) == "true",
            serve_at=options.get("serveat") or "127.0.0.1",
            columns=_columns(options.get(COLUMNS)),
            max_rows=count(options, "maxRowsPerEpoch") or 50_000,
            max_bytes=count(options, "maxBytesPerEpoch") or 32 << 20,
            spill_directory=Path(directory) if (directory := options.get("spilldirectory")) else None,
            max_spill_bytes=count(options, "maxSpillBytes") or MAX_DISK,
            idle_every=span(options, "idleEvery") or timedelta(seconds=10),
            leadership=count(options, LEADERSHIP),
            frozen_after=frozen_after_option(options),
        )

    def changes(self, database: str, full_keys: Mapping[str, Sequence[str]]) -> ChangeSettings:
        """What to read of a database, and how to tell it; tables with replica identity FULL by their keys."""
        return ChangeSettings(
            replication=ReplicationSettings(
                dsn=self.dsn, slot=self.slot, publications=self.publications, streaming=self.in_progress
            ),
            events=EventFormat(
                database=database,
                flat=self.is_flat,
                split_key_changes=self.split_key_changes,
                key_template=self.partition_key,
                full_keys=full_keys,
            ),
            markers=self.markers,
            columns=self.columns,
            max_rows=self.max_rows,
            max_bytes=self.max_bytes,
            spill_directory=self.spill_directory,
            max_spill_bytes=self.max_spill_bytes,
        )

    @property
    def ordinals(self) -> str:
        """The settings that number the events of a transaction, in words. What is added to them goes to the end."""
        chosen = {
            "splitKeyChanges": self.split_key_changes,
            "markers": self.markers,
            "publications": sorted(self.publications),
            # A column of the key decides whether an update is one event or two.
            "partitionKey": self.partition_key if self.split_key_changes else None,
        }
        return " ".join(f"{name}={msgspec.json.encode(value).decode()}" for name, value in chosen.items())


def _columns(text: str | None) -> tuple[str, ...]:
    """Names, commas between; all unless given."""
    if text is None:
        return tuple(SCHEMA.names)
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in SCHEMA.names:
            raise OptionError(f"option '{COLUMNS}': '{name}' is unknown; {did_you_mean(name, SCHEMA.names)}")
    return names
