"""`strandline report`: what a replay found, as tables, a summary and a page."""

import os
import sys
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from strandline.cli.escaping import escaped
from strandline.cli.settings import kafka_settings
from strandline.cli.signals import on_stop_request, once
from strandline.clock import SystemClock
from strandline.counts import counted
from strandline.errors import GateFailed, OptionError, StrandlineError
from strandline.report.directory import PAGE, SUMMARY, TABLES, held
from strandline.report.gates import parse_gates
from strandline.report.rules import load_rules
from strandline.report.summary import Summary, Verdict
from strandline.stalls import bytes_below
from strandline.wire.traffic import TOPIC

if TYPE_CHECKING:
    from strandline.spark.results import Results

SHOWN = 10
WIDEST_VALUE = 40
STOPPED = "stopped; there is no report"
SPARK = {
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "8",
    # A result may have nearly a megabyte.
    "spark.sql.execution.arrow.maxBytesPerBatch": "64m",
}

clock = SystemClock()


def report(
    *,
    results: str = f"{TOPIC}-results",
    baseline: str | None = None,
    out: Path = Path("report"),
    rules: Path | None = None,
    fail_on: str = "",
    start: Annotated[str, Parameter(name="--from", allow_leading_hyphen=True)] = "earliest",
    until: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    follow: Annotated[bool, Parameter(negative="")] = False,
    title: str = "Replay report",
    kafka: str | None = None,
    kafka_config: Path | None = None,
    settings: Annotated[tuple[str, ...], Parameter(name="--set", negative="", show_default=False)] = (),
    master: str = "local[*]",
) -> None:
    """Compare source and target, exchange by exchange.

    Parameters
    ----------
    results
        The results: a file of JSON lines, a directory of such files (*.jsonl, part-*.json), or else the name of a
        topic.
    baseline
        The results of a second run against the same target: what differs between the two is noise.
    out
        A directory for the report; what an earlier report wrote there is replaced.
    rules
        A YAML file that says what to leave out and how much may differ.
    fail_on
        Thresholds with commas between, such as mismatch>1%,lateness.p99>20ms; where one is true, the exit code is 1.
    start
        Which results of a topic count: `earliest` for all, a span back from now such as -1h, or from a time on such as
        2026-01-01T00:00:00Z.
    until
        Up to which time; without it, up to the last.
    follow
        Go on with results as they come, and make the report anew every half a minute, until Ctrl-C. A restart with the
        same --out goes on where it was.
    title
        What the report is called.
    kafka
        The brokers, host:port with commas between. Without it STRANDLINE_KAFKA from the environment, else
        127.0.0.1:9092.
    kafka_config
        A file with more settings by librdkafka's names, a line name=value each. The place for passwords.
    settings
        One more setting, name=value, over those of the file; may be repeated.
    master
        Where Spark runs: local[*] for this machine, or spark://…, yarn, k8s://… for a cluster whose workers can write
        to --out.
    """
    thresholds = tuple(parse_gates(fail_on))
    known = load_rules(rules)
    reach = kafka_settings(os.environ, kafka_config, settings, kafka, None)
    if follow and until is not None:
        raise OptionError("--follow goes on until Ctrl-C; leave out --until")
    if follow and (baseline is not None or Path(results).exists()):
        raise OptionError("--follow takes a topic for --results, and no --baseline")
    from strandline.spark.following import checked  # noqa: PLC0415  (Spark, only where all is well)
    from strandline.spark.following import follow as follow_results  # noqa: PLC0415
    from strandline.spark.report import Plan  # noqa: PLC0415
    from strandline.spark.report import report as make  # noqa: PLC0415
    from strandline.spark.session import stopped_by  # noqa: PLC0415

    plan = Plan(
        results=_results(results, reach, start, until),
        baseline=None if baseline is None else _results(baseline, reach, "earliest", None),
        out=out,
        rules=known,
        gates=thresholds,
        title=title,
    )
    began = time.monotonic()
    stopped = threading.Event()
    with held(out):
        if follow:
            checked(plan)
        with on_stop_request(once(stopped.set)), _spark(master) as spark:
            if stopped.is_set():
                raise StrandlineError(STOPPED)
            if follow:
                summary = follow_results(spark, plan, now_us=_now_us, is_stopped=stopped.is_set, say=_say)
            else:
                # What Spark works on is kept there.
                with stopped_by(stopped, spark.sparkContext, STOPPED, progress=lambda: bytes_below(out)):
                    summary = make(spark, plan, now_us=_now_us(), say=_say)
    show(summary, Console(highlight=False))
    made = f"{out / PAGE}, {out / SUMMARY} and {out / TABLES}"
    print(f"{made} written in {time.monotonic() - began:.0f} s")
    failed = [(gate.rule, gate.found) for gate in summary.gates if not gate.passed]
    if failed:
        raise GateFailed(failed)


