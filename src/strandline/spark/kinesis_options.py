"""The options of the sink `kinesis`, read once: an unknown or a wrong one is refused before anything is done."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from strandline.cdc.deadletter import DeadLetterPlace, Directory, KafkaTopic, PostgresTable
from strandline.cdc.limits import SendOptions
from strandline.errors import OptionError
from strandline.spark.options import KAFKA, count, known, span
from strandline.spark.supervised import OPTION as FROZEN
from strandline.spark.supervised import frozen_after_option

STREAM = ("stream", "region", "endpointUrl")
PACE = ("shards", "inFlight", "maxRequestBytes", "maxRecordBytes", "timeout")
PLACES = ("deadLetterDirectory", "deadLetterTopic", "deadLetterTable")
LEASE = ("lease", "leadership")
FIGURES = "figuresTo"
# Spark hands on what is meant for it.
SPARKS = {"checkpointlocation"}
OPTIONS = {name.lower(): name for name in (*STREAM, *PACE, *PLACES, *LEASE, "dsn", FIGURES, FROZEN)}


@dataclass(frozen=True, slots=True)
class LeaseOptions:
    """The lease that every request asks for."""

    dsn: str = field(repr=False)
    name: str
    leadership: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Where to send, how fast, where to put what the stream does not take, and by whose leave."""

    stream: str
    region: str | None
    endpoint_url: str | None
    sending: SendOptions
    place: tuple[str, str] | None
    """The option that names the dead-letter place, and its value."""
    kafka: tuple[tuple[str, str], ...] = field(repr=False)
    dsn: str | None = field(repr=False)
    lease: LeaseOptions | None
    figures: str | None
    """The socket, on the driver's machine, that is told what became of each epoch."""
    frozen_after: timedelta
    """A process that stands still for so long is killed."""

    @classmethod
    def parse(cls, raw: Mapping[str, str]) -> "SinkOptions":
        """Read the options; raises OptionError."""
        kafka = {name[len(KAFKA) :]: value for name, value in raw.items() if name.lower().startswith(KAFKA)}
        others = {n: v for n, v in raw.items() if not n.lower().startswith(KAFKA) and n.lower() not in SPARKS}
        options = known(others, OPTIONS)
        if "stream" not in options:
            raise OptionError("option 'stream' is missing: the name or the ARN of a stream of Kinesis")
        places = [(name, options[name.lower()]) for name in PLACES if name.lower() in options]
        if len(places) > 1:
            raise OptionError(f"options '{places[0][0]}' and '{places[1][0]}' exclude each other")
        place = places[0] if places else None
        if place is not None and place[0] == "deadLetterTopic" and "bootstrap.servers" not in kafka:
            raise OptionError("option 'deadLetterTopic' needs 'kafka.bootstrap.servers'")
        if place is not None and place[0] == "deadLetterTable" and "dsn" not in options:
            raise OptionError("option 'deadLetterTable' needs 'dsn', the connection string of its Postgres")
        return cls(
            stream=options["stream"],
            region=options.get("region"),
            endpoint_url=options.get("endpointurl"),
            sending=_sending(options),
            place=place,
            kafka=tuple(sorted(kafka.items())),
            dsn=options.get("dsn"),
            lease=_lease(options),
            figures=options.get(FIGURES.lower()),
            frozen_after=frozen_after_option(options),
        )

    def dead_letters(self) -> DeadLetterPlace | None:
        """Where they go, not yet opened."""
        match self.place:
            case ("deadLetterDirectory", path):
                return Directory(Path(path))
            case ("deadLetterTopic", topic):
                return KafkaTopic(dict(self.kafka), topic)
            case ("deadLetterTable", table):
                return PostgresTable(self.dsn or "", table)
        return None


def _sending(options: Mapping[str, str]) -> SendOptions:
    usual = SendOptions()
    return SendOptions(
        shards=count(options, "shards"),
        in_flight=count(options, "inFlight") or usual.in_flight,
        max_request_bytes=count(options, "maxRequestBytes") or usual.max_request_bytes,
        max_record_bytes=count(options, "maxRecordBytes") or usual.max_record_bytes,
        timeout=span(options, "timeout") or timedelta(seconds=10),
    )


def _lease(options: Mapping[str, str]) -> LeaseOptions | None:
    given = [name for name in LEASE if name in options]
    if not given:
        return None
    if missing := [name for name in (*LEASE, "dsn") if name not in options]:
        raise OptionError(f"option '{given[0]}' needs '{missing[0]}'")
    return LeaseOptions(options["dsn"], options["lease"], count(options, "leadership") or 0)
