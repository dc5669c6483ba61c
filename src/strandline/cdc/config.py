"""The configuration of `strandline cdc`: what may stand in its file."""

import os
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from strandline.cdc.publication import Publication, PublishedTable
from strandline.cdc.spill import MAX_DISK
from strandline.config import Secret, Section, only_key
from strandline.core.spark_master import check_master
from strandline.errors import OptionError

Name = Annotated[str, Meta(min_length=1, max_length=63)]
Seconds = Annotated[float, Meta(gt=0, le=3_600)]
Count = Annotated[int, Meta(ge=1)]


class TableSection(Section, frozen=True, kw_only=True):
    """A part of a table."""

    table: str
    columns: list[str] = msgspec.field(default_factory=list)
    where: str | None = None


class PublishSection(Section, frozen=True, kw_only=True):
    """What the publication holds, where it has to be made; all tables where nothing is named."""

    tables: list[str | TableSection] = msgspec.field(default_factory=list)
    schemas: list[str] = msgspec.field(default_factory=list)


class PostgresSection(Section, frozen=True, kw_only=True):
    """Where changes come from."""

    dsn: Secret | None = None
    """A connection string; `DATABASE_URL` of the environment where it is missing."""
    slot: Annotated[str, Meta(pattern="^[a-z0-9_]{1,63}$")] = "strandline"
    publication: Name = "strandline"
    create: PublishSection | None = None
    """Make the publication, the slot and the table of leases where they are missing."""
    heartbeat_s: Seconds = 10.0
    """How often a slot whose tables rest is moved on."""

    def url(self) -> str:
        """How to connect."""
        found = os.environ.get("DATABASE_URL") if self.dsn is None else self.dsn.reveal()
        if not found:
            raise OptionError("postgres.dsn is missing, and DATABASE_URL is not set: postgresql://user@host/database")
        return found

    def wanted(self) -> Publication | None:
        """The publication to make."""
        if self.create is None:
            return None
        return Publication(
            name=self.publication,
            tables=[_table(each) for each in self.create.tables],
            schemas=self.create.schemas,
        )


class KinesisSection(Section, frozen=True, kw_only=True):
    """Where they go. Region and credentials are found as the AWS tools find them."""

    stream: Annotated[str, Meta(min_length=1, max_length=2_048)]
    region: str | None = None
    endpoint_url: str | None = None
    shards: Count | None = None
    """Keep to what so many shards take; as fast as it can where it is missing."""
    in_flight: Annotated[int, Meta(ge=1, le=256)] = 8
    max_record_bytes: Annotated[int, Meta(ge=1, le=10 << 20)] = 1 << 20
    timeout_s: Seconds = 10.0


class EventsSection(Section, frozen=True, kw_only=True):
    """What an event looks like."""

    form: Literal["envelope", "flat"] = "envelope"
    partition_key: str | None = None
    """A template such as '{schema}.{table}.{id}'; the primary key where it is missing."""
    split_key_changes: bool = False
    markers: bool = False


class KafkaPlace(Section, frozen=True, kw_only=True):
    """A topic."""

    topic: str
    brokers: str
    settings: dict[str, Secret] = msgspec.field(default_factory=dict)
    """By librdkafka's names, such as those of TLS and SASL."""


class DeadLetterSection(Section, frozen=True, kw_only=True):
    """Where records go that the stream does not take: one of these."""

    directory: str | None = None
    table: str | None = None
    kafka: KafkaPlace | None = None

    def __post_init__(self) -> None:
        only_key(self)

    @property
    def place(self) -> str:
        """As it is told to people."""
        if self.kafka is not None:
            return f"topic {self.kafka.topic}"
        return f"directory {self.directory}" if self.table is None else f"table {self.table}"


class EpochSection(Section, frozen=True, kw_only=True):
    """The most that goes in one epoch."""

    rows: Annotated[int, Meta(ge=1, le=1_000_000)] = 50_000
    bytes: Annotated[int, Meta(ge=1 << 10, le=1 << 30)] = 32 << 20


class SpillSection(Section, frozen=True, kw_only=True):
    """Where large transactions are kept while they run."""

    directory: str | None = None
    """Where temporary files go unless told."""
    bytes: Annotated[int, Meta(ge=1 << 20)] = MAX_DISK
    """Of all of them together."""


class LeadershipSection(Section, frozen=True, kw_only=True):
    """Who publishes, of several instances."""

    name: Name | None = None
    """The slot's, where it is missing."""
    lease_s: Annotated[float, Meta(ge=1, le=600)] = 10.0


