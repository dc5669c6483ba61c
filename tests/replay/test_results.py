"""A result tells all that happened, and whatever happened, it fits into a record of Kafka."""

import base64
import hashlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.replay.encoding import encode_result
from strandline.replay.results import MAX_RECORD, WIDEST, Attempt, Limits, Message, Outcome, Result
from strandline.replay.retries import Verdict
from strandline.replay.tuples import encode_tuple
from strandline.units import Nanos

SECOND = 1_000_000_000


def time(seconds: float) -> Nanos:
    return Nanos(1_700_000_000 * SECOND + int(seconds * SECOND))


def outcome(**given_: Any) -> Outcome:
    body = b'{"a": 1}'
    fields: dict[str, Any] = {
        "partition": 3,
        "offset": 14,
        "ordinal": 1,
        "connection": "c",
        "node": "n",
        "generation": 2,
        "records": [(3, 14), (3, 15)],
        "source_request": Message(
            head=b"POST /a HTTP/1.1\r\nHost: s\r\nContent-Type: application/json\r\n\r\n", body=body
        ),
        "source_response": Message(head=b"HTTP/1.1 200 OK\r\nA: 1\r\na: 2\r\n\r\n", body=b"\xff\x00"),
        "source_complete": True,
        "target_request": Message(head=b"POST /a HTTP/1.1\r\nHost: t\r\n\r\n", body=body),
        "attempts": [
            Attempt(sent=time(10.5), end=time(10.6), error="reset"),
            Attempt(
                response=Message(head=b"HTTP/1.1 404 Not Found\r\n\r\n", body="é".encode()),
                sent=time(11),
                first_byte=time(11.25),
                end=time(11.75),
            ),
        ],
        "source_time": time(0),
        "source_end": time(0.0305),
        "due": time(10),
        "verdict": Verdict.STATUS_DIFFERS,
        "same_body": False,
        "error": None,
    }
    return Outcome(**(fields | given_))


def test_a_result_tells_all_that_happened() -> None:
    start = 1_700_000_000_000_000
    assert json.loads(encode_result(outcome())) == {
        "id": "3-14.1",
        "connection": "c",
        "node": "n",
        "partition": 3,
        "offset": 14,
        "ordinal": 1,
        "records": [[3, 14], [3, 15]],
        "record_count": 2,
        "generation": 2,
        "source_request": {
            "method": "POST",
            "target": "/a",
            "head": "POST /a HTTP/1.1\r\nHost: s\r\nContent-Type: application/json\r\n\r\n",
            "body": '{"a": 1}',
            "length": 8,
        },
        "source_response": {
            "status": 200,
            "complete": True,
            "head": "HTTP/1.1 200 OK\r\nA: 1\r\na: 2\r\n\r\n",
            "body_base64": "/wA=",
            "length": 2,
        },
        "target_request": {
            "method": "POST",
            "target": "/a",
            "head": "POST /a HTTP/1.1\r\nHost: t\r\n\r\n",
            "body": '{"a": 1}',
            "length": 8,
        },
        "attempts": [
            {
                "response": None,
                "sent_us": start + 10_500_000,
                "first_byte_us": None,
                "end_us": start + 10_600_000,
                "error": "reset",
            },
            {
                "response": {"status": 404, "head": "HTTP/1.1 404 Not Found\r\n\r\n", "body": "é", "length": 2},
                "sent_us": start + 11_000_000,
                "first_byte_us": start + 11_250_000,
                "end_us": start + 11_750_000,
                "error": None,
            },
        ],
        "attempt_count": 2,
        "source_time_us": start,
        "source_end_us": start + 30_500,
        "due_us": start + 10_000_000,
        "sent_us": start + 10_500_000,
        "first_byte_us": start + 11_250_000,
        "end_us": start + 11_750_000,
        "lateness_us": 500_000,
        "verdict": "status_differs",
        "same_body": False,
        "error": None,
    }


