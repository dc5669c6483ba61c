"""The sink `http_replay`: requests in the order of their times, sent by the replay engine in each task.

A task that is run again sends all its requests again, with the same names in the header X-Strandline-Request. Results
are lines of JSON as a replay writes them, in one file a task, which has its name when all tasks have ended.
"""

import asyncio
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from strandline.core.murmur import share_of
from strandline.errors import OptionError, TargetDown, TargetError
from strandline.replay.health import WhenDown
from strandline.replay.limits import Limits
from strandline.replay.selection import Chosen, Sending, head_of, request_head, send_chosen
from strandline.replay.target import Target
from strandline.units import Nanos
from strandline.wire.answers import Answer
from strandline.wire.head import BREAKS
from strandline.wire.transactions import ConnectionKey

FUNCTION = "strandline.spark.replay(df, target=...) sees to it"
OPTIONS = ("target", "speed", "reference", "begin", "partitions", "results", "whenDown", "downFor")
FAILED = "_failed"
"""The file that says why no task of a run can go on. Who reads the results passes over such a name."""
HEADERS = "map<string,array<string>>"
ANSWERED = {
    "status": "int",
    "headers": HEADERS,
    "body": "binary",
    "body_bytes": "bigint",
    "body_sha256": "string",
    "first_byte": "timestamp",
    "last_byte": "timestamp",
}
ANSWER = f"struct<{','.join(f'{name}:{kind}' for name, kind in ANSWERED.items())}>"
COLUMNS = [
    ("node", "string"),
    ("connection", "string"),
    ("time", "timestamp"),
    ("method", "string"),
    ("path", "string"),
    ("query", "string"),
    ("headers", HEADERS),
    ("body", "binary"),
    ("is_cut", "boolean"),
    ("response", ANSWER),
    ("partition", "int"),
    ("offset", "bigint"),
    ("ordinal", "int"),
    ("number", "bigint"),
]
MESSAGE = (
    "struct<method:string,target:string,status:int,complete:boolean,head:string,head_length:bigint,body:string,"
    "body_base64:string,length:bigint,sha256:string>"
)
RESULT = (
    "id string, connection string, node string, partition int, offset bigint, ordinal int, "
    "records array<array<bigint>>, record_count int, generation bigint, "
    f"source_request {MESSAGE}, source_response {MESSAGE}, target_request {MESSAGE}, "
    f"attempts array<struct<response:{MESSAGE},sent_us:bigint,first_byte_us:bigint,end_us:bigint,error:string>>, "
    "attempt_count int, source_time_us bigint, source_end_us bigint, due_us bigint, sent_us bigint, "
    "first_byte_us bigint, end_us bigint, lateness_us bigint, verdict string, same_body boolean, error string"
)
ROW_BITS = 33
"""Of the numbers that Spark gives to rows: above them is the partition."""


class HttpReplay(DataSource):
    """Takes what `strandline.spark.replay` prepares."""

    @classmethod
    def name(cls) -> str:
        return "http_replay"

    def writer(self, schema: StructType, overwrite: bool) -> "ReplayWriter":
        options = {name: self.options.get(name) for name in OPTIONS}
        if missing := [name for name, value in options.items() if value is None]:
            raise OptionError(f"option '{missing[0]}' of http_replay is missing; {FUNCTION}")
        if overwrite:
            raise OptionError("http_replay overwrites nothing: mode is 'append'")
        if found := [name for name, _ in COLUMNS if name not in schema.names]:
            raise OptionError(f"http_replay is given no column '{found[0]}'; {FUNCTION}")
        return ReplayWriter({name: str(value) for name, value in options.items()})


@dataclass
class Sent(WriterCommitMessage):
    """The file with the results of a task."""

    partition: int
    file: str


