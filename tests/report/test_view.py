"""What the page is fed with: nothing invisible, nothing without bounds, and a word on all that is cut."""

import re
import unicodedata
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from strandline.report.page import render, view
from strandline.report.page.text import LINE, line, message
from strandline.report.page.view import EXAMPLES, MESSAGES, MOMENTS, State, percent
from strandline.report.summary import Gate, Moment, Verdict
from tests.report.shop import START_US, shop

ANY_TEXT = st.text(st.characters(), max_size=600)


@given(ANY_TEXT)
def test_a_line_is_short_and_all_of_it_can_be_seen(text: str) -> None:
    shown = line(text)
    assert len(shown) <= LINE
    # Cc: controls, Cs: surrogates, Zl and Zp: separators; what turns the direction of reading is of a class of its own.
    assert not {unicodedata.category(c) for c in shown} & {"Cc", "Cs", "Zl", "Zp"}
    assert not {unicodedata.bidirectional(c) for c in shown} & {
        "LRE",
        "RLE",
        "LRO",
        "RLO",
        "PDF",
        "LRI",
        "RLI",
        "FSI",
        "PDI",
    }
    shown.encode()


@given(ANY_TEXT, st.integers(1, 700))
def test_a_message_is_whole_or_says_that_it_is_cut(text: str, most: int) -> None:
    shown = message(text, most)
    if "✂" in shown and "✂" not in text:
        assert shown.index("\n✂ cut here") == most
    elif "✂" not in text:
        assert len(shown) <= most
    shown.encode()


def test_the_lines_of_a_head_end_without_a_sign_and_those_of_a_body_show_theirs() -> None:
    assert message("GET / HTTP/1.1\r\nA: b\r\n\r\none\r\ntwo", 100) == "GET / HTTP/1.1\nA: b\n\none⟨U+000D⟩\ntwo"


@given(st.integers(0, 10**6), st.integers(1, 10**6))
def test_a_share_is_all_or_nothing_only_if_it_is(part: int, whole: int) -> None:
    part = min(part, whole)
    assert (percent(part, whole) == "100%") == (part == whole)
    assert (percent(part, whole) == "0%") == (part == 0)


@pytest.mark.parametrize(
    ("gates", "verdicts", "state", "headline"),
    [
        ([True, True], {Verdict.FAILED: 10}, State.PASSED, "Passed 2 gates"),
        ([True, False], {Verdict.SAME: 10}, State.FAILED, "Failed 1 of 2 gates"),
        ([], {Verdict.SAME: 10}, State.SAME, "All 10 exchanges are the same"),
        ([], {Verdict.SAME: 1}, State.SAME, "The one exchange is the same"),
        ([], {Verdict.SAME: 9, Verdict.SLOWER: 1}, State.DIFFERS, "9 of 10 exchanges are the same"),
    ],
)
def test_gates_decide_the_headline_and_else_the_verdicts(
    gates: list[bool], verdicts: dict[Verdict, int], state: State, headline: str
) -> None:
    rules = [Gate(rule="mismatch>1%", found="0%", passed=passed) for passed in gates]
    shown = view(replace(shop(), gates=rules, exchanges=sum(verdicts.values()), verdicts=verdicts))
    assert (shown.state, shown.headline) == (state, headline)


def test_the_page_is_bounded_whatever_the_summary_holds_and_says_what_is_cut() -> None:
    summary = shop()
    example = replace(next(iter(summary.examples.values())), source="x" * 300_000, target="<" * 300_000)
    page_of = replace(
        summary,
        endpoints=[replace(summary.endpoints[0], name=f"GET /{i}") for i in range(1_200)],
        differences=[replace(summary.differences[0], path=f"$.x{i}") for i in range(700)],
        left_out=5,
        noise=[replace(summary.noise[0], path=f"x-{i}") for i in range(600)],
        examples={str(i): replace(example, id=str(i)) for i in range(EXAMPLES + 100)},
        timeline=[
            Moment(start_us=START_US + i, sent=1, mismatches=1, late_p50_us=None, late_p99_us=i) for i in range(5_000)
        ],
        source=[(i / 10_000, i) for i in range(10_001)],
    )
    shown = view(page_of)
    assert len(" ".join(shown.cut).split(". ")) == 6
    assert "205 further places with differences are counted but not listed." in shown.cut
    assert len(shown.summary.timeline) <= MOMENTS
    assert sum(moment.sent for moment in shown.summary.timeline) == 5_000
    assert shown.summary.timeline[-1].late_p99_us == 4_999
    assert shown.summary.source[-1] == (1.0, 10_000)
    # A character is at most six bytes in the JSON; beside the messages there are names, values and curves.
    assert len(render(page_of).encode()) < 6 * MESSAGES + 5_000_000


def test_records_that_count_for_nothing_are_told() -> None:
    assert view(shop()).passed_over == []
    shown = replace(shop(), repeats=1_200, malformed=1)
    assert view(shown).passed_over == ["1,200 records left out: repeated", "1 record left out: no results"]
    assert "<p>1 record left out: no results</p>" in render(shown)


def test_data_cannot_end_the_element_it_lies_in() -> None:
    page = render(replace(shop(), title="</script><!--<script>", origin="]]>&{{style}}"))
    data = re.findall(r'<script type="application/json" id="view">(.*?)</script>', page, re.DOTALL)
    assert len(data) == 1
    assert not set(data[0]) & set("<>&")
    assert page.count("<script") == 2


NEAR = [
    ("ink", "back card hover del ins del-part ins-part"),
    ("soft", "back card hover del ins"),
    ("accent", "back card hover"),
    ("bad", "back card bad-back"),
    ("good", "back card good-back"),
    ("warn", "warn-back"),
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(scheme: str) -> None:
    """By WCAG's measure, 4.5 to 1."""
    style = files("strandline.report.page").joinpath("assets/base.css").read_text(encoding="utf-8")
    light, dark = style.split("@media (prefers-color-scheme: dark)")[:2]
    colours = dict(re.findall(r"--([\w-]+): #(\w{6});", light if scheme == "light" else dark))
    for text, grounds in NEAR:
        for ground in grounds.split():
            dim, bright = sorted((luminance(colours[text]), luminance(colours[ground])))
            assert (bright + 0.05) / (dim + 0.05) >= 4.5, f"{text} on {ground}"


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
