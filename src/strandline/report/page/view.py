"""What the page is fed with: a summary within bounds, its texts made visible, and a word on what is cut."""

from collections.abc import Sequence
from enum import Enum

import msgspec
from msgspec.structs import replace

from strandline.counts import counted
from strandline.report.page.text import line, message
from strandline.report.summary import Curve, Difference, Endpoint, Example, Gate, Moment, Noise, Summary, Verdict

ENDPOINTS = 1_000
DIFFERENCES = 500
NOISE = 500
EXAMPLES = 600
MOMENTS = 600
MESSAGE = 65_536
"""Characters of one request or answer, as long as there is room for all."""
MESSAGES = 4_000_000
"""Characters of all requests and answers together."""
_POINTS = 200
_POINTS_OF_ENDPOINT = 60
_TAIL = 20


class State(Enum):
    """The colour of the headline."""

    PASSED = "passed"
    FAILED = "failed"
    SAME = "same"
    DIFFERS = "differs"
    EMPTY = "empty"


class View(msgspec.Struct, frozen=True, kw_only=True):
    """All that the page draws. A page is brought up to date by feeding it another one."""

    state: State
    headline: str
    detail: str
    passed_over: Sequence[str]
    """The records that count for nothing, by the reason."""
    cut: Sequence[str]
    """What is not on the page, in sentences."""
    summary: Summary


def view(summary: Summary) -> View:
    """The view of a summary."""
    state, headline, detail = _headline(summary)
    shown, cut = _bounded(summary)
    passed_over = _passed_over(summary)
    return View(state=state, headline=headline, detail=detail, passed_over=passed_over, cut=cut, summary=shown)


def percent(part: int, whole: int) -> str:
    """A share with one decimal; never `100.0%` for less than all nor `0.0%` for more than nothing."""
    if part in {0, whole}:
        return "0%" if part == 0 else "100%"
    share = f"{100 * part / whole:.1f}%"
    return {"0.0%": "<0.1%", "100.0%": ">99.9%"}.get(share, share)


def _headline(summary: Summary) -> tuple[State, str, str]:
    total = summary.exchanges
    if not total:
        return State.EMPTY, "Nothing was compared", "There are no exchanges in these results."
    same = summary.verdicts.get(Verdict.SAME, 0)
    sentence = f"{same:,} of {total:,} exchanges are the same"
    slow = sum(endpoint.regressed for endpoint in summary.endpoints)
    slower = f" {counted(slow, 'endpoint has', 'endpoints have')} become slower." if slow else ""
    if summary.gates:
        missed = sum(not gate.passed for gate in summary.gates)
        gates = counted(len(summary.gates), "gate")
        detail = f"{sentence} ({percent(same, total)}).{slower}"
        if missed:
            return State.FAILED, f"Failed {missed} of {gates}", detail
        return State.PASSED, f"Passed {gates}", detail
    if same == total:
        all_of_them = "The one exchange is" if total == 1 else f"All {total:,} exchanges are"
        return State.SAME, f"{all_of_them} the same", f"No gates were set.{slower}"
    return State.DIFFERS, sentence, f"That is {percent(same, total)}.{slower} No gates were set."


def _passed_over(summary: Summary) -> list[str]:
    counts = ((summary.repeats, "repeated"), (summary.malformed, "no results"))
    return [f"{counted(count, 'record')} left out: {why}" for count, why in counts if count]


def _bounded(summary: Summary) -> tuple[Summary, list[str]]:
    moments, joined = _joined(summary.timeline)
    examples = list(summary.examples.values())[:EXAMPLES]
    room = min(MESSAGE, MESSAGES // (3 * max(1, len(examples))))
    shown = replace(
        summary,
        title=line(summary.title),
        origin=line(summary.origin),
        gates=[Gate(rule=line(gate.rule), found=line(gate.found), passed=gate.passed) for gate in summary.gates],
        timeline=moments,
        source=_thinned(summary.source, _POINTS),
        target=_thinned(summary.target, _POINTS),
        endpoints=[_endpoint(endpoint) for endpoint in summary.endpoints[:ENDPOINTS]],
        differences=[_difference(difference) for difference in summary.differences[:DIFFERENCES]],
        noise=[_noise(noise) for noise in summary.noise[:NOISE]],
        examples={line(example.id): _example(example, room) for example in examples},
    )
    long = sum(len(text or "") > room for e in examples for text in (e.request, e.source, e.target))
    more_differences = summary.left_out + len(summary.differences) - len(shown.differences)
    facts = [
        (more_differences, f"{more_differences:,} further places with differences are counted but not listed."),
        (
            len(summary.endpoints) - len(shown.endpoints),
            f"Of {len(summary.endpoints):,} endpoints the first {ENDPOINTS:,} are listed.",
        ),
        (len(summary.noise) - len(shown.noise), f"Of {len(summary.noise):,} noisy places {NOISE:,} are listed."),
        (
            len(summary.examples) - len(examples),
            f"Of {len(summary.examples):,} examples the first {EXAMPLES:,} can be opened.",
        ),
        (long, f"{long:,} requests and answers are cut after {room:,} characters; each says so."),
        (
            joined - 1,
            f"Each point of the timeline stands for {joined} stretches, with the worst lateness among them.",
        ),
    ]
    return shown, [sentence for missing, sentence in facts if missing]


def _endpoint(endpoint: Endpoint) -> Endpoint:
    return replace(
        endpoint,
        name=line(endpoint.name),
        source=_thinned(endpoint.source, _POINTS_OF_ENDPOINT),
        target=_thinned(endpoint.target, _POINTS_OF_ENDPOINT),
    )


def _difference(difference: Difference) -> Difference:
    return replace(
        difference,
        endpoint=line(difference.endpoint),
        path=line(difference.path),
        source=_optional(difference.source),
        target=_optional(difference.target),
        example=line(difference.example),
    )


def _noise(noise: Noise) -> Noise:
    return replace(noise, endpoint=line(noise.endpoint), path=line(noise.path), reason=line(noise.reason))


def _example(example: Example, room: int) -> Example:
    return replace(
        example,
        id=line(example.id),
        connection=line(example.connection),
        request=message(example.request, room),
        source=None if example.source is None else message(example.source, room),
        target=None if example.target is None else message(example.target, room),
        error=_optional(example.error),
    )


def _optional(text: str | None) -> str | None:
    return None if text is None else line(text)


def _thinned(curve: Curve, most: int) -> Curve:
    """At most so many points; the last ones, where the slow exchanges are, all stay."""
    if len(curve) <= most:
        return curve
    body, rest = curve[:-_TAIL], most - _TAIL
    return [*(body[i * len(body) // rest] for i in range(rest)), *curve[-_TAIL:]]


def _joined(moments: Sequence[Moment]) -> tuple[Sequence[Moment], int]:
    """At most `MOMENTS` of one length, and how many each is made of."""
    size = -(-len(moments) // MOMENTS) or 1
    if size == 1:
        return moments, 1
    groups = [moments[start : start + size] for start in range(0, len(moments), size)]
    return [_together(group) for group in groups], size


def _together(group: Sequence[Moment]) -> Moment:
    return Moment(
        start_us=group[0].start_us,
        sent=sum(moment.sent for moment in group),
        mismatches=sum(moment.mismatches for moment in group),
        late_p50_us=max((m.late_p50_us for m in group if m.late_p50_us is not None), default=None),
        late_p99_us=max((m.late_p99_us for m in group if m.late_p99_us is not None), default=None),
    )
