"""`strandline replay --dry-run`: reads a capture as a replay would, and prints what would be sent."""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from difflib import SequenceMatcher
from fractions import Fraction

from strandline.cli.escaping import escaped
from strandline.cli.line import ProgressLine
from strandline.cli.settings import START_WITHIN
from strandline.cli.signals import on_stop_request
from strandline.cli.told import is_empty, is_read
from strandline.clock import SystemClock
from strandline.counts import counted
from strandline.errors import MalformedHead
from strandline.kafka.partition import Partition
from strandline.kafka.starts import Committed, StartAt
from strandline.ordered import OrderedConsumer, Topic
from strandline.replay.plan import Plan
from strandline.replay.rehearsal import Rehearsal, Sample
from strandline.replay.timeline import AS_FAST_AS_POSSIBLE, date_of
from strandline.units import Nanos, nanos
from strandline.wire.head import Head
from strandline.wire.transactions import Cause

POLL_WITHIN = 0.2
BATCH_ROWS = 1_000
BUFFER_BYTES = 64 << 20
SECOND = Nanos(1_000_000_000)
TOP = 10
GROUPS_ONLY = {"group.id", "session.timeout.ms"}
# Whatever else a header says may be a secret.
SHOWN = {
    "accept",
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "transfer-encoding",
    "user-agent",
    "x-strandline-request",
}
OURS = {"content-encoding", "content-length", "host", "transfer-encoding", "x-strandline-request"}
HIDDEN = "***"
QUERY_VALUE = re.compile(r"=[^&\s]*")
USER = re.compile(r"//[^/@\s]*@")

clock = SystemClock()


def dry_run(plan: Plan, start: StartAt) -> None:
    """Read what the plan would replay, in no group, and print what would come of it."""
    settings = {n: v for n, v in plan.kafka.items() if isinstance(start, Committed) or n not in GROUPS_ONLY}
    is_stopped = False

    def stop() -> None:
        nonlocal is_stopped
        is_stopped = True

    with OrderedConsumer(
        settings,
        [Topic(plan.topic, start)],
        batch_rows=BATCH_ROWS,
        buffer_bytes=BUFFER_BYTES,
        start_within=START_WITHIN,
    ) as consumer:
        begin = consumer.partitions()
        owned = {Partition(plan.topic, number) for number in begin["partition"].to_pylist()}
        hint = why_nothing(plan, start, begin["start"].to_pylist(), begin["end"].to_pylist())
        rehearsal = Rehearsal(
            plan.transform,
            expire_after=nanos(plan.packet_timeout),
            partitions=len(owned),
            marks=plan.marks,
            until=plan.until if isinstance(plan.until, datetime) else None,
        )
        line = ProgressLine(clock)
        try:
            with on_stop_request(stop):
                while not (is_stopped or consumer.is_live or rehearsal.over == owned):
                    _feed(rehearsal, consumer, plan.topic)
                    line.show(
                        lambda: f"{counted(rehearsal.records, 'record')} read, {counted(rehearsal.requests, 'request')}"
                    )
            rehearsal.end()
            line.clear()
            if is_stopped:
                print("stopped half-way; of what was read until then:")
            for told in describe(rehearsal, plan, hint):
                print(escaped(told))
        finally:
            line.clear()
            rehearsal.close()


def _feed(rehearsal: Rehearsal, consumer: OrderedConsumer, topic: str) -> None:
    batch = consumer.poll(POLL_WITHIN)
    columns = (batch[name].to_pylist() for name in ("partition", "offset", "key", "value"))
    for number, offset, key, value in zip(*columns, strict=True):
        rehearsal.take(Partition(topic, number), offset, key, value)


def why_nothing(plan: Plan, start: StartAt, starts: Sequence[int], ends: Sequence[int]) -> str:
    """Why there is nothing to read, where partitions begin and end so; empty where there is something."""
    if not any(ends):
        return is_empty(plan.topic)
    if isinstance(start, Committed) and all(at >= end for at, end in zip(starts, ends, strict=True)):
        return is_read(plan.topic, plan.kafka["group.id"])
    return ""


def describe(found: Rehearsal, plan: Plan, hint: str) -> Iterator[str]:
    """What was found and what would come of it, line by line; with a hint, where there is no request."""
    yield from _labelled({"capture": f"{plan.topic}, {counted(found.records, 'record')}", "target": plan.target.url})
    if found.first is None:
        yield from _labelled({"requests": f"none; {hint}" if hint else "none"})
    else:
        yield from _labelled(_traffic(found, plan.speed, found.first))
    yield from _labelled(_left_out(found))
    for number, text in enumerate(plan.transform.describe()):
        yield from _labelled({"" if number else "rewritten": text})
    if found.sample is not None:
        yield from _shown_sample(found.sample)


