"""`strandline tail`: records of Kafka topics, in the order of their time, on the screen or for other programs."""

import logging
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import pyarrow as pa
from cyclopts import Parameter

from strandline.cli.line import ProgressLine
from strandline.cli.output import discard_output
from strandline.cli.progress import progress_line, summary
from strandline.cli.settings import START_WITHIN, kafka_settings
from strandline.cli.signals import on_stop_signal
from strandline.cli.sinks import Sink, sink_for
from strandline.clock import SystemClock
from strandline.errors import OptionError, OutputClosed, OutputLost, StrandlineError
from strandline.kafka.words import GROUP_STARTS, cutoff, parse_end, parse_start
from strandline.ordered import Committed, Loss, OrderedConsumer, Topic
from strandline.ordered.where import Where
from strandline.units import Nanos

# How soon a request to stop is heard.
POLL_WITHIN = 0.2
SEARCH_ROWS = 5_000
COMMIT_EVERY = Nanos(1_000_000_000)

clock = SystemClock()


def tail(
    *topics: str,
    start: Annotated[str, Parameter(name="--from", allow_leading_hyphen=True)] = "earliest",
    until: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    follow: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    where: Annotated[tuple[str, ...], Parameter(negative="", show_default=False, allow_leading_hyphen=True)] = (),
    output: Annotated[str, Parameter(name="--format")] = "text",
    kafka: str | None = None,
    kafka_config: Path | None = None,
    settings: Annotated[tuple[str, ...], Parameter(name="--set", negative="", show_default=False)] = (),
    group: str | None = None,
    commit: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    on_corrupt: Literal["error", "skip"] = "error",
) -> None:
    """Print records of Kafka topics in the order of their time, across all partitions.

    Parameters
    ----------
    topics
        The topics to read, as one stream.
    start
        Where to begin: `earliest` (also with --follow), `latest`, `committed` (by --group; where it has committed
        nothing, earliest), a span back from now such as -90s, -15m, -1h or -2d, or a time with its zone such as
        2026-01-01T00:00:00Z.
    until
        Where to end: `live` (the default: the end of each partition as it is at the start; also `latest` and `now`), or
        before a time or a span back from now, as for --from. A record counts as no earlier than those before it in its
        partition, so each partition ends before its first record at or after that time; a time more than an hour ahead
        of now does not count. Ends at live at the latest.
    follow
        Go on with what comes after that, until Ctrl-C. Without it, Ctrl-C before the end is told, and ends with 1.
    where
        Keep only records for which this holds; all must hold if given several times. key=TEXT, value=TEXT,
        header.NAME=TEXT (the whole of it), key~REGEX, value~REGEX, header.NAME~REGEX (found anywhere in it; RE2
        syntax), partition=NUMBER.
    output
        text: on a terminal each record with its value below, JSON indented and in colour; in a pipe one line a record,
        with tabs between time, topic/partition@offset, key and value. Control characters are escaped, so are bytes
        that are not UTF-8 (as \\xff); no key or value is NULL. Not shown: headers.

        jsonl: one JSON object a line: time, topic, partition, offset, key, value, headers (a list of key and value).
        Keys and values are strings, JSON in them is not parsed; what is not UTF-8 is {"base64": "..."}; null is null.

        arrow: an Arrow IPC stream on standard output.

        parquet:DIR: files part-00000.parquet and so on in a new or empty directory. Each appears when it is complete:
        after a million rows or 256 MB, or at the end.
    kafka
        The brokers, host:port with commas between. Without it STRANDLINE_KAFKA from the environment, else
        127.0.0.1:9092.
    kafka_config
        A file with more settings by librdkafka's names, a line name=value each. The place for passwords: unlike
        options, other users do not see them.
    settings
        One more setting, name=value, over those of the file; may be repeated.
    group
        The consumer group whose commits --from committed and --commit are about. It must have no members.
    commit
        Commit for the group what has been printed, once it is written and flushed (with parquet: once its file is
        complete). Records that --where leaves out count as printed.
    on_corrupt
        What a damaged batch of records does: `error` ends the command, `skip` tells its offsets and goes on.
    """
    if not topics:
        raise OptionError("no topic to read: strandline tail TOPIC")
    if follow and until is not None:
        raise OptionError("--follow goes on until Ctrl-C; leave out --until")
    begin, end = parse_start(start, GROUP_STARTS), parse_end("live" if until is None else until)
    conditions = Where.parse(where)
    reach = kafka_settings(os.environ, kafka_config, settings, kafka, group)
    if (commit or isinstance(begin, Committed)) and not reach.get("group.id"):
        raise OptionError(f"{'--commit' if commit else '--from committed'} needs --group")
    if group is not None and not commit and not isinstance(begin, Committed):
        raise OptionError("--group is of no use without --from committed or --commit")
    sink = sink_for(output)
    stop, progress = _Stop(), ProgressLine(clock)

    def is_shown(record: logging.LogRecord) -> bool:
        """Losses are told below, once; what else is logged does not go into the line of progress."""
        progress.clear()
        return not isinstance(record.args, tuple) or not any(isinstance(each, Loss) for each in record.args)

    logging.getLogger("strandline.ordered.reading").addFilter(is_shown)
    try:
        with on_stop_signal(stop.ask):
            consumer = OrderedConsumer(
                reach,
                [Topic(name, begin) for name in topics],
                cutoff=cutoff(end, datetime.now(UTC)),
                # Of what is looked through little is printed, so that more may come at a time.
                batch_rows=max(sink.batch_rows, SEARCH_ROWS) if where else sink.batch_rows,
                on_corrupt=on_corrupt,
                start_within=START_WITHIN,
            )
            with consumer:
                stop.is_at_once = False
                _check_partitions(conditions, consumer)
                is_whole = _Copy(consumer, conditions, sink, progress, follow=follow, commit=commit).run(stop)
    except _StoppedAtOnce:
        if not follow:
            raise StrandlineError("interrupted before anything was read") from None
    else:
        if not is_whole:
            sys.exit(1)