class SparkSection(Section, frozen=True, kw_only=True):
    """Where the pipeline runs."""

    master: str = "local[2,4]"
    """With the number of tries of a task: a worker that was killed is replaced."""
    frozen_after_s: Annotated[float, Meta(ge=2, le=3_600)] = 60.0
    """A Python process of Spark that stands still for so long is killed."""
    settings: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def frozen_after(self) -> str:
        """As an option of the source and the sink."""
        return f"{round(self.frozen_after_s * 1_000)}ms"

    def __post_init__(self) -> None:
        try:
            check_master(self.master)
        except OptionError as error:
            # As a fault of the file, which is told with its place.
            raise ValueError(str(error)) from None


class CdcConfig(Section, frozen=True, kw_only=True):
    """The file."""

    postgres: PostgresSection
    kinesis: KinesisSection
    checkpoint: Annotated[str, Meta(min_length=1)]
    """A directory that all instances share, or each has for itself."""
    snapshot: Literal["initial", "never"] = "initial"
    """Whether the rows that are there come first, where the slot is made by us."""
    events: EventsSection = EventsSection()
    dead_letters: DeadLetterSection | None = None
    epochs: EpochSection = EpochSection()
    spill: SpillSection = SpillSection()
    leadership: LeadershipSection = LeadershipSection()
    spark: SparkSection = SparkSection()
    observe: str | None = None
    """HOST:PORT of /metrics, /healthz and /readyz."""

    @property
    def lease_name(self) -> str:
        """The name of the lease."""
        return self.leadership.name or self.postgres.slot

    def observed_at(self) -> tuple[str, int] | None:
        """Where the pages are to be."""
        if self.observe is None:
            return None
        host, _, port = self.observe.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65_535:
            raise OptionError(f"observe is HOST:PORT, such as 127.0.0.1:9464, not '{self.observe}'")
        return host.removeprefix("[").removesuffix("]"), int(port)

    def source_options(self, leadership: int) -> dict[str, str]:
        """For `postgres_wal`."""
        events, postgres = self.events, self.postgres
        options = {
            "dsn": postgres.url(),
            "slot": postgres.slot,
            "publications": postgres.publication,
            "form": events.form,
            "splitKeyChanges": str(events.split_key_changes).lower(),
            "markers": str(events.markers).lower(),
            "maxRowsPerEpoch": str(self.epochs.rows),
            "maxBytesPerEpoch": str(self.epochs.bytes),
            "maxSpillBytes": str(self.spill.bytes),
            "idleEvery": f"{round(postgres.heartbeat_s * 1_000)}ms",
            "leadership": str(leadership),
            "frozenAfter": self.spark.frozen_after,
        }
        if events.partition_key is not None:
            options["partitionKey"] = events.partition_key
        if self.spill.directory is not None:
            options["spillDirectory"] = self.spill.directory
        return options

    def sink_options(self, leadership: int, figures: str | None = None) -> dict[str, str]:
        """For `kinesis`."""
        kinesis = self.kinesis
        options = {
            "stream": kinesis.stream,
            "inFlight": str(kinesis.in_flight),
            "maxRecordBytes": str(kinesis.max_record_bytes),
            "timeout": f"{round(kinesis.timeout_s * 1_000)}ms",
            "dsn": self.postgres.url(),
            "lease": self.lease_name,
            "leadership": str(leadership),
            "frozenAfter": self.spark.frozen_after,
        }
        given = {"region": kinesis.region, "endpointUrl": kinesis.endpoint_url, "shards": kinesis.shards}
        given["figuresTo"] = figures
        if self.dead_letters is not None:
            given |= {"deadLetterDirectory": self.dead_letters.directory, "deadLetterTable": self.dead_letters.table}
            if self.dead_letters.kafka is not None:
                given["deadLetterTopic"] = self.dead_letters.kafka.topic
                given["kafka.bootstrap.servers"] = self.dead_letters.kafka.brokers
                given |= {f"kafka.{name}": value.reveal() for name, value in self.dead_letters.kafka.settings.items()}
        return options | {name: str(value) for name, value in given.items() if value is not None}


def files_of(config: CdcConfig, beside: Path) -> CdcConfig:
    """The configuration with its directories' names taken from the directory of the configuration file.

    Whole: other processes, which are somewhere else, are told them too.
    """
    beside = beside.absolute()
    letters, spill = config.dead_letters, config.spill
    if letters is not None and letters.directory is not None:
        letters = msgspec.structs.replace(letters, directory=str(beside / letters.directory))
    if spill.directory is not None:
        spill = msgspec.structs.replace(spill, directory=str(beside / spill.directory))
    checkpoint = str(beside / config.checkpoint)
    return msgspec.structs.replace(config, checkpoint=checkpoint, dead_letters=letters, spill=spill)


def _table(given: str | TableSection) -> PublishedTable:
    section = given if isinstance(given, TableSection) else TableSection(table=given)
    schema, dot, name = section.table.partition(".")
    return PublishedTable(
        schema=schema if dot else "public", name=name if dot else schema, columns=section.columns, where=section.where
    )
