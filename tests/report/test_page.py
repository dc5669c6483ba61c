"""The report's page in a real browser: what it shows, and what captured traffic cannot make it do."""

from collections.abc import Sequence

import msgspec
import pytest
from msgspec.structs import replace

from strandline.report.page import view
from strandline.report.summary import (
    Difference,
    Endpoint,
    Example,
    Fidelity,
    Gate,
    Kind,
    Moment,
    Noise,
    Summary,
    Verdict,
)
from tests.report.browser import Browser
from tests.report.conftest import Show
from tests.report.shop import START_US, answer, shop

ENTER, ESCAPE, RIGHT = "\ue007", "\ue00c", "\ue014"
NAMES = "#endpoints-table .name"
PLACES = "#differences-table .name"
TITLED = "return document.querySelector('#example-title')?.innerText === arguments[0]"
HOSTILE = [
    "</script><script>window.pwned=1;alert(1)</script>",
    "</noscript></title></style><script>window.pwned=1</script>",
    '<img src="http://127.0.0.1:9/x.png" onerror="window.pwned=1">',
    "\"'><svg onload=window.pwned=1>",
    "<!--<script>",
    "javascript:window.pwned=1",
    "{{script}}{{view}}${window.pwned=1}`",
    "a\u202egnp.exe\u2066\u200b\x00\x1b[31m\x7f\x9b\u2028\ufeff",
    "\ud800 \udfff \U000e0041",
    "__proto__",
    "constructor",
    "&lt;b&gt;&quot;",
    "long" * 400,
    "\N{COMBINING ACUTE ACCENT}" * 50,
]


def empty() -> Summary:
    nothing = Fidelity(
        late_p50_us=None,
        late_p99_us=None,
        late_max_us=None,
        drift_us_per_s=None,
        order_violations=0,
        connections=0,
        reuse=None,
    )
    return Summary(
        title="",
        origin="",
        made_us=0,
        first_us=None,
        last_us=None,
        exchanges=0,
        verdicts={},
        gates=[],
        fidelity=nothing,
        timeline=[],
        source=[],
        target=[],
        endpoints=[],
        differences=[],
        left_out=0,
        noise=[],
        examples={},
    )


def hostile(texts: Sequence[str]) -> Summary:
    """Every text that a summary holds is one of these."""
    whole = " ".join(texts)
    return replace(
        shop(),
        title=whole,
        origin=whole,
        gates=[Gate(rule=text, found=text, passed=False) for text in texts],
        endpoints=[replace(shop().endpoints[0], name=text) for text in texts],
        differences=[
            Difference(endpoint=text, kind=Kind.BODY, path=text, count=1, source=text, target=whole, example=text)
            for text in texts
        ],
        noise=[Noise(endpoint=text, kind=Kind.HEADER, path=text, count=1, reason=text) for text in texts],
        examples={text: hostile_example(text) for text in texts} | {whole: hostile_example(whole)},
    )


def hostile_example(text: str) -> Example:
    return Example(
        id=text,
        connection=text,
        time_us=10**18,
        request=f"GET /{text} HTTP/1.1\r\nHost: {text}\r\n\r\n{text}",
        source=answer(f"200 {text}", f'{{"{text}": "{text}"}}'),
        target=answer(f"200 {text}!", "[" * 1_000 + text),
        source_us=0,
        target_us=1,
        error=text,
        verdict=Verdict.BODY_DIFFERS,
    )


def large() -> Summary:
    """200 endpoints and 300 differences."""
    endpoints = [replace(shop().endpoints[i % 9], name=f"GET /things-{i:03}/{{n}}") for i in range(200)]
    differences = [
        Difference(
            endpoint=endpoints[i % 200].name,
            kind=list(Kind)[i % 3],
            path=f"$.deep{'.er' * 20}.field{i:03}" if i % 3 == 2 else f"x-{i:03}",
            count=300 - i,
            source="x" * 400,
            target=None,
            example=f"e{i}",
        )
        for i in range(300)
    ]
    model = next(iter(shop().examples.values()))
    examples = {f"e{i}": replace(model, id=f"e{i}", connection=f"connection of {i}") for i in range(300)}
    return replace(shop(), endpoints=endpoints, differences=differences, left_out=41, examples=examples)


def overflow(browser: Browser) -> int:
    return int(browser.run("return document.documentElement.scrollWidth - innerWidth"))


