"""`strandline import`: traffic that other tools captured, to the topic that `strandline capture` writes."""

import gzip
import io
import os
import re
import secrets
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from cyclopts import Parameter

from strandline.capture.imports.gor import HEADER, Gor
from strandline.capture.imports.har import read_har
from strandline.capture.imports.items import Broken, Item, LeftOut, Readable, Record, shifted
from strandline.capture.imports.lines import read_lines
from strandline.capture.imports.order import Mending, in_order
from strandline.cli.delivery import Delivery
from strandline.cli.line import ProgressLine
from strandline.cli.settings import kafka_settings
from strandline.cli.signals import on_stop_request
from strandline.clock import SystemClock
from strandline.counts import counted
from strandline.errors import CannotImport, OptionError, StrandlineError
from strandline.kafka.starts import TOPIC_NAME, Ago, AtTime
from strandline.kafka.words import parse_moment
from strandline.units import Nanos, nanos
from strandline.wire.traffic import TOPIC

GZIP = b"\x1f\x8b"
PEEK = 4096
EXPORTED = re.compile(rb"(?:[^\s|]*\|)?[A-Za-z0-9+/]{4,}={0,2}")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MOST_PARTITIONS = 10_000

clock = SystemClock()

Format = Literal["har", "gor", "base64"]


def import_(
    *files: Path,
    topic: str = TOPIC,
    rekey: str | None = None,
    format_: Annotated[Literal["auto", "har", "gor", "base64"], Parameter(name="--format")] = "auto",
    on_error: Literal["stop", "skip"] = "stop",
    at: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    partitions: int | None = None,
    node_id: str | None = None,
    kafka: str | None = None,
    kafka_config: Path | None = None,
    settings: Annotated[tuple[str, ...], Parameter(name="--set", negative="", show_default=False)] = (),
) -> None:
    """Write traffic that other tools captured to a Kafka topic.

    Parameters
    ----------
    files
        What to read, one after the other.
    topic
        Where it goes; created when it is missing, to keep records for ever.
    rekey
        Read this topic instead of files, up to its end as it is now, and write every connection to one partition and
        in order. For captures whose keys are connectionId.index.
    format_
        har, gor or base64. auto: as each file looks.
    on_error
        What to do about something that cannot be read: stop, or skip it, with a line about each, and count it.
    at
        Shift all times alike, so that the first record begins at this one: now, a span back from now such as -1h, or a
        time with its zone such as 2026-01-01T00:00:00Z.
    partitions
        How many partitions a new topic gets; 4 unless told.
    node_id
        The node that the connections of HAR and .gor files are said to be of; a name of its own for every run unless
        told. Records of base64 files and topics keep theirs.
    kafka
        The brokers, host:port with commas between. Without it STRANDLINE_KAFKA from the environment, else
        127.0.0.1:9092.
    kafka_config
        A file with more settings by librdkafka's names, a line name=value each. The place for passwords: unlike
        options, other users do not see them.
    settings
        One more setting, name=value, over those of the file; may be repeated.
    """
    if bool(files) == bool(rekey):
        raise OptionError("name the files to import, or a topic by --rekey, and not both")
    for name in (topic, rekey):
        if name is not None and not TOPIC_NAME.fullmatch(name):
            raise OptionError(f"'{name}' is not the name of a topic")
    if rekey == topic:
        raise OptionError(f"--rekey writes to another topic; name a new one, not '{topic}', by --topic")
    if rekey is not None and (format_ != "auto" or node_id is not None):
        raise OptionError("--format and --node-id are about files, and --rekey reads a topic")
    if partitions is not None and not 1 <= partitions <= MOST_PARTITIONS:
        raise OptionError(f"--partitions takes 1 to {MOST_PARTITIONS:,}, not {partitions}")
    if len(set(files)) < len(files):
        raise OptionError("a file is named twice")
    begin = None if at is None else _moment(at)
    formats = {file: _format(file, format_) for file in files}
    reach = kafka_settings(os.environ, kafka_config, settings, kafka, None)
    job = _Job(is_strict=on_error == "stop", begin=begin)
    with on_stop_request(job.stop):
        scattered = None
        if rekey is not None:
            from strandline.cli.rekey import Scattered  # noqa: PLC0415  (loads all that reads a log in order)

            scattered = Scattered(reach, rekey)
            # Before the new topic is made.
            scattered.check()
        with Delivery(reach, topic, partitions) as delivery:
            if scattered is not None:
                job.run_in_order(scattered.read, delivery)
            else:
                job.run_files(formats, node_id or f"import-{secrets.token_hex(4)}", delivery)
            delivery.finish()
    job.tell(topic)


