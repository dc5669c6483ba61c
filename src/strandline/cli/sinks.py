"""Where records go: a terminal, lines of text or JSON, an Arrow stream, a directory of Parquet files."""

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from textwrap import indent
from types import TracebackType
from typing import Protocol, Self

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.highlighter import JSONHighlighter
from rich.text import Text

from strandline.cli.records import NULL, json_lines, pretty_json, records, shown, text_line
from strandline.errors import OptionError, OutputLost, StrandlineError, did_you_mean
from strandline.wire.gather import SCHEMA

FORMATS = ("text", "jsonl", "arrow", "parquet:DIR")
PARQUET = "parquet"
INDENT = Text("  ")
TERMINAL_ROWS = 200
LINE_ROWS = 5_000
ARROW_ROWS = 65_536
FILE_ROWS = 16 * ARROW_ROWS
GROUP_BYTES = 64 << 20
FILE_BYTES = 256 << 20


class Sink(Protocol):
    """Complete when its block is left; after an error, what is incomplete is not passed off as complete."""

    batch_rows: int
    """How many rows to bring at a time: a request to stop is heard between two batches."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows."""
        ...

    @property
    def is_settled(self) -> bool:
        """Whether all rows that it took are where they belong, so that they may be committed."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def sink_for(format_: str) -> Sink:
    """The sink that a format names, with its directory checked; raises OptionError."""
    name, colon, place = format_.partition(":")
    if name == PARQUET:
        if not place:
            raise OptionError("--format parquet needs a directory: parquet:DIR")
        return ParquetFiles(Path(place))
    if colon or name not in FORMATS:
        raise OptionError(f"format '{format_}' is unknown; {did_you_mean(format_, FORMATS)}")
    if sys.stdout is None:
        raise OutputLost("standard output is closed; --format parquet:DIR needs none")
    if name == "arrow":
        if sys.stdout.isatty():
            raise OptionError("--format arrow writes bytes that are not for a terminal; send them to a file or a pipe")
        return ArrowStream()
    if name == "jsonl":
        return Lines(json_lines)
    return Screen() if sys.stdout.isatty() else Lines(lambda batch: map(text_line, records(batch)))


class _Direct:
    """Standard output, which has the rows when `write` returns."""

    is_settled = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class Lines(_Direct):
    """One line a row."""

    batch_rows = LINE_ROWS

    def __init__(self, lines: Callable[[pa.RecordBatch], Iterable[str]]) -> None:
        self._lines = lines

    def write(self, batch: pa.RecordBatch) -> None:
        """Write lines, and flush."""
        # UTF-8 whatever the locale says: these lines are for programs.
        sys.stdout.buffer.write("".join(f"{line}\n" for line in self._lines(batch)).encode())
        sys.stdout.buffer.flush()


class Screen(_Direct):
    """For people: JSON over several lines and in colour."""

    batch_rows = TERMINAL_ROWS

    def __init__(self) -> None:
        self._console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        self._highlight = JSONHighlighter()

    def write(self, batch: pa.RecordBatch) -> None:
        """Write each record as a line on where it is, and its value below."""
        for record in records(batch):
            head = Text.assemble((record.time, "cyan"), " ", (record.place, "bold"), " ", _item(record.key))
            pretty = pretty_json(record.value)
            # Indented, so that no value can look like the line of another record.
            body = INDENT + _item(record.value) if pretty is None else self._highlight(indent(pretty, INDENT.plain))
            self._console.print(head, body, sep="\n")
        sys.stdout.flush()


def _item(data: bytes | None) -> Text:
    return Text(NULL, "dim italic") if data is None else Text(shown(data))


class ArrowStream(_Direct):
    """An Arrow IPC stream, valid also when there are no rows."""

    batch_rows = ARROW_ROWS

    def __enter__(self) -> Self:
        self._writer = pa.ipc.new_stream(sys.stdout.buffer, SCHEMA)
        return self

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch, and flush."""
        if batch.num_rows:
            self._writer.write_batch(batch)
            sys.stdout.buffer.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._writer.close()


class ParquetFiles:
    """Files `part-00000.parquet`, … of bounded size; each gets its name when it is complete and on disk."""

    batch_rows = ARROW_ROWS

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._waiting: list[pa.RecordBatch] = []
        self._writer: pq.ParquetWriter | None = None
        self._files = 0
        self._rows = self._bytes = 0
        try:
            if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
                raise OptionError(f"{directory} is not an empty directory; parquet:DIR takes a new or an empty one")
        except OSError as error:
            raise OptionError(f"{directory} cannot be read: {error.strerror}") from error

    @property
    def is_settled(self) -> bool:
        return not self._waiting and self._writer is None

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows; a row group, and then a file, is written when there are enough."""
        if not batch.num_rows:
            return
        self._waiting.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        is_full = self._rows + ARROW_ROWS > FILE_ROWS or self._bytes >= FILE_BYTES
        waiting_bytes = sum(waiting.nbytes for waiting in self._waiting)
        if is_full or sum(map(len, self._waiting)) >= ARROW_ROWS or waiting_bytes >= GROUP_BYTES:
            self._write_group()
        if is_full:
            self._complete()

    def __enter__(self) -> Self:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StrandlineError(f"{self._directory} cannot be made: {error.strerror}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._incomplete.unlink(missing_ok=True)
        elif self._waiting or self._writer is not None or not self._files:
            # Without a row there is a file too, so that whoever reads the directory finds the columns.
            if self._waiting or self._writer is None:
                self._write_group()
            self._complete()

    @property
    def _name(self) -> str:
        return f"part-{self._files:05}.parquet"

    @property
    def _incomplete(self) -> Path:
        # Spark, DuckDB and Arrow pass over names that begin with a dot.
        return self._directory / f".{self._name}.incomplete"

    def _write_group(self) -> None:
        group = pa.Table.from_batches(self._waiting, SCHEMA)
        try:
            if self._writer is None:
                self._writer = pq.ParquetWriter(self._incomplete, SCHEMA, compression="zstd")
            self._writer.write_table(group)
        except OSError as error:
            raise self._failure(error) from error
        self._waiting.clear()

    def _complete(self) -> None:
        try:
            if self._writer is not None:
                self._writer.close()
            _sync(self._incomplete)
            self._incomplete.rename(self._directory / self._name)
            _sync(self._directory)
        except OSError as error:
            raise self._failure(error) from error
        self._writer = None
        self._files += 1
        self._rows = self._bytes = 0

    def _failure(self, error: OSError) -> StrandlineError:
        return StrandlineError(f"{self._directory / self._name} cannot be written: {error.strerror or error}")


def _sync(path: Path) -> None:
    """Have the disk take what was written."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
