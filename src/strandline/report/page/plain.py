"""The report as plain tables, for a browser that runs no scripts."""

from collections.abc import Iterable, Sequence
from html import escape

from strandline.report.page.view import View, percent
from strandline.report.summary import Curve, Difference, Endpoint, Fidelity, Gate, Noise, Verdict

_MISSING = "\N{EN DASH}"


def tables(shown: View) -> str:
    """Headings and tables, all of it escaped."""
    summary = shown.summary
    parts = [
        f"<p class=overline>{escape(summary.title)}</p>",
        f"<h1>{escape(shown.headline)}</h1>",
        f"<p>{escape(shown.detail)}</p>",
        f"<p>{escape(summary.origin)}</p>",
        *(f"<p>{escape(sentence)}</p>" for sentence in shown.passed_over),
        _table("Verdicts", ("Verdict", "Exchanges"), ((v.value, f"{n:,}") for v, n in summary.verdicts.items())),
        _table("Gates", ("Gate", "Found", ""), map(_gate, summary.gates)),
        _table("Fidelity", ("Figure", "Value"), _fidelity(summary.fidelity)),
        _table(
            "Endpoints",
            ("Endpoint", "Exchanges", "Same", "Source p50", "Target p50", "Slower", ""),
            map(_endpoint, summary.endpoints),
        ),
        _table(
            "Differences",
            ("Exchanges", "Endpoint", "In", "Path", "Source", "Target"),
            map(_difference, summary.differences),
        ),
        _table("Left out as noise", ("Exchanges", "Endpoint", "In", "Path", "Reason"), map(_noise, summary.noise)),
        *(f"<p>{escape(sentence)}</p>" for sentence in shown.cut),
    ]
    return "\n".join(parts)


def duration(us: float | None) -> str:
    """With three digits at most, as `1.25 ms`."""
    if us is None:
        return _MISSING
    for size, unit in ((1_000_000, "s"), (1_000, "ms")):
        if abs(us) >= size:
            return f"{us / size:.3g} {unit}" if abs(us) < 1_000 * size else f"{us / size:,.0f} {unit}"
    return f"{us:.3g} µs"


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["".join(f"<td>{escape(cell)}" for cell in row) for row in rows]
    if not lines:
        return ""
    head = "".join(f"<th scope=col>{escape(name)}" for name in columns)
    return f"<h2>{escape(title)}</h2>\n<table>\n<tr>{head}\n<tr>" + "\n<tr>".join(lines) + "\n</table>"


def _gate(gate: Gate) -> Sequence[str]:
    return gate.rule, gate.found, "passed" if gate.passed else "failed"


def _fidelity(fidelity: Fidelity) -> Iterable[Sequence[str]]:
    yield "Lateness p50", duration(fidelity.late_p50_us)
    yield "Lateness p99", duration(fidelity.late_p99_us)
    yield "Lateness max", duration(fidelity.late_max_us)
    yield "Drift for each second", duration(fidelity.drift_us_per_s)
    yield "Order violations", f"{fidelity.order_violations:,}"
    yield "Connections", f"{fidelity.connections:,}"
    yield "Requests for each connection", _MISSING if fidelity.reuse is None else f"{fidelity.reuse:,.1f}"


def _endpoint(endpoint: Endpoint) -> Sequence[str]:
    return (
        endpoint.name,
        f"{endpoint.count:,}",
        percent(endpoint.verdicts.get(Verdict.SAME, 0), endpoint.count),
        duration(_median(endpoint.source)),
        duration(_median(endpoint.target)),
        _MISSING if endpoint.slower is None else f"{endpoint.slower:.2f}\N{MULTIPLICATION SIGN}",
        "regressed" if endpoint.regressed else "",
    )


def _median(curve: Curve) -> int | None:
    return next((us for share, us in curve if share >= 0.5), None)


def _difference(difference: Difference) -> Sequence[str]:
    return (
        f"{difference.count:,}",
        difference.endpoint,
        difference.kind.value,
        difference.path,
        _MISSING if difference.source is None else difference.source,
        _MISSING if difference.target is None else difference.target,
    )


def _noise(noise: Noise) -> Sequence[str]:
    return f"{noise.count:,}", noise.endpoint, noise.kind.value, noise.path, noise.reason
