"""`strandline replay --workers N --master URL`: a fleet led from here, its progress and its summary."""

import asyncio
import signal
import sys
from collections.abc import Sequence
from datetime import timedelta

import msgspec
import uvloop
from prometheus_client import CollectorRegistry

from strandline.cli.line import ProgressLine
from strandline.cli.replay import observed
from strandline.cli.signals import once
from strandline.cli.told import check_answered, check_read, late_by, results_told, unreadable
from strandline.clock import SystemClock
from strandline.counts import counted
from strandline.errors import OptionError
from strandline.observe import Observed
from strandline.replay.fleet_metrics import FleetCollector
from strandline.replay.messages import Reference, Report
from strandline.replay.recipe import Recipe
from strandline.replay.roster import Roster, lateness, mismatches
from strandline.replay.status import NOT_BEGUN, Status
from strandline.replay.watch import STATUS
from strandline.spark.fleet import Fleet, FleetPlan

clock = SystemClock()


def run_fleet(
    recipe: Recipe,
    reference: Reference | None,
    *,
    workers: int | None,
    master: str | None,
    settings: Sequence[str],
    frozen_after: float,
    observe: str | None,
) -> None:
    """Run it to its end."""
    if workers is not None and workers < 1:
        raise OptionError(f"--workers is to be at least 1, not {workers}")
    if frozen_after <= 0:
        raise OptionError(f"--frozen-after is to be above 0, not {frozen_after:g}")
    plan = FleetPlan(
        recipe=recipe,
        reference=reference,
        workers=workers,
        master=master or ("local[*]" if workers is None else f"local[{workers}]"),
        options=_settings(settings),
        frozen_after=timedelta(seconds=frozen_after),
    )
    uvloop.run(_run(Fleet(plan), observe))


def _settings(pairs: Sequence[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.startswith("spark."):
            raise OptionError("--spark takes name=value, such as --spark spark.executor.memory=2g")
        found[name] = value
    return found


async def _run(fleet: Fleet, observe: str | None) -> None:
    loop = asyncio.get_running_loop()

    @once
    def stop() -> None:
        line.clear()
        within = fleet.ends_within.total_seconds()
        print(f"strandline: ending in good order, within {within:g} s; once more ends at once", file=sys.stderr)
        fleet.stop()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop)
    line = ProgressLine(clock)
    with observed(lambda host, port: _pages(fleet, host, port), observe):
        try:
            await fleet.run(lambda roster: line.show(lambda: progress(roster)))
        finally:
            line.clear()
            if fleet.roster is not None:
                for told in summary(fleet.roster):
                    print(told, file=sys.stderr)
    if fleet.roster is not None:
        figures = fleet.roster.figures
        topic = str(fleet.plan.recipe.rest["topic"])
        check_read(topic, figures.buried, figures.requests + figures.unsent + figures.half)
        check_answered(fleet.plan.recipe.target, figures.failed, figures.answered)


def _pages(fleet: Fleet, host: str, port: int) -> Observed:
    def status() -> Status:
        return NOT_BEGUN if fleet.roster is None else fleet.roster.status

    def not_ready() -> list[str]:
        members = [] if fleet.roster is None else fleet.roster.members
        return [] if any(member.owned for member in members) else ["no member has a partition"]

    registry = CollectorRegistry()
    registry.register(FleetCollector(lambda: fleet.roster))
    return Observed(host, port, registry, not_ready, {STATUS: lambda: msgspec.json.encode(status())})


def progress(roster: Roster) -> str:
    """What is going on."""
    status, figures = roster.status, roster.figures
    parts = [f"{len(roster.members)} of {counted(roster.workers, 'member')}", f"{figures.sent:,} sent"]
    if status.per_second is not None:
        parts.append(f"{status.per_second:,.0f} a second")
    if status.source_time is not None:
        parts.append(f"at {status.source_time:%Y-%m-%dT%H:%M:%SZ}")
    lags = [partition.lag for partition in status.partitions if partition.lag is not None]
    parts.append(f"{counted(sum(lags), 'record')} behind")
    parts += late_by(lateness(figures))
    parts.append(counted(mismatches(figures), "mismatch", "mismatches"))
    ages = [partition.oldest.age_s for partition in status.partitions if partition.oldest is not None]
    if ages:
        parts.append(f"oldest unfinished {max(ages):.1f} s")
    if status.clock not in {"runs", "has not begun"}:
        parts.append(status.clock)
    return "   ".join(parts)


def summary(roster: Roster) -> list[str]:
    """What became of it all, and the clocks."""
    figures = roster.figures
    parts = [
        f"{counted(figures.sent, 'request')} sent by {counted(roster.workers, 'member')}",
        *late_by(lateness(figures)),
        results_told(figures.verdicts),
    ]
    others = {
        "failed": figures.failed,
        "never whole": figures.unsent,
        "half at the end, not committed": figures.half,
        unreadable(figures.buried): figures.buried,
        f"{'member' if roster.restarts == 1 else 'members'} started anew": roster.restarts,
    }
    parts += [f"{count:,} {name}" for name, count in others.items() if count]
    return ["; ".join(parts), *(f"clocks: {line}" for line in clocks(roster.members))]


def clocks(members: Sequence[Report]) -> list[str]:
    """Hosts whose clock is not the driver's, as far as that can be told."""
    best: dict[str, Report] = {}
    for member in sorted(members, key=lambda told: told.doubt, reverse=True):
        if member.doubt:
            best[member.host] = member
    return [
        f"{host} is {abs(told.ahead) / 1e6:.1f} ms {'behind' if told.ahead > 0 else 'ahead of'} the driver "
        f"(to {told.doubt / 1e6:.1f} ms)"
        for host, told in sorted(best.items())
        if abs(told.ahead) > told.doubt
    ]
