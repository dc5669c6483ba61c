"""Gates are read once, refuse what they do not know, and say what was found."""

from typing import Any

import pytest

from strandline.errors import OptionError
from strandline.report.gates import FIGURES, parse_gates
from strandline.report.summary import Fidelity, Summary, Verdict


def summary(verdicts: dict[Verdict, int], **fidelity: Any) -> Summary:
    nothing: dict[str, Any] = {
        "late_p50_us": None,
        "late_p99_us": None,
        "late_max_us": None,
        "drift_us_per_s": None,
        "order_violations": 0,
        "connections": 0,
        "reuse": None,
    }
    return Summary(
        title="t",
        origin="o",
        made_us=0,
        first_us=None,
        last_us=None,
        exchanges=sum(verdicts.values()),
        verdicts=verdicts,
        gates=[],
        fidelity=Fidelity(**(nothing | fidelity)),
        timeline=[],
        source=[],
        target=[],
        endpoints=[],
        differences=[],
        left_out=0,
        noise=[],
        examples={},
    )


@pytest.mark.parametrize(
    ("text", "found", "passed"),
    [
        ("mismatch>1%", "3.00%", False),
        ("mismatch>3%", "3.00%", True),
        ("mismatch>=3%", "3.00%", False),
        ("mismatch > 2", "3", False),
        ("failed>0", "1", False),
        ("body>2", "2", True),
        ("slower>1%", "4.00%", False),
        ("lateness.p99>20ms", "25.00 ms", False),
        ("lateness.p99>0.03s", "25.00 ms", True),
        ("lateness.max>1s", "not measured", False),
        ("exchanges<200", "100", False),
        ("order>0", "0", True),
        ("reuse<2", "not measured", False),
    ],
)
def test_a_gate_fails_when_it_is_true(text: str, found: str, passed: bool) -> None:
    counts = {Verdict.SAME: 92, Verdict.SLOWER: 4, Verdict.BODY_DIFFERS: 2, Verdict.FAILED: 1, Verdict.NO_SOURCE: 1}
    (threshold,) = parse_gates(text)
    gate = threshold.check(summary(counts, late_p99_us=25_000))
    assert (gate.rule, gate.found, gate.passed) == (text, found, passed)


def test_several_gates_have_commas_between() -> None:
    rules = [gate.rule for gate in parse_gates(" mismatch>1%, lateness.p99 > 20ms ,")]
    assert rules == ["mismatch>1%", "lateness.p99 > 20ms"]
    assert parse_gates("") == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("mismach>1%", "gate 'mismach>1%': 'mismach' is unknown; did you mean 'mismatch'?"),
        ("lateness.p98>1ms", "did you mean 'lateness.p9"),
        ("mismatch", "'mismatch' is no gate; write it like mismatch>1% or lateness.p99>20ms"),
        (" , ", "' , ' holds no gate; write them like mismatch>1%,lateness.p99>20ms"),
        ("mismatch>1ms", "gate 'mismatch>1ms': mismatch takes a share such as 1%, or a count"),
        ("lateness.p99>20", "gate 'lateness.p99>20': lateness.p99 takes a time such as 20ms"),
        ("order>1%", "gate 'order>1%': order takes a plain number"),
    ],
)
def test_what_is_no_gate_is_refused_with_the_reason(text: str, problem: str) -> None:
    with pytest.raises(OptionError) as refused:
        parse_gates(text)
    assert problem in str(refused.value)


def test_every_figure_can_be_had_of_an_empty_report() -> None:
    for _, figure in FIGURES.values():
        assert figure(summary({})) in {0, None}
