"""`strandline replay`: captured traffic sent to a target, in order and on time."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal

import uvloop
from cyclopts import App, Parameter

from strandline.cli.line import ProgressLine
from strandline.cli.settings import kafka_settings
from strandline.cli.signals import once
from strandline.cli.status import status
from strandline.cli.told import check_answered, check_read, progress, summary
from strandline.clock import SystemClock
from strandline.config import load
from strandline.core.pacing import Pace
from strandline.errors import OptionError, StrandlineError
from strandline.kafka.starts import AtTime, Committed, Earliest, Latest
from strandline.kafka.words import GROUP_STARTS, Live, cutoff, parse_end, parse_start
from strandline.observe import Observed
from strandline.replay.beginning import From
from strandline.replay.changes import TransformConfig
from strandline.replay.health import WhenDown
from strandline.replay.limits import Limits
from strandline.replay.messages import Reference, local
from strandline.replay.plan import Plan, Until
from strandline.replay.process import prepare_process
from strandline.replay.recipe import Recipe, read_authorities
from strandline.replay.replay import Replay
from strandline.replay.timeline import parse_speed
from strandline.replay.watch import Watch
from strandline.units import Nanos
from strandline.wire.traffic import TOPIC

GROUP = "strandline-replay"
LONGEST = 86_400 * 366
LOOPBACK = "127.0.0.1"
OBSERVE_PORT = 9464
MEBI = 1 << 20
SHOW_EVERY = 0.25
FROZEN_AFTER = 15.0

clock = SystemClock()
app = App(name="replay")
app.command(status)


@app.default
def replay(
    *,
    target: str,
    topic: str = TOPIC,
    speedup: str = "1",
    start: Annotated[str, Parameter(name="--from", allow_leading_hyphen=True)] = "committed",
    until: Annotated[str, Parameter(allow_leading_hyphen=True)] = "never",
    start_at: str | None = None,
    config: Path | None = None,
    retry: str | None = None,
    results: Path | None = None,
    tuples: Path | None = None,
    results_topic: str | None = None,
    dead_letter_topic: str | None = None,
    marker: Annotated[bool, Parameter(negative="--no-marker")] = True,
    when_down: Literal["pause", "fail"] = "pause",
    target_ca: Path | None = None,
    lookahead: float = 400.0,
    packet_timeout: float = 70.0,
    answer_timeout: float = 150.0,
    quiescence: float = 5.0,
    drain: float = 10.0,
    concurrency: int = 1024,
    memory: int = 256,
    kafka: str | None = None,
    kafka_config: Path | None = None,
    settings: Annotated[tuple[str, ...], Parameter(name="--set", negative="", show_default=False)] = (),
    group: str | None = None,
    observe: str | None = None,
    workers: int | None = None,
    master: str | None = None,
    spark: Annotated[tuple[str, ...], Parameter(name="--spark", negative="", show_default=False)] = (),
    frozen_after: float | None = None,
    rehearse: Annotated[bool, Parameter(name="--dry-run", negative="", show_default=False)] = False,
) -> None:
    """Send captured HTTP traffic to a target with its original order and timing.

    Parameters
    ----------
    target
        Where requests go, such as http://127.0.0.1:9200 or https://search.internal.
    topic
        The topic with the captured traffic.
    speedup
        Seconds of the source that pass in one second: 2, 0.5, 3/2; `max` sends as fast as the target answers.
    start
        Where to begin: `committed` (where the group is; where it has committed nothing, earliest), `earliest`,
        `latest`, a span back from now such as -1h, or a time with its zone such as 2026-01-01T00:00:00Z.
    until
        Where to end: `never` (go on with what is captured), `live` (all that there was at the start), or at a time of
        the source.
    start_at
        The reference of the clock, SOURCE@WALL: this time of the source is due at that time, such as
        2026-01-01T00:00:00Z@2026-01-02T09:00:00Z. Members that share it share one clock. Without it, the first request
        is due at once.
    config
        A YAML file with `transforms` and `auth`.
    retry
        A retry policy of your own, module:name.
    results
        A file to which every result is appended, a line of JSON each.
    tuples
        The same in the form of opensearch-migrations' replayer.
    results_topic
        The topic of the results. Without it, the topic's name with -results.
    dead_letter_topic
        The topic of records that cannot be read. Without it, the topic's name with -dead-letters.
    marker
        Whether requests carry X-Strandline-Request, by which the target can know repeats.
    when_down
        While the target cannot be reached, `pause` stops the clock; `fail` lets it run on, and requests fail.
    target_ca
        A file with the certificates of the authorities that the target's certificate may come from.
    lookahead
        How many seconds of the source are read ahead. Must exceed --packet-timeout.
    packet_timeout
        After how many seconds of the source without a sign of it a source connection is taken for gone.
    answer_timeout
        How many seconds the target has for an answer.
    quiescence
        How many seconds a connection rests that another member may have had open.
    drain
        How many seconds requests on their way have to end when the replay is stopped.
    concurrency
        How many requests are on their way at a time at most.
    memory
        How many MiB of requests are held in memory; beyond that they go to disk.
    kafka
        The brokers, host:port with commas between. Without it STRANDLINE_KAFKA from the environment, else
        127.0.0.1:9092.
    kafka_config
        A file with more settings by librdkafka's names, a line name=value each. The place for passwords.
    settings
        One more setting, name=value, over those of the file; may be repeated.
    group
        The consumer group, strandline-replay unless told otherwise. Members of one group share the work.
    observe
        HOST:PORT of the pages /metrics (for Prometheus), /healthz, /readyz, and /status, which `strandline replay
        status` asks. Without it 127.0.0.1:9464, or any free port where that one is taken.
    workers
        Replay with so many members, each in a task of Spark, that share one clock and the group's partitions. Without
        it, and with --master, as many as the master runs tasks at a time, at most one a partition. With neither, one
        member in this process, without Spark.
    master
        Where the members run, as Spark writes it: local[*], spark://HOST:7077, yarn, k8s://... Without it, and with
        --workers, this machine.
    spark
        A setting of Spark, name=value, such as spark.archives=env.tar.gz#env; may be repeated.
    frozen_after
        A member of a fleet that stood still for so many seconds is killed and started anew; 15 unless told.
    rehearse
        Send nothing and commit nothing: read the capture, as far as it goes now, and print what would be sent.
    """
    # Where a function or a policy that is named module:name is looked for too, as by `python -m`.
    sys.path.append(str(Path.cwd()))
    reach: dict[str, object] = {"group.id": GROUP, **kafka_settings(os.environ, kafka_config, settings, kafka, group)}
    recipe = Recipe(
        target=target,
        authorities=None if target_ca is None else read_authorities(target_ca),
        config=load(config, TransformConfig) if config is not None else None,
        retry=retry,
        rest={
            "kafka": reach,
            "topic": topic,
            "results_topic": results_topic or "",
            "dead_letters": dead_letter_topic or "",
            "results": results,
            "tuples": tuples,
            "start": _start(start),
            "until": _until(until),
            "speed": parse_speed(speedup),
            "lookahead": _seconds("--lookahead", lookahead),
            "packet_timeout": _seconds("--packet-timeout", packet_timeout),
            "drain": _seconds("--drain", drain),
            "when_down": WhenDown(when_down),
            "limits": Limits(
                concurrency=concurrency,
                memory=_mebibytes("--memory", memory),
                answer_within=_seconds("--answer-timeout", answer_timeout),
                quiescence=_seconds("--quiescence", quiescence),
            ),
            "marks": marker,
        },
    )
    reference = None if start_at is None else parse_reference(start_at)
    plan = recipe.plan(reference=None if reference is None else by_our_clock(reference, parse_speed(speedup)))
    if rehearse:
        from strandline.cli.dry_run import dry_run  # noqa: PLC0415  (loads all that reads a log in order)

        dry_run(plan, parse_start(start, GROUP_STARTS))
        return
    if workers is not None or master is not None:
        from strandline.cli.fleet import run_fleet  # noqa: PLC0415  (loads Spark)

        run_fleet(
            recipe,
            reference,
            workers=workers,
            master=master,
            settings=spark,
            frozen_after=FROZEN_AFTER if frozen_after is None else frozen_after,
            observe=observe,
        )
        return
    for option, is_given in (("--spark", bool(spark)), ("--frozen-after", frozen_after is not None)):
        if is_given:
            raise OptionError(f"{option} is for a replay by a fleet; give --workers or --master too")
    prepare_process()
    uvloop.run(_run(plan, observe))


async def _run(plan: Plan, observe: str | None) -> None:
    run = Replay(plan)
    watch = Watch(run)
    loop = asyncio.get_running_loop()
    stop = once(run.stop)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop)
    with observed(watch.pages, observe):
        showing = asyncio.ensure_future(_show(run, watch))
        try:
            await run.run()
        finally:
            showing.cancel()
            with suppress(asyncio.CancelledError):
                await showing
    print(summary(run), file=sys.stderr)
    counters = run.engine.counters
    check_read(plan.topic, run.buried, counters.requests + counters.unsent + counters.half)
    check_answered(plan.target.url, counters.failed, counters.answered)


def observed(pages_at: Callable[[str, int], Observed], observe: str | None) -> Observed:
    """The pages, where they were asked for, or else on the usual port or any free one; that is said."""
    if observe is not None:
        host, colon, port = observe.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65535:
            raise OptionError(f"--observe takes HOST:PORT, such as 127.0.0.1:9464, not '{observe}'")
        try:
            pages = pages_at(host, int(port))
        except StrandlineError as error:
            raise StrandlineError(f"--observe: {error}; port 0 takes any free one") from error
        taken = ""
    else:
        try:
            return pages_at(LOOPBACK, OBSERVE_PORT)
        except StrandlineError:
            pages = pages_at(LOOPBACK, 0)
            taken = f"port {OBSERVE_PORT} is taken; "
    print(f"strandline: {taken}status and metrics are at {pages.address}", file=sys.stderr, flush=True)
    return pages


async def _show(run: Replay, watch: Watch) -> None:
    line = ProgressLine(clock)
    try:
        while True:
            await asyncio.sleep(SHOW_EVERY)
            if run.is_running:
                watch.sample()
                line.show(lambda: progress(run))
    finally:
        line.clear()


def parse_reference(text: str) -> Reference:
    """Read SOURCE@WALL."""
    source, at, wall = text.partition("@")
    try:
        times = [datetime.fromisoformat(part) for part in (source, wall)]
    except ValueError:
        times = []
    if not at or len(times) != 2 or any(time.tzinfo is None for time in times):
        raise OptionError(f"--start-at takes SOURCE@WALL, two times with their zone and an @ between, not '{text}'")
    at_source, at_wall = (int(time.timestamp() * 1_000_000) * 1000 for time in times)
    return Reference(source=at_source, wall=at_wall)


def by_our_clock(reference: Reference, speed: Fraction) -> Pace:
    """A reference by the monotonic clock of this process."""
    return local(reference, speed, ahead=Nanos(0), wall=clock.wall(), monotonic=clock.monotonic())


def _start(text: str) -> From | datetime:
    now = datetime.now(UTC)
    match parse_start(text, GROUP_STARTS):
        case Committed():
            return From.COMMITTED
        case Earliest():
            return From.EARLIEST
        case Latest():
            return From.LATEST
        case AtTime(time):
            return time
        case ago:
            return now - ago.duration


def _until(text: str) -> Until | datetime:
    if text == "never":
        return Until.NEVER
    end = parse_end(text, ["never"])
    return Until.LIVE if isinstance(end, Live) else (cutoff(end, datetime.now(UTC)) or Until.LIVE)


def _mebibytes(option: str, count: int) -> int:
    if count < 1:
        raise OptionError(f"{option} is to be at least 1 (MiB), not {count}")
    return count * MEBI


def _seconds(option: str, seconds: float) -> timedelta:
    if not 0 <= seconds <= LONGEST:
        raise OptionError(f"{option} takes seconds, from 0 up to {LONGEST:,} (a year), not {seconds:g}")
    return timedelta(seconds=seconds)