def open_everything(browser: Browser) -> None:
    """Each endpoint and each example in turn, and the noise."""
    browser.run("document.querySelector('#noise details').open = true")
    for kind, values in (
        ("endpoint", "Object.values(v.endpoints).map((e) => e.name)"),
        ("example", "Object.keys(v.examples)"),
    ):
        browser.run(
            f"const v = JSON.parse(document.getElementById('view').textContent).summary;"
            f"for (const name of {values}) {{"
            f"  history.replaceState(null, '', '#{kind}=' + encodeURIComponent(name));"
            f"  dispatchEvent(new Event('hashchange')); }}"
        )


def test_the_shop_is_told_at_a_glance(show: Show) -> None:
    page = show(shop())
    assert page.texts("h1") == ["Failed 2 of 3 gates"]
    assert "12,006 of 16,031 exchanges are the same (74.9%). 1 endpoint has become slower." in page.texts("#verdict")[0]
    assert page.texts("#gate-list li")[0].split() == ["failed", "mismatch>1%", "25.1%"]
    figures = page.texts("#fidelity-figures div")
    assert "Late p99\n8.7 ms" in figures
    assert page.texts(NAMES)[:3] == ["GET /orders/{n}", "GET /search", "POST /checkout"]
    assert page.texts("#endpoints-table .mark") == ["regressed"]
    assert page.texts(PLACES) == ["$.total", "$.total_cents", "status", "content-type"]
    assert page.texts("#noise-table tr") == [""] * 6, "collapsed"


def test_charts_have_axes_with_units_and_are_read_by_keyboard(show: Show) -> None:
    page = show(shop())
    page.until("return document.querySelectorAll('.chart svg').length === 2")
    assert {"0", "200", "400", "5 ms", "60 s"} <= set(page.texts("#timeline .tick"))
    assert {"p50", "p99", "max", "10 ms"} <= set(page.texts("#latency .tick"))
    page.run("document.querySelector('#latency svg').focus()")
    page.press(RIGHT)
    assert page.texts("#latency .reading")[0].split()[:4] == ["p0", "Source", "3.36", "ms"]
    page.run("document.querySelector('#timeline svg').focus()")
    page.press(RIGHT)
    page.press(RIGHT)
    assert page.texts("#timeline .reading")[0].startswith("+0.5 s\nSent")
    assert page.texts("#latency .reading") == [""], "its chart has lost the focus"


def test_mismatches_are_marked_on_the_timeline_however_few(show: Show) -> None:
    moments = [
        Moment(start_us=i, sent=100_000, mismatches=int(i == 7), late_p50_us=1, late_p99_us=2) for i in range(20)
    ]
    page = show(replace(shop(), timeline=moments))
    heights = page.until("return [...document.querySelectorAll('rect.mismatch')].map((r) => r.height.baseVal.value)")
    assert heights == [3]


def test_endpoints_are_sorted_by_any_column_both_ways(show: Show) -> None:
    page = show(shop())
    page.click("#endpoints-table th:nth-child(2) .sort")
    assert page.texts(NAMES)[0] == "GET /products/{n}"
    assert page.run("return document.querySelector('th[aria-sort]').ariaSort") == "descending"
    page.press(ENTER)  # the button still has the focus
    assert page.texts(NAMES)[0] == "GET /health"
    page.click("#endpoints-table th:first-child .sort")
    assert page.texts(NAMES) == sorted(page.texts(NAMES))
    page.click("#endpoints-table th:last-child .sort")
    assert page.texts(NAMES)[0] == "GET /search"


def test_endpoints_are_filtered_by_name_and_by_state(show: Show) -> None:
    page = show(shop())
    page.type("#endpoints-text", "CART")
    assert page.texts(NAMES) == ["PUT /carts/{n}/items/{n}", "GET /carts/{n}"]
    assert page.texts("#endpoints-found") == ["2 of 9"]
    page.type("#endpoints-text", "nowhere")
    assert page.texts("#endpoints-table") == ["No endpoint fits the filter."]
    page.type("#endpoints-text", " ")
    page.click("#endpoints-which [value=regressed]")
    assert page.texts(NAMES) == ["GET /search"]


