"""A request is sent again only where another answer may come of it, and never for ever."""

import gzip
import json
import logging
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import OptionError
from strandline.replay.retries import (
    ATTEMPTS,
    LONGEST_DELAY,
    MOST_ATTEMPTS,
    DefaultRetry,
    RetryPolicy,
    UserRetry,
    Verdict,
    load_policy,
    same_body,
    verdict,
)
from strandline.units import Nanos
from strandline.wire.answers import Answer

GET = b"GET /a HTTP/1.1\r\n\r\n"
BULK = b"POST /index/_bulk?refresh=true HTTP/1.1\r\n\r\n"

USER_MODULE = """
class Policy:
    def decide(self, attempt, source, target, request):
        return {1: 5, 2: 10**20, 3: -1, 4: None, 5: "soon"}[attempt]

class Endless:
    def decide(self, attempt, source, target, request):
        return 0

class Leaves:
    def decide(self, attempt, source, target, request):
        raise SystemExit(1)

policy = Policy()
endless = Endless()
leaves = Leaves()
other = 5
"""


def made(status: int, head: bytes, body: bytes, *, cut: bool) -> Answer:
    return Answer(status, head, body, len(body), "hash" if cut else None, True, Nanos(0), Nanos(0))


def answer(status: int, body: bytes = b"", *fields: str, cut: bool = False) -> Answer:
    head = "\r\n".join([f"HTTP/1.1 {status} X", *fields]) + "\r\n\r\n"
    return made(status, head.encode(), body, cut=cut)


statuses = st.integers(200, 599)
answers = st.none() | statuses.map(answer)


def retried(source: Answer | None, target: Answer | None, request: bytes = GET) -> bool:
    return DefaultRetry().decide(1, source, target, request) is not None


@given(answers, st.sampled_from([200, 201, 401, 403]) | st.integers(300, 399))
def test_a_settled_answer_is_taken_whatever_the_source_said(source: Answer | None, status: int) -> None:
    assert not retried(source, answer(status))


@given(answers, statuses.filter(lambda status: status not in {200, 201, 401, 403} and not 300 <= status < 400))
def test_any_other_answer_goes_again_if_the_source_did_better_or_said_nothing(
    source: Answer | None, status: int
) -> None:
    assert retried(source, answer(status)) == (source is None or (source.status < 300 <= status))


@given(answers, st.sampled_from([GET, BULK, b""]))
def test_no_answer_goes_again(source: Answer | None, request: bytes) -> None:
    assert retried(source, None, request)


def test_there_are_four_attempts_and_each_wait_doubles() -> None:
    waits = [DefaultRetry().decide(attempt, None, None, GET) for attempt in range(1, ATTEMPTS + 2)]
    assert waits == [100_000_000, 200_000_000, 400_000_000, None, None]


def bulk(*, errors: bool) -> bytes:
    items = [{"index": {"_id": "1", "status": 201}}, {"index": {"_id": "2", "status": 400 if errors else 201}}]
    return json.dumps({"took": 3, "errors": errors, "items": items}).encode()


@pytest.mark.parametrize("source", [True, False])
@pytest.mark.parametrize("target", [True, False])
def test_a_bulk_goes_again_if_items_failed_at_the_target_only(source: bool, target: bool) -> None:
    before, now = bulk(errors=source), bulk(errors=target)
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(now), now)
    for got in (
        answer(200, now),
        answer(200, chunks, "Transfer-Encoding: chunked"),
        answer(200, gzip.compress(now), "Content-Encoding: gzip"),
        answer(200, now[:30], cut=True),
    ):
        assert retried(answer(200, before), got, BULK) == (target and not source)
        assert not retried(answer(200, before), got, GET)