def test_a_request_that_was_never_sent_has_its_error_and_no_times() -> None:
    unsent = outcome(
        target_request=None, source_response=None, attempts=[], verdict=Verdict.NO_TARGET, error="json: no place"
    )
    result = msgspec.json.decode(encode_result(unsent), type=Result)
    assert (result.sent_us, result.lateness_us, result.end_us, result.target_request) == (None, None, None, None)
    assert (result.verdict, result.error, result.source_response) == (Verdict.NO_TARGET, "json: no place", None)


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode), st.integers(0, 300))
def test_a_body_is_whole_or_its_beginning_with_length_and_hash(body: bytes, limit: int) -> None:
    message = Message(head=b"GET / HTTP/1.1\r\n\r\n", body=body)
    record = json.loads(encode_result(outcome(source_request=message), Limits(body=limit)))["source_request"]
    kept = record["body"].encode() if "body" in record else base64.b64decode(record["body_base64"])
    assert record["length"] == len(body)
    assert body.startswith(kept)
    if len(body) <= limit:
        assert kept == body
        assert "sha256" not in record
    else:
        # Text loses at most the rest of a sign that the cut broke.
        assert limit - 3 <= len(kept) <= limit
        assert record["sha256"] == hashlib.sha256(body).hexdigest()


def test_a_body_that_was_never_held_whole_keeps_its_own_length_and_hash() -> None:
    message = Message(head=b"PUT / HTTP/1.1\r\n\r\n", body=b"begin", length=10**9, sha256="abc")
    record = json.loads(encode_result(outcome(source_request=message)))["source_request"]
    assert (record["body"], record["length"], record["sha256"]) == ("begin", 10**9, "abc")
    unknown = Message(head=b"PUT / HTTP/1.1\r\n\r\n", body=b"begin", length=10**9)
    record = json.loads(encode_result(outcome(source_request=unknown)))["source_request"]
    assert "sha256" not in record