def test_an_endpoint_opens_to_its_latency_and_differences(show: Show) -> None:
    page = show(shop())
    page.click("#endpoints-table tbody tr:first-child .name")
    page.until("return document.querySelector('.endpoint-detail svg') !== null")
    assert page.texts(".endpoint-detail .data .name") == ["$.total", "$.total_cents"]
    assert page.run("return location.hash") == "#endpoint=GET%20%2Forders%2F%7Bn%7D"
    page.press(ENTER)
    assert page.texts(".endpoint-detail") == []


def test_differences_are_filtered_by_endpoint_kind_and_path(show: Show) -> None:
    page = show(shop())
    page.click("#differences-kind [value=header]")
    assert page.texts(PLACES) == ["content-type"]
    page.click("#differences-kind option")
    page.click("#differences-endpoint [value^='GET /orders']")
    assert page.texts(PLACES) == ["$.total", "$.total_cents"]
    page.type("#differences-text", "cents")
    assert page.texts(PLACES) == ["$.total_cents"]
    assert page.texts("#differences-found") == ["1 of 4"]


def test_an_example_lays_the_answers_side_by_side(show: Show) -> None:
    page = show(shop())
    page.click("#differences-table .name")
    page.until(TITLED, "GET /orders/90417")
    assert page.texts("#example .message")[0].startswith("GET /orders/90417 HTTP/1.1\nHost: shop.example")
    # A renamed field is one changed line, though the target's members come in another order and without spaces.
    assert page.texts("#example .hit td") == ['"total": 14335,', '"total_cents": 14335,']
    assert page.texts("#example .hit :is(del, ins)") == ["total", "total_cents"]
    noise = page.texts("#example .noise td")
    assert [text.split(":")[0] for text in noise] == ["Content-Length"] * 2 + ["Date"] * 2 + ['"trace"'] * 2
    assert page.texts("#example .changed:not(.hit, .noise)") == []
    assert page.texts("#example .fold") == ["35 equal lines"]
    page.click("#example .fold button")
    assert '"sku": "SKU-1000",' in page.texts("#example .same td")


def test_headers_that_are_never_compared_do_not_look_like_differences(show: Show) -> None:
    page = show(replace(shop(), noise=[], ignored_headers=["content-length", "date"]))
    page.click("#differences-table .name")
    page.until(TITLED, "GET /orders/90417")
    assert [text.split(":")[0] for text in page.texts("#example .noise td")] == ["Content-Length"] * 2 + ["Date"] * 2


def test_records_that_count_for_nothing_are_told_under_the_verdict(show: Show) -> None:
    page = show(replace(shop(), repeats=1_200, malformed=1))
    assert page.texts("#verdict .facts-line span")[-2:] == [
        "1,200 records left out: repeated",
        "1 record left out: no results",
    ]


@pytest.mark.parametrize(
    ("path", "source", "target", "hit"),
    [
        ("$[*].n", '{"n": 1}\n{"n": 2}\n', '{"n":1}\n{"n":3}\n', ['"n": 2', '"n": 3']),
        ("$.to", "from=a&to=b&via=c", "from=a&via=c&to=d", ["to=b&", "to=d"]),
        ("line 2", "one\ntwo\nthree", "one\n2\nthree", ["two", "2"]),
        ("$", "one\nthree", "one\ntwo\nthree", ["", "two"]),
        ('$["odd name"]', '{"odd name": 10.10}', '{"odd name": 10.1}', ['"odd name": 10.10', '"odd name": 10.1']),
        ("$.gone", '{"gone": {}, "n": 12345678901234567890}', '{"n": 12345678901234567890}', ['"gone": {},', ""]),
        ("$", '{"n": 1}', "no JSON", ["{", "no JSON", '"n": 1', "", "}", ""]),
    ],
    ids=["lines of JSON", "form", "a line", "text", "a number as written", "missing", "another kind"],
)
def test_bodies_of_every_kind_are_aligned(show: Show, path: str, source: str, target: str, hit: list[str]) -> None:
    example = replace(shop().examples["c17-4"], source=answer("200 OK", source), target=answer("200 OK", target))
    difference = replace(shop().differences[0], path=path)
    page = show(replace(shop(), differences=[difference], examples={"c17-4": example}), fragment="#example=c17-4")
    assert page.texts("#example .hit td") == hit
    assert page.texts("#example .changed:not(.hit, .noise)") == []