def test_a_bulk_without_its_summary_is_judged_by_its_items() -> None:
    good, bad = b'{"items":[{"index":{"_id":"1"}}]}', b'{"items":[{"index":{"error":{"type":"x"}}}]}'
    assert retried(answer(200, b"{}"), answer(200, bad), BULK)
    assert not retried(answer(200, good), answer(200, good), BULK)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"no json", b"[" * 9999, b'{"errors": 5}', b"[]"),
        *(b'{"items":[{"a":{"b":"\xff"}}]}', b'{"items":[{"a":{"b":1e999999999999999999999}}]}'),
    ],
)
def test_a_bulk_that_cannot_be_read_is_taken(body: bytes) -> None:
    assert not retried(answer(200, bulk(errors=False)), answer(200, body), BULK)
    assert not retried(answer(200, bulk(errors=False)), answer(200, body, cut=True), BULK)


@given(st.binary(max_size=60), st.binary(max_size=40), st.booleans())
def test_whatever_was_answered_is_judged(head: bytes, body: bytes, cut: bool) -> None:
    odd = made(200, head, body, cut=cut)
    assert DefaultRetry().decide(1, odd, odd, BULK) is None
    assert same_body(odd, odd) in {True, None}


@pytest.fixture(autouse=True)
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "replay_policies.py").write_text(USER_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("replay_policies", None)


def test_a_users_policy_decides_within_bounds(caplog: pytest.LogCaptureFixture) -> None:
    policy: RetryPolicy = load_policy("replay_policies:policy")
    with caplog.at_level(logging.ERROR):
        waits = [policy.decide(attempt, None, None, GET) for attempt in range(1, 7)]
    assert waits == [5, LONGEST_DELAY, 0, None, None, None]
    assert [record.getMessage() for record in caplog.records] == [
        "retry policy replay_policies:policy failed: ValueError",
        "retry policy replay_policies:policy failed: KeyError",
    ]
    assert load_policy("replay_policies:leaves").decide(1, None, None, GET) is None


def test_a_users_policy_that_never_ends_is_ended() -> None:
    policy = load_policy("replay_policies:endless")
    assert policy.decide(MOST_ATTEMPTS - 1, None, None, GET) == Nanos(0)
    assert policy.decide(MOST_ATTEMPTS, None, None, GET) is None


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("replay_policies:Policy", "is no object with a method 'decide'"),
        ("replay_policies:other", "is no object with a method 'decide'"),
        ("replay_policies:absent", "has no 'absent'"),
        ("absent_module:policy", "no module 'absent_module'"),
        ("nonsense", "is not module:name"),
    ],
)
def test_a_policy_that_is_none_is_refused_at_the_start(name: str, problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        load_policy(name)


def test_a_policy_may_be_given_as_an_object() -> None:
    assert UserRetry("mine", DefaultRetry()).decide(1, None, None, GET) == 100_000_000


@given(answers, answers)
def test_a_verdict_says_first_who_did_not_answer_then_whether_the_status_is_the_same(
    source: Answer | None, target: Answer | None
) -> None:
    given_ = verdict(source, target)
    assert (given_ is Verdict.NO_TARGET) == (target is None)
    assert (given_ is Verdict.NO_SOURCE) == (source is None and target is not None)
    both = source is not None and target is not None
    assert (given_ is Verdict.MATCH) == (both and source.status == target.status)  # type: ignore[union-attr]
    assert (given_ is Verdict.STATUS_DIFFERS) == (both and source.status != target.status)  # type: ignore[union-attr]


@given(answers, answers, st.sampled_from([GET, BULK]))
def test_where_the_source_is_not_needed_it_has_no_say(
    source: Answer | None, target: Answer | None, request: bytes
) -> None:
    policy = DefaultRetry()
    if not policy.needs_source(target, request):
        assert policy.decide(1, source, target, request) == policy.decide(1, None, target, request)


def test_bodies_are_the_same_but_for_their_chunks() -> None:
    whole, chunks = answer(200, b"hello"), answer(500, b"5\r\nhello\r\n0\r\n\r\n", "Transfer-Encoding: chunked")
    assert same_body(whole, chunks) is True
    assert same_body(whole, answer(200, b"other")) is False
    assert same_body(whole, answer(200, b"hello", cut=True)) is None
    assert same_body(None, whole) is None
    assert same_body(whole, None) is None
