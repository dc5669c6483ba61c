"""Gates: `mismatch>1%,lateness.p99>20ms`, read once, and what the report has found for each.

A gate names what must not be: where it is true, the report fails.
"""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from strandline.errors import OptionError, did_you_mean
from strandline.report.summary import Gate, Summary, Verdict
from strandline.report.verdicts import MISMATCHES

RULE = re.compile(r"\s*(?P<name>[\w.]+)\s*(?P<sign>>=|<=|>|<)\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>%|us|ms|s)?\s*")
SIGNS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
MICROS = {"us": 1.0, "ms": 1e3, "s": 1e6}


class Measure(Enum):
    """What a figure counts in."""

    SHARE = "a share such as 1%, or a count"
    TIME = "a time such as 20ms"
    NUMBER = "a plain number"


def _verdicts(*wanted: Verdict) -> Callable[[Summary], float]:
    return lambda summary: sum(summary.verdicts.get(verdict, 0) for verdict in wanted)


FIGURES: Mapping[str, tuple[Measure, Callable[[Summary], float | None]]] = {
    "mismatch": (Measure.SHARE, _verdicts(*MISMATCHES)),
    "failed": (Measure.SHARE, _verdicts(Verdict.FAILED)),
    "status": (Measure.SHARE, _verdicts(Verdict.STATUS_DIFFERS)),
    "headers": (Measure.SHARE, _verdicts(Verdict.HEADERS_DIFFER)),
    "body": (Measure.SHARE, _verdicts(Verdict.BODY_DIFFERS)),
    "slower": (Measure.SHARE, _verdicts(Verdict.SLOWER)),
    "no_source": (Measure.SHARE, _verdicts(Verdict.NO_SOURCE)),
    "malformed": (Measure.NUMBER, lambda summary: summary.malformed),
    "exchanges": (Measure.NUMBER, lambda summary: summary.exchanges),
    "differences": (Measure.NUMBER, lambda summary: len(summary.differences) + summary.left_out),
    "regressions": (Measure.NUMBER, lambda summary: sum(endpoint.regressed for endpoint in summary.endpoints)),
    "lateness.p50": (Measure.TIME, lambda summary: summary.fidelity.late_p50_us),
    "lateness.p99": (Measure.TIME, lambda summary: summary.fidelity.late_p99_us),
    "lateness.max": (Measure.TIME, lambda summary: summary.fidelity.late_max_us),
    "drift": (Measure.TIME, lambda summary: summary.fidelity.drift_us_per_s),
    "order": (Measure.NUMBER, lambda summary: summary.fidelity.order_violations),
    "reuse": (Measure.NUMBER, lambda summary: summary.fidelity.reuse),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """One gate as the user has set it."""

    rule: str
    name: str
    sign: str
    limit: float
    """In microseconds, as a part of one, or as it is."""
    is_share: bool

    def check(self, summary: Summary) -> Gate:
        """Whether the report passes. What was not measured passes no gate."""
        measure, figure = FIGURES[self.name]
        found = figure(summary)
        if found is not None and self.is_share:
            found = found / summary.exchanges if summary.exchanges else None
        is_hit = found is None or SIGNS[self.sign](found, self.limit)
        return Gate(rule=self.rule, found=_shown(found, measure, is_share=self.is_share), passed=not is_hit)


def parse_gates(text: str) -> list[Threshold]:
    """Read gates with commas between, none in an empty text; OptionError tells what is wrong."""
    parts = [part for part in text.split(",") if part.strip()]
    if text.strip() and not parts:
        raise OptionError(f"'{text}' holds no gate; write them like mismatch>1%,lateness.p99>20ms")
    return [_parse(part) for part in parts]


def _parse(text: str) -> Threshold:
    rule = text.strip()
    found = RULE.fullmatch(text)
    if found is None:
        raise OptionError(f"'{rule}' is no gate; write it like mismatch>1% or lateness.p99>20ms")
    name, unit = found["name"], found["unit"]
    if name not in FIGURES:
        raise OptionError(f"gate '{rule}': '{name}' is unknown; {did_you_mean(name, FIGURES)}")
    measure = FIGURES[name][0]
    fits = {Measure.SHARE: unit in {None, "%"}, Measure.TIME: unit in MICROS, Measure.NUMBER: unit is None}
    if not fits[measure]:
        raise OptionError(f"gate '{rule}': {name} takes {measure.value}")
    scale = 0.01 if unit == "%" else MICROS.get(unit or "", 1.0)
    return Threshold(
        rule=rule, name=name, sign=found["sign"], limit=float(found["number"]) * scale, is_share=unit == "%"
    )


def _shown(found: float | None, measure: Measure, *, is_share: bool) -> str:
    if found is None:
        return "not measured"
    if is_share:
        return f"{found:.2%}"
    return f"{found / 1000:,.2f} ms" if measure is Measure.TIME else f"{found:,g}"
