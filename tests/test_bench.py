"""The smoke runs of the benchmarks: what is judged in them, and what `bench.quick` takes for a failure."""

import re
import subprocess
import sys
from dataclasses import dataclass
from math import nan
from pathlib import Path

import pytest
from bench import quick
from bench.amounts import parse
from bench.figures import Figure, report

from tests.support import TIMEOUT

TOO_SLOW = Figure("speed", 1.0, "rows a second", floor=2.0)
OUT_OF_ORDER = Figure("inversions", 3, "rows out of order", ceiling=0, is_exact=True)


@dataclass(frozen=True)
class Amounts:
    rows: int = 1_000
    seconds: float = 2.5
    peers: tuple[str, ...] = ("one", "two")


QUICK = Amounts(rows=10)

OUTCOMES = {
    "ok": ("print('fake.value 1')", "ok"),
    "a figure is missing": ("print('fake.other 1')", "no figure fake.value"),
    "it exits with another code": ("print('fake.value 1'); raise SystemExit(3)", "exit code 3"),
    "it hangs": ("print('fake.value 1', flush=True); import time; time.sleep(600)", "took longer than"),
    "it leaves a process behind": (
        "import subprocess as s; print('pid', s.Popen(['sleep', '99'], start_new_session=True).pid, '\\nfake.value 1')",
        "left behind: sleep 99",
    ),
}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], (Amounts(), False)),
        (["--quick"], (QUICK, True)),
        (["--quick", "--seconds", "1.5", "--peers", "two"], (Amounts(10, 1.5, ("two",)), True)),
        (["--rows", "7"], (Amounts(rows=7), False)),
    ],
)
def test_quick_is_a_preset_and_an_option_that_is_given_wins(
    monkeypatch: pytest.MonkeyPatch, given: list[str], expected: tuple[Amounts, bool]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", *given])
    assert parse("bench.fake", Amounts(), QUICK) == expected


@pytest.mark.parametrize(
    ("figures", "is_quick", "code"),
    [
        ([TOO_SLOW], False, 1),
        ([TOO_SLOW], True, 0),
        ([OUT_OF_ORDER], False, 1),
        ([OUT_OF_ORDER], True, 1),
    ],
)
def test_a_smoke_run_judges_exact_figures_only(
    capsys: pytest.CaptureFixture[str], figures: list[Figure], is_quick: bool, code: int
) -> None:
    with pytest.raises(SystemExit) as ended:
        report("A bench", figures, is_quick=is_quick)
    assert ended.value.code == code
    assert ("quick: not judged" in capsys.readouterr().out) is is_quick


@pytest.mark.parametrize("figures", [[], [Figure("speed", nan, "")]])
def test_a_benchmark_without_a_figure_fails_in_its_smoke_run_too(figures: list[Figure]) -> None:
    with pytest.raises(AssertionError, match="figures without a value"):
        report("A bench", figures, is_quick=True)


def test_every_benchmark_of_the_makefile_has_a_smoke_run() -> None:
    makefile = (Path(__file__).parent.parent / "Makefile").read_text()
    assert set(re.findall(r"-m bench\.(\w+)", makefile)) - {"quick"} == set(quick.FIGURES)


@pytest.mark.parametrize("case", OUTCOMES)
def test_the_others_run_when_one_fails_and_the_exit_code_tells(case: str) -> None:
    script, told = OUTCOMES[case]
    commands = {"fake": [sys.executable, "-c", script], "last": [sys.executable, "-c", "print('last.value 1')"]}
    settings = "quick.FIGURES = {'fake': 'fake.value', 'last': 'last.value'}; quick.ENDED_WITHIN_S = 0.2"
    if case == "it hangs":
        settings += "; quick.LIMIT_S = 10"
    driver = f"from bench import quick; {settings}; quick.command = {commands}.__getitem__; quick.main()"
    ended = subprocess.run([sys.executable, "-c", driver], capture_output=True, text=True, timeout=TIMEOUT, check=False)
    fake, last, _ = (line.split() for line in ended.stdout.splitlines()[-3:])
    assert told in ended.stdout
    assert (fake[0], fake[-1]) == ("fake", "ok" if case == "ok" else "failed")
    assert (last[0], last[-1]) == ("last", "ok")
    assert ended.returncode == (0 if case == "ok" else 1)
    left = [line.split()[1] for line in ended.stdout.splitlines() if line.startswith("pid ")]
    assert not any(Path("/proc", pid).exists() for pid in left)