class _Job:
    """One run of the command: what is done with what the readers give, and what is told of it."""

    def __init__(self, *, is_strict: bool, begin: Nanos | None) -> None:
        self._is_strict = is_strict
        self._begin = begin
        self._shift = Nanos(0)
        self._is_stopped = False
        self._started = clock.monotonic()
        self._progress = ProgressLine(clock)
        self._mending = Mending()
        self._left_out = Counter[str]()
        self._connections = self._requests = self._records = self._bytes = self._broken = 0
        self._first: Nanos | None = None
        self._last = Nanos(0)

    def stop(self) -> None:
        """To be called by a signal: in good order, and at once when asked again."""
        if self._is_stopped:
            raise StrandlineError("stopped at once; what was written last may not have arrived")
        self._is_stopped = True

    def run_files(self, formats: dict[Path, Format], node: str, delivery: Delivery) -> None:
        """Import files: those of GoReplay as one, and after the others those of base64 as one."""
        gor = Gor(node)
        exports = [file for file, format_ in formats.items() if format_ == "base64"]
        for number, (file, format_) in enumerate(formats.items(), start=1):
            if format_ == "har":
                name = file.name if len(formats) == 1 else f"{file.name}-{number}"
                self._run(_reading(file, partial(read_har, node=node, name=name)), delivery)
            elif format_ == "gor":
                self._run(_reading(file, gor.read), delivery)
        self._run(gor.end(), delivery)
        if exports:
            self.run_in_order(lambda: (item for file in exports for item in _reading(file, read_lines)), delivery)

    def run_in_order(self, read: Callable[[], Iterable[Item]], delivery: Delivery) -> None:
        """Import records that may be in any order."""
        # What is only looked at, the first time, is not given to `_run`, and may take long too.
        self._run(in_order(lambda: self._heeding(read(), delivery), self._mending), delivery)

    def _heeding(self, items: Iterable[Item], delivery: Delivery) -> Iterator[Item]:
        for item in items:
            if self._is_stopped:
                delivery.finish()
                raise StrandlineError(
                    f"stopped; {counted(self._records, 'record was', 'records were')} written, and the rest was not"
                )
            self._progress.show(self._line)
            yield item

    def _run(self, items: Iterable[Item], delivery: Delivery) -> None:
        for item in self._heeding(items, delivery):
            match item:
                case Record():
                    self._write(item, delivery)
                case Broken(place, problem):
                    self._refuse(place, problem, delivery)
                case LeftOut(what):
                    self._left_out[what] += 1
        self._progress.clear()

    def _line(self) -> str:
        seconds = max(1, clock.monotonic() - self._started) / 1e9
        records = counted(self._records, "record")
        return f"{records}   {self._bytes:,} bytes   {self._records / seconds:,.0f} records a second"

    def _write(self, record: Record, delivery: Delivery) -> None:
        if self._begin is not None:
            if self._first is None:
                self._shift = Nanos(self._begin - record.first)
            record = shifted(record, self._shift)
        delivery.write(record.connection.name, record.value, record.stamp_ms, record.headers)
        self._first = record.first if self._first is None else min(self._first, record.first)
        self._last = max(self._last, record.last)
        self._connections += record.number == 1
        self._requests += record.requests
        self._records += 1
        self._bytes += len(record.value)

    def _refuse(self, place: str, problem: str, delivery: Delivery) -> None:
        self._progress.clear()
        if self._is_strict:
            delivery.finish()
            written = (
                f" ({counted(self._records, 'record before it was', 'records before it were')} written)"
                if self._records
                else ""
            )
            raise CannotImport(place, f"{problem}{written}; --on-error skip goes on without it")
        self._broken += 1
        _say(f"skipped: {place}: {problem}")

    def tell(self, topic: str) -> None:
        """The summary."""
        for gap in self._mending.shown:
            _say(str(gap))
        if self._mending.gaps > len(self._mending.shown):
            more = self._mending.gaps - len(self._mending.shown)
            _say(f"and {counted(more, 'more gap like this', 'more gaps like these')}")
        connections = self._connections + self._mending.without_start
        counts = ((connections, "connection"), (self._requests, "request"), (self._records, "record"))
        told = ", ".join(counted(count, what) for count, what in counts)
        span = "" if self._first is None else f"; {_shown(self._first)} to {_shown(self._last)}"
        _say(f"{told}, {self._bytes:,} bytes to '{topic}'{span}")
        for what, count in sorted(self._left_out.items()):
            _say(f"left out: {what}: {count:,}")
        if self._broken:
            _say(f"skipped, named above: {self._broken:,}")


