"""A record is an exchange, or it is told what is wrong with it; no record ends the report."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import MalformedResult
from strandline.report.compare import compare
from strandline.report.exchange import read_exchange
from strandline.report.rules import Rules
from tests.report.support import answer, exchange, result

RECORD = result(answer(200, {"a": 1}), answer(200, {"a": 2}), source_us=7_000, target_us=9_000)


def test_a_result_of_the_replay_is_read() -> None:
    read = exchange(answer(200, {}), answer(201, {}), source_us=7_000, target_us=9_000, late_us=300)
    assert (read.source_us, read.target_us, read.lateness_us) == (7_000, 9_000, 300)
    assert read.target_response is not None
    assert read.target_response.status == 201
    unanswered = exchange(None, None)
    assert (unanswered.source_us, unanswered.target_us, unanswered.target_response) == (None, None, None)


@given(st.binary(max_size=50) | st.integers(0, len(RECORD) - 1).map(lambda end: RECORD[:end]) | st.none())
def test_what_is_no_result_is_told(record: bytes | None) -> None:
    with pytest.raises(MalformedResult):
        read_exchange(record)


@pytest.mark.parametrize(
    ("name", "value"),
    [("offset", 2**63), ("ordinal", 2**31), ("sent_us", 2**64), ("id", 5), ("connection", "\ud800"), ("attempts", {})],
)
def test_values_that_no_column_takes_are_refused(name: str, value: Any) -> None:
    made = msgspec.json.decode(RECORD) | {name: "@" if isinstance(value, str) else value}
    record = msgspec.json.encode(made).replace(b'"@"', b'"\\ud800"')
    with pytest.raises(MalformedResult):
        read_exchange(record)


def test_a_body_that_is_not_base64_is_refused_when_it_is_compared() -> None:
    made = msgspec.json.decode(RECORD)
    made["source_response"]["body_base64"] = "*"
    with pytest.raises(MalformedResult):
        compare(read_exchange(msgspec.json.encode(made)), Rules())
