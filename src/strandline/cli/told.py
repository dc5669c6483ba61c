"""What `strandline replay` says of a run: a line while it goes on, and what became of it at the end."""

from collections.abc import Mapping
from datetime import timedelta

from strandline.core.histogram import Histogram
from strandline.counts import counted
from strandline.errors import StrandlineError, TargetError
from strandline.replay.beginning import From
from strandline.replay.replay import Replay
from strandline.replay.timeline import date_of


def progress(run: Replay) -> str:
    """What is going on."""
    counters, engine = run.engine.counters, run.engine
    at = date_of(engine.timeline.shown())
    parts = [f"{counters.sent:,} sent", f"{engine.in_flight:,} on their way"]
    if at is not None:
        parts.append(f"at {at:%Y-%m-%dT%H:%M:%SZ}")
    parts += late_by(counters.lateness)
    if not run.member.progress.owned():
        parts.append(waiting(run.plan.session_timeout))
    return "   ".join([*parts, *(reason.value for reason in engine.leave.against)])


def waiting(session: timedelta) -> str:
    """Why nothing is sent while no partition is ours."""
    keeps = f"a member that was killed keeps its own for up to {session.total_seconds():g} s"
    return f"waiting for the group to assign partitions ({keeps})"


def summary(run: Replay) -> str:
    """What became of it all."""
    counters, verdicts = run.engine.counters, run.output.verdicts
    parts = [
        f"{counters.sent:,} of {counters.requests:,} requests sent",
        *late_by(counters.lateness),
        results_told(verdicts),
    ]
    others = {
        "failed": counters.failed,
        "never whole": counters.unsent,
        "half at the end, not committed": counters.half,
        unreadable(run.buried): run.buried,
    }
    parts += [f"{count:,} {name}" for name, count in others.items() if count]
    if not (counters.requests or verdicts or run.buried):
        parts += why_nothing(run)
    return "; ".join(parts)


def unreadable(count: int) -> str:
    """What so many records are that went to the dead letters."""
    return "record that cannot be read" if count == 1 else "records that cannot be read"


def why_nothing(run: Replay) -> list[str]:
    """Why there was no request, as far as it is known: what was not read may hold any number of them."""
    group, topic = run.plan.kafka["group.id"], run.plan.topic
    if not run.was_assigned:
        return [f"the group '{group}' had assigned no partition of '{topic}' by then; what is left was not looked at"]
    if not run.has_read_all:
        return []
    if run.is_topic_empty:
        return [is_empty(topic)]
    return [is_read(topic, group)] if run.plan.start is From.COMMITTED else []


def is_empty(topic: str) -> str:
    """Nothing was ever written to a topic."""
    return f"'{topic}' is empty"


def is_read(topic: str, group: object) -> str:
    """A group has been through all that a topic has."""
    return f"nothing is left for the group '{group}' in '{topic}'; --from earliest begins anew"


def check_answered(url: str, failed: int, answered: int) -> None:
    """Raise where requests failed and none was answered: a program is to know that nothing was replayed."""
    if failed and not answered:
        raise TargetError(f"{url}: no request got an answer, and {failed:,} failed; the results say why")


def check_read(topic: str, buried: int, requests: int) -> None:
    """Raise where records could not be read and no request was found: the topic may be no capture at all."""
    if buried and not requests:
        what = counted(buried, "record is", "records are")
        raise StrandlineError(f"'{topic}': no request was found, and {what} no captured traffic")


def late_by(late: Histogram) -> list[str]:
    """How late requests were sent; nothing where none was."""
    return [f"late by {late.quantile(0.5) / 1e6:.1f} ms, p99 {late.quantile(0.99) / 1e6:.1f} ms"] if late.count else []


def results_told(verdicts: Mapping[str, int]) -> str:
    """How many results there are of each verdict."""
    told = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in sorted(verdicts.items()))
    return f"results: {told or 'none'}"