def _check_partitions(where: Where, consumer: OrderedConsumer) -> None:
    """Refuse conditions on partitions that no topic has."""
    numbers = consumer.partitions()["partition"].to_pylist()
    for number in where.partitions - set(numbers):
        raise OptionError(f"--where partition={number}: there is no such partition; the highest is {max(numbers)}")


class _Stop:
    """Ends the command in good order; at once while there is nothing to end yet, and when asked again."""

    def __init__(self) -> None:
        self.is_asked = False
        self.is_at_once = True

    def ask(self) -> None:
        """To be called by a signal."""
        if self.is_asked:
            # Maybe we wait, for ever, for somebody to read our output.
            raise OutputLost("interrupted")
        self.is_asked = True
        if self.is_at_once:
            raise _StoppedAtOnce


class _StoppedAtOnce(BaseException):
    """Not an error of the start, and not to be taken for one."""


class _Copy:
    """From the consumer to the sink, with what is told about it."""

    def __init__(
        self,
        consumer: OrderedConsumer,
        where: Where,
        sink: Sink,
        progress: ProgressLine,
        *,
        follow: bool,
        commit: bool,
    ) -> None:
        self._consumer = consumer
        self._where = where
        self._sink = sink
        self._follow = follow
        self._commits = commit
        self._begin = clock.monotonic()
        self._progress = progress
        self._read = self._kept = self._committed = self._told = 0
        self._committed_at = self._begin
        self._reached: int | None = None

    def run(self, stop: _Stop) -> bool:
        """Until the end, or until asked to stop, or until whoever reads has seen enough, as `head` has.

        Whether it was not stopped.
        """
        try:
            with self._sink:
                while not stop.is_asked and (self._follow or not self._consumer.is_live):
                    self._step()
            self._commit()
        except OutputClosed:
            self._progress.clear()
            discard_output()
            return True
        except BaseException:
            self._tell_end(is_whole=False)
            raise
        is_whole = self._follow or self._consumer.is_live
        self._tell_end(is_whole=is_whole)
        return is_whole

    def _step(self) -> None:
        batch = self._consumer.poll(POLL_WITHIN)
        if batch.num_rows:
            kept = self._where.keep(batch)
            if kept.num_rows:
                self._progress.clear()
                self._sink.write(kept)
            self._reached = batch["timestamp"].cast(pa.int64())[-1].as_py()
            self._read += batch.num_rows
            self._kept += kept.num_rows
        if clock.monotonic() - self._committed_at >= COMMIT_EVERY:
            self._commit()
        self._tell_losses()
        if not self._consumer.is_live:
            self._progress.show(self._line)

    def _line(self) -> str:
        return progress_line(self._read, self._seconds(), self._reached, self._consumer.partitions())

    def _commit(self) -> None:
        if self._commits and self._read > self._committed and self._sink.is_settled:
            self._consumer.commit()
            self._committed = self._read
            self._committed_at = clock.monotonic()

    def _tell_end(self, *, is_whole: bool = True) -> None:
        self._progress.clear()
        self._tell_losses()
        _say(summary(self._read, self._kept, self._seconds(), self._told, is_whole=is_whole))

    def _tell_losses(self) -> None:
        losses = self._consumer.losses
        for loss in losses[self._told :]:
            self._progress.clear()
            _say(str(loss))
        self._told = len(losses)

    def _seconds(self) -> float:
        return (clock.monotonic() - self._begin) / 1e9


def _say(line: str) -> None:
    print(f"strandline: {line}", file=sys.stderr, flush=True)