sizes = st.sampled_from([0, 10, 1000, WIDEST.body, WIDEST.body + 1, 400_000])
units = st.sampled_from([b"a", b"\x01", b"\xff", b'"', "é".encode(), "😀".encode(), b"a: b\r\n", b"a:\r\n"])
lumps = st.builds(lambda unit, size: (unit * (size // len(unit) + 1))[:size], units, sizes)
messages = st.builds(
    Message,
    head=st.builds(
        lambda first, fields: first + fields + b"\r\n",
        st.sampled_from([b"GET / HTTP/1.1\r\n", b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n", b""]),
        lumps,
    ),
    body=lumps,
)
words = st.sampled_from(["", "x", "\x01", "é", "\udcff", "😀"]).flatmap(
    lambda unit: sizes.map(lambda size: unit * size)
)
outcomes = st.builds(
    outcome,
    connection=words.map(lambda text: text.replace("\udcff", "y")),
    records=st.sampled_from([1, 1000, 200_000]).map(lambda count: [(1, 10**18)] * count),
    source_request=messages,
    source_response=st.none() | messages,
    target_request=st.none() | messages,
    attempts=st.builds(
        lambda response, error, count: [Attempt(response=response, sent=time(1), error=error)] * count,
        st.none() | messages,
        words,
        st.sampled_from([0, 1, 4, 100]),
    ),
    error=st.none() | words,
)


@settings(max_examples=60, deadline=None)
@given(outcomes, st.sampled_from([WIDEST, Limits(body=0), Limits(10**9, 10**9, 10**9)]))
def test_no_result_is_too_large_for_kafka(given_: Outcome, limits: Limits) -> None:
    for encoded in (encode_result(given_, limits), encode_tuple(given_, limits)):
        assert len(encoded) < MAX_RECORD
        assert b"\n" not in encoded
        json.loads(encoded)
    assert json.loads(encode_result(given_))["attempt_count"] == len(given_.attempts)


def test_the_worst_of_all_parts_at_once_still_fits() -> None:
    worst = Message(head=b"GET /" + b"\x01" * 10**6 + b" HTTP/1.1\r\n\r\n", body=b"\x01" * 10**6)
    all_worst = outcome(
        connection="\x01" * 10**6,
        node="\x01" * 10**6,
        records=[(2**31, 2**63)] * 10**6,
        source_request=worst,
        source_response=worst,
        target_request=worst,
        attempts=[Attempt(response=worst, sent=time(1), error="\x01" * 10**6)] * 100,
        error="\x01" * 10**6,
    )
    for encode in (encode_result, encode_tuple):
        assert len(encode(all_worst)) < MAX_RECORD


def test_a_tuple_is_as_the_other_replayer_writes_it() -> None:
    assert json.loads(encode_tuple(outcome(error="gave up"))) == {
        "sourceRequest": {
            "Host": "s",
            "Content-Type": "application/json",
            "Request-URI": "/a",
            "Method": "POST",
            "HTTP-Version": "HTTP/1.1",
            "payload": {"inlinedJsonBody": {"a": 1}},
        },
        "sourceResponse": {
            "A": ["1", "2"],
            "HTTP-Version": "HTTP/1.1",
            "Status-Code": 200,
            "Reason-Phrase": "OK",
            "response_time_ms": 30,
            "payload": {"inlinedBase64Body": "/wA="},
        },
        "targetRequest": {
            "Host": "t",
            "Request-URI": "/a",
            "Method": "POST",
            "HTTP-Version": "HTTP/1.1",
            "payload": {"inlinedTextBody": '{"a": 1}'},
        },
        "targetResponses": [
            {
                "HTTP-Version": "HTTP/1.1",
                "Status-Code": 404,
                "Reason-Phrase": "Not Found",
                "response_time_ms": 750,
                "payload": {"inlinedTextBody": "é"},
            }
        ],
        "connectionId": "c.1",
        "numRequests": 2,
        "numErrors": 1,
        "error": "gave up",
    }


@pytest.mark.parametrize(
    ("fields", "body", "payload"),
    [
        ("Content-Type: application/x-ndjson", b'{"a":1}\n{broken', {"inlinedTextBody": '{"a":1}\n{broken'}),
        (
            "Content-Type: application/x-ndjson",
            b'{"a":1}\n{"b":2}\n',
            {"inlinedJsonSequenceBodies": [{"a": 1}, {"b": 2}]},
        ),
        ("Content-Type: application/json", b"{\n broken", {"inlinedTextBody": "{\n broken"}),
        ("Content-Type: application/json", b'{"a":"\xff"}', {"inlinedBase64Body": "eyJhIjoi/yJ9"}),
        ("Content-Type: application/x-ndjson", b'{"a":"\xff"}', {"inlinedBase64Body": "eyJhIjoi/yJ9"}),
        (
            "Content-Type: application/json",
            b'{"a":1e99999999999999999999}',
            {"inlinedTextBody": '{"a":1e99999999999999999999}'},
        ),
        ("Content-Type: application/json", b"[" * 900, {"inlinedTextBody": "[" * 900}),
        ("Transfer-Encoding: chunked", b"2\r\nhi\r\n0\r\n\r\n", {"inlinedTextBody": "hi"}),
        ("Transfer-Encoding: chunked", b"broken", {"inlinedTextBody": "broken"}),
        ("A: b", b"", None),
    ],
)
def test_a_tuples_body_lies_under_the_key_that_says_what_it_is(fields: str, body: bytes, payload: Any) -> None:
    message = Message(head=f"POST / HTTP/1.1\r\n{fields}\r\n\r\n".encode(), body=body)
    assert json.loads(encode_tuple(outcome(source_request=message)))["sourceRequest"].get("payload") == payload


def test_a_message_that_is_none_is_told_as_such_in_a_tuple() -> None:
    odd = Message(head=b"nonsense")
    told = json.loads(encode_tuple(outcome(source_request=odd, source_response=odd)))
    assert "Exception" in told["sourceRequest"]
    assert "Exception" in told["sourceResponse"]
    result = json.loads(encode_result(outcome(source_request=odd, source_response=odd)))
    assert "status" not in result["source_response"]
    assert result["source_request"]["head"] == "nonsense"
