"""What the capture's redaction has changed is nobody's fault: it is compared with nothing, and all else is."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.capture.redacted import RedactedMessages
from strandline.capture.redaction import Action, Redaction
from strandline.replay.results import Message
from strandline.replay.retries import same_body
from strandline.report.compare import Compared, compare
from strandline.report.rules import Rules
from strandline.units import Nanos
from strandline.wire.answers import Answer
from tests.report.support import answer, exchange

NAMES = st.sampled_from(["card", "user", "Number", "x"])
TREES = st.recursive(
    st.none() | st.integers(0, 9), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3)
)
PATHS = st.sampled_from(["card", "user.number", "*", "*.x", "**.number", "**", "user.*.card", "user.**"])


def recorded(said: Message, redaction: Redaction) -> Message:
    """An answer as a capture with redaction records it."""
    head, end, rest = said.head.partition(b"\r\n\r\n")
    messages = RedactedMessages(redaction)
    framed = head + b"\r\nContent-Length: %d" % len(said.body) + end + rest + said.body
    head, end, body = (messages.feed(framed) + messages.end()).partition(b"\r\n\r\n")
    return Message(head=head + end, body=body)


def compared(source: Message, target: Message) -> Compared:
    return compare(exchange(source, target), Rules())


@given(TREES, st.dictionaries(PATHS, st.sampled_from(Action), min_size=1, max_size=2))
def test_an_answer_does_not_differ_from_what_redaction_left_of_it(tree: Any, rules: dict[str, Action]) -> None:
    said = answer(200, tree, Set_Cookie="s=1", Location="/?token=1", Content_MD5="abc")
    everything = Redaction(
        headers={"set-cookie": Action.REMOVE}, query={"token": Action.HASH}, json=rules, key=bytes(16)
    )
    assert not compared(recorded(said, everything), said).differences


@pytest.mark.parametrize("body", [b"x" * 3000, b"neither one nor the other", msgspec.json.encode({"a": "y" * 3000})])
def test_a_body_that_was_left_out_is_not_compared_and_its_headers_are(body: bytes) -> None:
    redaction = Redaction(json={"card": Action.REMOVE}, max_body=1000)
    source = recorded(answer(200, body, X_Version="1"), redaction)
    assert b"X-Strandline-Redacted" in source.head
    found = compared(source, answer(200, body, X_Version="2"))
    assert [each.path for each in found.differences] == ["x-version"]
    assert not found.is_compared


def test_fields_beside_those_that_were_redacted_are_compared() -> None:
    redaction = Redaction(json={"card": Action.HASH, "user.name": Action.REMOVE}, key=bytes(16))
    source = recorded(answer(200, {"card": 1, "items": [{"price": 1}]}), redaction)
    found = compared(source, answer(200, {"card": 2, "items": [{"price": 3}], "user": {"name": "a"}}))
    # The source's answer had no user: the rule for it has changed nothing, and hides nothing.
    assert {each.path for each in found.differences} == {"$.items[*].price", "$.user"}


def test_of_a_redacted_body_that_is_cut_nothing_is_told() -> None:
    long = {"card": 1, "text": "x" * 100_000}
    source = recorded(answer(200, long), Redaction(json={"card": Action.REMOVE}))
    found = compared(source, answer(200, long))
    assert not found.differences
    assert not found.is_compared


def test_of_a_redacted_body_a_replay_does_not_know_whether_it_is_the_same() -> None:
    said = answer(200, {"card": 1}, Set_Cookie="s=1")

    def as_answer(message: Message) -> Answer:
        return Answer(200, message.head, message.body, len(message.body), None, True, Nanos(0), Nanos(0))

    fields = recorded(said, Redaction(json={"card": Action.REMOVE}))
    headers = recorded(said, Redaction(headers={"set-cookie": Action.REMOVE}))
    assert same_body(as_answer(fields), as_answer(said)) is None
    assert same_body(as_answer(headers), as_answer(said)) is True
