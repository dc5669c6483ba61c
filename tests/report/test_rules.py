"""A file of rules is checked whole, and what it says is kept."""

from pathlib import Path

import pytest

from strandline.errors import ConfigError
from strandline.report.compare import compare
from strandline.report.rules import EndpointSection, Rules, load_rules
from strandline.report.summary import Verdict
from strandline.report.verdicts import is_slower, judge
from tests.report.support import answer, exchange

RULES = """\
headers:
  ignore: [X-Cache]
  compare: [Server]
body:
  ignore: ["$.took", "$..at"]
  tolerances: {"$.score": 0.1}
latency: {ratio: 3, slack_ms: 1}
noise: {learn: false}
"""


def test_rules_of_a_file_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(RULES)
    rules = load_rules(file)
    source = answer(200, {"took": 1, "score": 1.0, "x": {"at": 1}}, X_Cache="a", Server="a", Date="a")
    target = answer(200, {"took": 2, "score": 1.05, "x": {"at": 2}}, X_Cache="b", Server="b", Date="b")
    found = compare(exchange(source, target), rules).differences
    assert {each.path for each in found if not each.is_ruled} == {"server"}
    assert {each.path for each in found if each.is_ruled} == {"x-cache", "$.took", "$.x.at"}
    assert not rules.learns
    assert (rules.latency.ratio, rules.latency.slack_ms) == (3, 1)


ENDPOINTS = """\
headers: {ignore: [X-Cache]}
body: {tolerance: 0.1}
endpoints:
  - match: GET /orders/{n}
    headers: {ignore: [ETag], compare: [X-Cache, Server]}
    body: {ignore: ["$.took"], tolerance: 0}
  - match: "* /orders/**"
    body: {ignore: ["$..at"], tolerances: {"$.score": 0.5}}
"""


@pytest.mark.parametrize(
    ("request_", "told", "ruled"),
    [
        ("GET /items/1", {"etag", "$.took", "$.at", "$.score"}, {"x-cache"}),
        ("GET /orders/17?a=b", {"x-cache", "server", "$.price"}, {"etag", "$.took", "$.at"}),
        ("POST /orders/17/lines", {"etag", "$.took"}, {"x-cache", "$.at"}),
    ],
)
def test_rules_of_an_endpoint_are_added_to_those_of_all(
    tmp_path: Path, request_: str, told: set[str], ruled: set[str]
) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(ENDPOINTS)
    rules = load_rules(file)
    names: dict[str, str] = {"X_Cache": "a", "ETag": "a", "Server": "a"}
    source = answer(200, {"took": 1, "score": 1.0, "at": "a", "price": 1.0}, **names)
    target = answer(200, {"took": 2, "score": 1.3, "at": "b", "price": 1.05}, **dict.fromkeys(names, "b"))
    found = compare(exchange(source, target, request=request_), rules).differences
    assert {each.path for each in found if not each.is_ruled} == told
    assert {each.path for each in found if each.is_ruled} == ruled
    assert rules.has_rules


@pytest.mark.parametrize(
    ("match", "takes", "passes"),
    [
        ("GET /a/*", ["GET /a/b", "GET /a/{n}", "GET /a/"], ["GET /a", "GET /a/b/c", "POST /a/b"]),
        ("* /a/**", ["GET /a/b", "POST /a/b/c", "GET /a/"], ["GET /b/a", "GET /ab/c"]),
        ("GET /a/{s}/c", ["GET /a/b/c", "GET /a/d/c"], ["GET /a/b/d"]),
        ("GET /v*/a.b", ["GET /v1/a.b", "GET /version/a.b"], ["GET /v1/axb", "GET /x/v1/a.b"]),
    ],
)
def test_an_endpoint_is_matched_whole_part_by_part(match: str, takes: list[str], passes: list[str]) -> None:
    section = EndpointSection(match=match)
    assert [name for name in (*takes, *passes) if section.takes(name)] == takes


def test_without_a_file_only_what_belongs_to_the_moment_is_left_out() -> None:
    source = answer(200, {"a": 1}, Date="a", Connection="close", X_A="a", Server="a", Keep_Alive="1")
    target = answer(200, {"a": 1}, Date="b", Connection="keep-alive", X_A="b", Server="b", Keep_Alive="2")
    assert [each.path for each in compare(exchange(source, target), Rules()).differences] == ["x-a"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("body: {ignored: []}", "key 'body.ignored' is unknown; did you mean 'ignore'?"),
        ("body: {ignore: [took]}", "'took' is no place; write it like $.items[*].price or $..price"),
        ("body: {unordered: [$..a]}", "'$..a' is no place; write it like $.items[*].price"),
        ("body: {tolerance: 2}", "'body.tolerance': expected `float` <= 1"),
        ("endpoints: [{match: /a}]", "'/a' is no endpoint; write it like GET /orders/{n}"),
        ("endpoints: [{match: GET /**/a}]", "'GET /**/a' is no endpoint; write it like"),
        ("endpoints: [{match: GET /orders/17}]", "a kind in the place of a value: 'GET /orders/{n}'"),
        ("latency: {ratio: 0.5}", "'latency.ratio': expected `float` >= 1"),
    ],
)
def test_a_wrong_rule_is_refused_with_its_place(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_rules(file)
    assert problem in str(refused.value)
    assert f"{file}:1" in str(refused.value)


def test_a_verdict_is_the_first_that_is_true() -> None:
    def verdict(source: int | None, target: int | None, body: int = 1, header: str = "a") -> Verdict:
        ones = None if source is None else answer(source, {"a": 1}, X_A="a")
        others = None if target is None else answer(target, {"a": body}, X_A=header)
        found = compare(exchange(ones, others), Rules())
        kinds = {each.kind for each in found.differences}
        return judge(is_answered=found.is_answered, has_source=found.has_source, kinds=kinds, is_slower=True)

    assert verdict(None, None) is Verdict.FAILED
    assert verdict(200, None) is Verdict.FAILED
    assert verdict(None, 200) is Verdict.NO_SOURCE
    assert verdict(200, 404, 2, "b") is Verdict.STATUS_DIFFERS
    assert verdict(200, 200, 2, "b") is Verdict.HEADERS_DIFFER
    assert verdict(200, 200, 2) is Verdict.BODY_DIFFERS
    assert verdict(200, 200) is Verdict.SLOWER
    assert judge(is_answered=True, has_source=True, kinds=(), is_slower=False) is Verdict.SAME


def test_slower_is_by_a_factor_and_by_a_time() -> None:
    latency = Rules().latency
    assert is_slower(20_000, 40_000, latency)
    assert not is_slower(20_000, 39_000, latency)
    assert not is_slower(100_000, 140_000, latency)
    assert not is_slower(None, 40_000, latency)
    assert not is_slower(20_000, None, latency)