def test_examples_are_walked_and_left_by_keyboard(show: Show) -> None:
    page = show(shop())
    page.run("document.querySelector('#differences-table .name').focus()")
    page.press(ENTER)
    page.until(TITLED, "GET /orders/90417")
    assert page.run("return document.activeElement.id") == "example-title"
    page.run("document.querySelector(\"[aria-label='Next example']\").focus()")
    page.press(ENTER)
    page.until(TITLED, "POST /checkout")
    assert page.run("return document.querySelector(\"[aria-label='Next example']\").disabled")
    page.press(ESCAPE)
    page.until("return !document.querySelector('#example').open && location.hash === '#differences'")
    assert page.run("return document.activeElement.textContent") == "$.total", "where the reader was"


@pytest.mark.parametrize(
    ("fragment", "selector", "text"),
    [
        ("#endpoint=GET%20/search", ".selected .name", "GET /search"),
        ("#example=c230-11", "#example-title", "POST /checkout"),
        ("#example=c88-2", "#example .note.bad", "The target gave no answer: the target closed the connection"),
    ],
)
def test_an_address_leads_to_an_endpoint_or_an_example(show: Show, fragment: str, selector: str, text: str) -> None:
    assert show(shop(), fragment=fragment).texts(selector)[0].startswith(text)


@pytest.mark.parametrize("fragment", ["#example=%E0%A4%A", "#example=constructor", "#endpoint=", "#x=<b>"])
def test_an_address_that_leads_nowhere_does_nothing(show: Show, fragment: str) -> None:
    page = show(shop(), fragment=fragment)
    assert page.texts("h1") == ["Failed 2 of 3 gates"]
    assert not page.run("return document.querySelector('#example').open")


@pytest.mark.parametrize("width", [360, 1600])
def test_hostile_traffic_is_shown_and_does_nothing(show: Show, width: int) -> None:
    page = show(hostile(HOSTILE), width=width)
    assert "<img src=" in page.texts("#verdict")[0]
    assert "a⟨U+202E⟩gnp.exe⟨U+2066⟩⟨U+200B⟩⟨U+0000⟩⟨U+001B⟩[31m⟨U+007F⟩⟨U+009B⟩⟨U+2028⟩⟨U+FEFF⟩" in page.texts(NAMES)
    assert "⟨U+D800⟩ ⟨U+DFFF⟩ ⟨U+E0041⟩" in page.texts(NAMES)
    open_everything(page)
    assert page.run("return document.querySelector('#example').open")
    page.run("document.querySelector('#example .note').click()")
    assert page.dialog() is None
    assert page.run("return window.pwned === undefined && Object.prototype.pwned === undefined")
    assert page.run("return document.querySelectorAll('img, iframe, object, script:not(body > script)').length") == 0
    assert page.run("return document.scripts.length") == 2
    assert overflow(page) == 0


def test_hostile_traffic_does_nothing_without_scripts_either(show: Show, chromium: Browser) -> None:
    with chromium.without_scripts():
        page = show(hostile(HOSTILE))
        assert "<img src=" in page.texts(".plain h1 + p + p")[0]
        assert page.run("return document.querySelectorAll('img, svg, iframe, script').length") == 2


def test_the_policy_refuses_scripts_markup_and_loading(show: Show, chromium: Browser) -> None:
    page = show(shop())
    for attempt in (
        "document.body.innerHTML = '<b>x</b>'",
        "document.body.setAttribute('onclick', 'window.pwned = 1')",
        "document.body.append(Object.assign(document.createElement('script'), { text: 'window.pwned = 1' }))",
    ):
        assert page.run(f"try {{ {attempt}; return false }} catch (error) {{ return error instanceof TypeError }}")
    load = "Object.assign(document.createElement('img'), { src: 'http://127.0.0.1:9/', onerror: () => done(true) })"
    assert page.run(f"return new Promise((done) => document.body.append({load}))")
    assert page.run("return window.pwned === undefined")
    refusals = " ".join(chromium.console())
    assert all(rule in refusals for rule in ("TrustedHTML", "TrustedScript", "img-src"))
    assert chromium.requests() == ["http://127.0.0.1:9/"], "the browser names what it was asked for and refused"