class ReplayWriter(DataSourceArrowWriter):
    """Sends in each task; on the driver gives the files of results their names."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of a partition; called by a task.

        Once a target could not be reached for too long, what Spark starts after that ends at once: it would wait anew.
        """
        options = self._options
        failed = Path(options["results"]) / FAILED
        if failed.exists():
            raise TargetError(failed.read_text())
        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        sending = Sending(
            target=Target(options["target"]),
            reference=Nanos(int(options["reference"])),
            begin=Nanos(int(options["begin"])),
            speed=Fraction(options["speed"]),
            when_down=WhenDown(options["whenDown"]),
            limits=Limits(down_for=timedelta(seconds=float(options["downFor"]))),
        )
        file = Path(options["results"]) / f".part-{partition:05d}-{secrets.token_hex(4)}"
        chosen = ordered(iterator, partition, int(options["partitions"]))
        try:
            with file.open("wb") as out:
                asyncio.run(send_chosen(chosen, sending, lambda result: _write_line(out, result)))
        except TargetError as error:
            fact = error.fact if isinstance(error, TargetDown) else str(error)
            failed.write_text(f"{fact}; there are no results")
            raise
        return Sent(partition, file.name)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All is sent."""
        directory = Path(self._options["results"])
        for message in messages:
            if isinstance(message, Sent):
                (directory / message.file).rename(directory / f"part-{message.partition:05d}.json")
        self._clean(directory)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002  (files tell more)
        """Something failed: what was sent was sent, and there are no results."""
        self._clean(Path(self._options["results"]))

    @staticmethod
    def _clean(directory: Path) -> None:
        for left in directory.glob(".part-*"):
            left.unlink(missing_ok=True)


def _write_line(out: Any, result: bytes) -> None:
    out.write(result + b"\n")


def ordered(batches: Iterator[pa.RecordBatch], partition: int, partitions: int) -> Iterator[Sequence[Chosen]]:
    """The requests of a partition. Raises OptionError where they are out of order or of another partition."""
    last = -(2**63)
    known: set[str] = set()
    for batch in batches:
        times = batch.column("time").cast(pa.int64()).to_pylist()
        found = []
        for row, at in zip(batch.to_pylist(maps_as_pydicts="strict"), times, strict=True):
            connection = row["connection"]
            if at < last:
                raise OptionError(f"http_replay is given rows out of order: they must rise by time; {FUNCTION}")
            if connection not in known:
                if share_of(connection, partitions) != partition:
                    raise OptionError(
                        f"http_replay is given rows of connection '{connection}' in partition {partition}, which "
                        f"belong to {share_of(connection, partitions)} of {partitions}; {FUNCTION}"
                    )
                known.add(connection)
            last = at
            found.append(_chosen(row, Nanos(at * 1000)))
        yield found


def _chosen(row: dict[str, Any], at: Nanos) -> Chosen:
    body = bytes(row["body"] or b"")
    headers = {"host": ["-"], **(row["headers"] or {})}
    try:
        head = request_head(row["method"], row["path"], row["query"], headers, body)
        answer = _answer(row["response"])
    except ValueError as error:
        raise OptionError(f"a request of connection '{row['connection']}' cannot be sent: {error}") from None
    own = row["offset"] is None or row["partition"] is None
    return Chosen(
        key=ConnectionKey(row["node"] or "", row["connection"]),
        at=at,
        method=row["method"].encode("latin-1"),
        head=head,
        body=body,
        answer=answer,
        partition=row["number"] >> ROW_BITS if own else row["partition"],
        offset=row["number"] & (1 << ROW_BITS) - 1 if own else row["offset"],
        ordinal=0 if own else row["ordinal"] or 0,
    )


def _answer(response: dict[str, Any] | None) -> Answer | None:
    """What the source answered, its body without chunks."""
    if response is None or response["status"] is None:
        return None
    body = bytes(response["body"] or b"")
    is_cut = response["body_sha256"] is not None
    # Of what was captured nothing is refused that is only shown.
    headers = {
        name: [BREAKS.sub(" ", value) for value in values] for name, values in (response["headers"] or {}).items()
    }
    first, last = (_nanos(response[name]) for name in ("first_byte", "last_byte"))
    return Answer(
        status=response["status"],
        head=head_of(f"HTTP/1.1 {response['status']} -", headers, body),
        body=body,
        length=response["body_bytes"] if is_cut else len(body),
        digest=response["body_sha256"],
        complete=True,
        began=first,
        ended=last,
    )


def _nanos(time: Any) -> Nanos:
    return Nanos(0 if time is None else round(time.timestamp() * 1_000_000) * 1000)