def _shown(time: Nanos) -> str:
    return str(np.datetime_as_string(np.datetime64(time // 1_000_000, "ms"), timezone="UTC"))


def _moment(text: str) -> Nanos:
    now = datetime.now(UTC)
    if text == "now":
        return nanos(now - EPOCH)
    match parse_moment(text, "time", ["now"]):
        case AtTime(time):
            return nanos(time - EPOCH)
        case Ago(duration):
            return nanos(now - duration - EPOCH)


@contextmanager
def _opened(file: Path) -> Iterator[io.BufferedReader | gzip.GzipFile]:
    """A file, unpacked where it is packed; what goes wrong with it is told with its name."""
    try:
        with file.open("rb") as plain:
            if plain.peek(2).startswith(GZIP):
                with gzip.open(plain) as packed:
                    yield packed
            else:
                yield plain
    except EOFError:
        raise CannotImport(str(file), "the file is cut off: its gzip stream has no end") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise CannotImport(str(file), f"its gzip stream is damaged: {error}") from None
    except OSError as error:
        raise OptionError(f"{file}: cannot be read: {error.strerror or error}") from None


def _reading(file: Path, read: Callable[[Readable], Iterator[Item]]) -> Iterator[Item]:
    """What is in a file, with its name in the places of what is broken."""
    try:
        with _opened(file) as opened:
            for item in read(opened):
                if isinstance(item, Broken):
                    yield Broken(f"{file}, {item.place}" if item.place else str(file), item.problem)
                else:
                    yield item
    except CannotImport as error:
        yield Broken(error.place, error.problem)


def _format(file: Path, format_: Literal["auto", "har", "gor", "base64"]) -> Format:
    """As it is named, or as the file begins. Refuses what cannot be read before anything is written."""
    if file.exists() and not file.is_file():
        raise OptionError(f"{file}: is not a file, and what is imported may be read twice")
    with _opened(file) as opened:
        begin = opened.peek(PEEK).removeprefix(b"\xef\xbb\xbf").lstrip()
    if format_ != "auto":
        return format_
    if not begin:
        raise OptionError(f"{file}: is empty")
    if begin.startswith(b"{"):
        return "har"
    line = begin.partition(b"\n")[0][:PEEK].rstrip()
    if HEADER.fullmatch(line):
        return "gor"
    if EXPORTED.fullmatch(line):
        return "base64"
    raise OptionError(f"{file}: is neither a HAR nor a .gor file nor lines of base64 by its looks; name its --format")


def _say(line: str) -> None:
    print(f"strandline: {line}", file=sys.stderr, flush=True)