def test_without_scripts_there_are_headline_and_tables(show: Show, chromium: Browser) -> None:
    with chromium.without_scripts():
        page = show(shop(), width=360)
        assert page.texts("h1") == ["Failed 2 of 3 gates"]
        assert page.texts(".plain h2") == [
            "Verdicts",
            "Gates",
            "Fidelity",
            "Endpoints",
            "Differences",
            "Left out as noise",
        ]
        assert "GET /search" in page.texts(".plain td")
        assert page.texts("#report") == [""]
        assert overflow(page) == 0
        lines = "(th) => { const r = new Range(); r.selectNodeContents(th); return r.getClientRects().length; }"
        words = "[...document.querySelectorAll('.plain th')].filter((th) => !th.innerText.includes(' '))"
        assert set(page.run(f"return {words}.map({lines})")) <= {0, 1}, "no word of a heading is broken"


@pytest.mark.parametrize("width", [360, 1600])
def test_an_empty_summary_says_so(show: Show, width: int) -> None:
    page = show(empty(), width=width)
    assert page.texts("h1") == ["Nothing was compared"]
    assert page.texts("#differences-table") == ["No differences were found."]
    assert page.texts("#timeline-chart") == ["Nothing was sent."]
    assert overflow(page) == 0


@pytest.mark.parametrize("width", [360, 1600])
def test_a_large_summary_is_shown_in_part_and_whole_on_demand(show: Show, width: int) -> None:
    page = show(large(), width=width)
    assert len(page.texts(NAMES)) == len(page.texts(PLACES)) == 20
    assert overflow(page) == 0
    page.click("#differences-table .more")
    page.click("#endpoints-table .more")
    assert len(page.texts(NAMES)) == 200
    assert len(page.texts(PLACES)) == 300
    assert "41 further places with differences are counted but not listed." in page.texts("#cut")[0]
    page.type("#differences-text", "d299")
    page.click("#differences-table .name")
    page.until("return document.querySelector('#example .facts')?.innerText.includes('connection of 299')")
    assert overflow(page) == 0
    assert page.run("const s = document.querySelector('.example-scroll'); return s.scrollWidth - s.clientWidth") == 0


@pytest.mark.parametrize("width", [360, 720, 1000, 1600])
def test_nothing_sticks_out_at_any_width(show: Show, width: int) -> None:
    page = show(shop(), width=width, fragment="#endpoint=GET%20%2Forders%2F%7Bn%7D")
    page.until("return document.querySelectorAll('.chart svg').length === 3")
    page.run("document.querySelector('#noise details').open = true")
    assert overflow(page) == 0
    assert not page.run(
        "return [...document.querySelectorAll('.card')].filter((c) => c.scrollWidth > c.clientWidth).map((c) => c.id)"
    )


def test_odd_numbers_draw_no_broken_charts(show: Show) -> None:
    odd = [
        ([], [(1.0, 5)]),
        ([(1.0, 0)], [(1.0, 0)]),
        ([(0.5, 10), (1.0, 10)], []),
        ([(0.5, 1), (1.0, 10**12)], [(0.5, 10**9), (0.9999999, 10**9), (1.0, 10**10)]),
    ]
    endpoints = [
        Endpoint(
            name=f"GET /{i}",
            count=1,
            verdicts={Verdict.NO_SOURCE: 1},
            source=source,
            target=target,
            slower=None,
            regressed=False,
            p_value=None,
        )
        for i, (source, target) in enumerate(odd)
    ]
    one = Moment(start_us=START_US, sent=0, mismatches=3, late_p50_us=None, late_p99_us=None)
    page = show(replace(shop(), endpoints=endpoints, timeline=[one], last_us=START_US))
    for endpoint in endpoints:
        page.run("location.hash = 'endpoint=' + encodeURIComponent(arguments[0])", endpoint.name)
        page.until("return document.querySelector('.selected .name')?.innerText === arguments[0]", endpoint.name)
        page.until("return document.querySelector('.endpoint-detail svg') !== null")
        assert not page.run("return /NaN|Infinity|undefined/.test(document.querySelector('main').outerHTML)")


def test_a_page_is_fed_anew_and_keeps_what_the_reader_chose(show: Show) -> None:
    page = show(shop())
    page.type("#endpoints-text", "cart")
    more = replace(shop(), gates=[], endpoints=[*shop().endpoints, replace(shop().endpoints[0], name="GET /carts")])
    page.run("strandline.draw(arguments[0])", msgspec.to_builtins(view(more), str_keys=True))
    assert page.texts("h1") == ["12,006 of 16,031 exchanges are the same"]
    assert page.texts(NAMES) == ["GET /carts", "PUT /carts/{n}/items/{n}", "GET /carts/{n}"]