def show(summary: Summary, console: Console) -> None:
    """The verdicts, the endpoints and differences that matter most, and the fidelity, on a few lines."""
    told = ", ".join(
        f"{summary.verdicts[verdict]:,} {verdict.value}" for verdict in Verdict if verdict in summary.verdicts
    )
    console.print(Text(f"{counted(summary.exchanges, 'exchange')} of {escaped(summary.origin)}: {told}"))
    beside = {"repeated": summary.repeats, "not results": summary.malformed}
    for what, count in beside.items():
        if count:
            console.print(f"records left out: {count:,} {what}")
    endpoints = [each for each in summary.endpoints if each.regressed or set(each.verdicts) != {Verdict.SAME}]
    if endpoints:
        table = _table("endpoint", "exchanges", "differ", "source p50", "target p50", "")
        for each in endpoints[:SHOWN]:
            differ = each.count - each.verdicts.get(Verdict.SAME, 0)
            times = [_ms(dict(curve).get(0.5)) for curve in (each.source, each.target)]
            slower = "slower" if each.regressed else ""
            table.add_row(Text(escaped(each.name)), f"{each.count:,}", f"{differ:,}", *times, slower)
        console.print(table)
    if summary.differences:
        table = _table("difference", "", "exchanges", "source", "target")
        for found in summary.differences[:SHOWN]:
            where = f"{found.kind.value} {found.path}".strip()
            values = [
                Text("-" if value is None else escaped(value)[:WIDEST_VALUE]) for value in (found.source, found.target)
            ]
            table.add_row(Text(escaped(found.endpoint)), Text(escaped(where)), f"{found.count:,}", *values)
        console.print(table)
    more = len(summary.differences) - SHOWN + summary.left_out
    if more > 0:
        console.print(f"and {counted(more, 'more difference')}")
    if summary.noise:
        console.print(f"left out as noise: {counted(len(summary.noise), 'place')}")
    kept = summary.fidelity
    late = "   ".join(
        f"{name} {_ms(value)}"
        for name, value in (("p50", kept.late_p50_us), ("p99", kept.late_p99_us), ("max", kept.late_max_us))
    )
    on = counted(kept.connections, "connection")
    console.print(f"late by {late}; {kept.order_violations:,} out of order on {on}")
    for gate in summary.gates:
        console.print(Text(f"{'passed' if gate.passed else 'FAILED'}  {gate.rule}  found {gate.found}"))


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        is_number = name in {"exchanges", "differ", "source p50", "target p50"}
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    return table


def _ms(micros: int | None) -> str:
    return "-" if micros is None else f"{micros / 1000:,.1f} ms"


def _spark(master: str) -> AbstractContextManager[Any]:
    from strandline.spark.session import opened  # noqa: PLC0415  (as above)

    _say("starting Spark")
    return opened("strandline report", master=master, options=SPARK)


def _results(text: str, reach: dict[str, str], start: str, until: str | None) -> "Results":
    """The results by their name, once they are known to be there."""
    from strandline.spark.results import FileResults, TopicResults  # noqa: PLC0415  (as above)

    found: Results
    if Path(text).exists():
        if (start, until) != ("earliest", None):
            raise OptionError(f"--from and --until are for a topic, and {text} is a file or a directory")
        found = FileResults(path=Path(text))
    elif os.sep in text or text.endswith(".jsonl"):
        raise OptionError(f"{text}: no such file or directory, and no name of a topic")
    else:
        if start == "committed":
            raise OptionError("--from takes no 'committed': a report is in no group; take earliest, or a time")
        found = TopicResults(topic=text, kafka=reach, start=start, end=until)
    found.check()
    return found


def _now_us() -> int:
    return clock.wall() // 1000


def _say(line: str) -> None:
    print(f"strandline: {line}", file=sys.stderr, flush=True)