def _traffic(found: Rehearsal, speed: Fraction, first: Nanos) -> dict[str, str]:
    span = found.last - first
    is_free = speed == AS_FAST_AS_POSSIBLE
    peak = found.exchanges.busiest(SECOND)
    rate = f"{counted(peak, 'request')} in the busiest second of the source"
    if not is_free and speed != 1:
        within = found.exchanges.busiest(Nanos(int(SECOND * speed)))
        rate = f"{counted(within, 'request')} in the busiest second ({peak:,} at the source)"
    at_once = counted(found.exchanges.most_at_once(), "request")
    connections = counted(found.openings.most_at_once(), "connection")
    takes = "as long as the target needs" if is_free else _duration(span * speed.denominator // speed.numerator)
    return {
        "connections": f"{found.connections:,}",
        "requests": f"{found.requests:,}, {found.request_bytes:,} bytes; answers {found.answer_bytes:,} bytes",
        "source time": f"{_time(first)} to {_time(found.last)}: {_duration(span)}",
        "would take": takes if is_free else f"{takes} at speed {speed}",
        "peak rate": rate,
        "peak load": f"{at_once} and {connections} at once, by the times of the source",
        "methods": ", ".join(f"{name} {count:,}" for name, count in found.methods.most_common(TOP)),
        "paths": ", ".join(f"{_target(name)} {count:,}" for name, count in found.paths.most_common(TOP)),
    }


def _left_out(found: Rehearsal) -> dict[str, str]:
    """What would not be sent, if there is such."""
    lines = {}
    at_end = found.unsent[Cause.END]
    if never := found.unsent.total() - at_end:
        lines["never whole"] = f"{counted(never, 'request')}, to be reported and not sent"
    if at_end:
        lines["half"] = f"{counted(at_end, 'request')} at the end of what was read, left for another time"
    if found.unreadable:
        what = counted(found.unreadable, "record")
        lines["unreadable"] = f"{what}, to the dead letters; the first: {found.first_unreadable}"
    return lines


def _shown_sample(sample: Sample) -> Iterator[str]:
    yield from _labelled({"example": sample.id})
    if sample.sent is None:
        yield from _labelled({"": f"it would fail: {sample.problem}"})
        return
    try:
        before, after = _lines(sample.captured), _lines(sample.sent)
    except MalformedHead as error:
        yield from _labelled({"": f"its head cannot be shown: {error}"})
        return
    matches = SequenceMatcher(None, [raw for _, raw in before], [raw for _, raw in after], autojunk=False)
    for kind, old_from, old_to, new_from, new_to in matches.get_opcodes():
        if kind == "equal":
            yield from (f"    {_shown(*line, SHOWN)}" for line in before[old_from:old_to])
        else:
            yield from (f"  - {_shown(*line, SHOWN)}" for line in before[old_from:old_to])
            yield from (f"  + {_shown(*line, OURS)}" for line in after[new_from:new_to])


def _lines(head: bytes) -> list[tuple[str, str]]:
    """The lines with their names, that of the first line empty."""
    parsed = Head(head)
    fields = ((name.decode("latin-1"), raw) for name, raw in parsed.lines)
    return [(name, raw.decode("latin-1").rstrip("\r\n")) for name, raw in (("", parsed.first_line), *fields)]


def _shown(name: str, line: str, shown: set[str]) -> str:
    if not name:
        return _target(line)
    return line if name.lower() in shown else f"{name}: {HIDDEN}"


def _target(text: str) -> str:
    """A request's target, or a line with one, without what may be a secret."""
    path, mark, query = USER.sub(f"//{HIDDEN}@", text).partition("?")
    return path + mark + QUERY_VALUE.sub(f"={HIDDEN}", query)


def _labelled(lines: Mapping[str, str]) -> Iterator[str]:
    return (f"{label:<12} {text}" for label, text in lines.items())


def _time(at: Nanos) -> str:
    date = date_of(Nanos(at // 1_000_000 * 1_000_000))
    # A capture may tell any time.
    return f"{at / 1e9:.3f} s" if date is None else f"{date.isoformat(timespec='milliseconds')[:-6]}Z"


def _duration(span: int) -> str:
    seconds = span / 1e9
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
