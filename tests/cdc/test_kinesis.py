"""The sender: against an endpoint with faults; tests/stack/test_kinesis_conformance.py has it against moto's."""

import hmac
import json
import random
import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pytest

from strandline.cdc import sending
from strandline.cdc.deadletter import DeadLetter
from strandline.cdc.failures import STOP, Course
from strandline.cdc.kinesis import Sender
from strandline.cdc.limits import SendOptions
from strandline.cdc.sending import FOREVER, Sent
from strandline.core.retry import Backoff
from strandline.errors import DeadLetterFailed, NotLeading, OptionError, StreamRefused
from strandline.stack.certificates import Authority
from strandline.stack.kinesis import Kinesis
from strandline.units import Nanos
from tests.cdc.faulty import FINE, Behaviour, Entry, FaultyStream, Id, refused
from tests.support import TIMEOUT, wait_for

SOON = Backoff(first=Nanos(1_000_000), ceiling=Nanos(10_000_000))
# Whoever counts requests must not have one go again because the machine has stalled.
PATIENT = SendOptions(timeout=timedelta(seconds=TIMEOUT))
Row = tuple[str, int, int]


def patient(**options: Any) -> SendOptions:
    return replace(PATIENT, **options)


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ACCESS_KEY_ID": "local", "SECRET_ACCESS_KEY": "local", "DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setattr(sending, "BACKOFF", {Course.AGAIN: SOON, Course.SLOWER: SOON})


class Kept:
    """A dead-letter place that remembers, or fails."""

    def __init__(self, failing: str | None = None) -> None:
        self.failing = failing
        self.letters: list[DeadLetter] = []

    async def write(self, letters: Sequence[DeadLetter]) -> None:
        if self.failing:
            raise DeadLetterFailed("the test", self.failing)
        self.letters += letters

    def close(self) -> None:
        pass


def batch_of(rows: Sequence[Row], **extra: Any) -> pa.RecordBatch:
    events = [json.dumps({"lsn": lsn, "ordinal": ordinal, **extra}).encode() for _, lsn, ordinal in rows]
    return raw_batch(rows, events)


def raw_batch(rows: Sequence[tuple[str | None, int, int]], events: Sequence[bytes | None]) -> pa.RecordBatch:
    keys, lsns, ordinals = zip(*rows, strict=True)
    return pa.record_batch(
        {
            "lsn": pa.array(lsns, pa.int64()),
            "ordinal": pa.array(ordinals, pa.int64()),
            "partition_key": pa.array(keys, pa.string()),
            "event": pa.array(events, pa.binary()),
        }
    )


def rows_of(count: int, keys: int, seed: int = 1, lsn: int = 7) -> list[Row]:
    draw = random.Random(seed)
    return [(f"key {draw.randrange(keys)}", lsn, ordinal) for ordinal in range(count)]


def always() -> Nanos:
    """We lead."""
    return FOREVER


def send(
    stream: FaultyStream, batches: Sequence[pa.RecordBatch], options: SendOptions = PATIENT, place: Kept | None = None
) -> Sent:
    with Sender("changes", endpoint_url=stream.url, options=options, dead_letters=place) as sender:
        return sender.send(batches, leadership=3, fence=always)


def check_order(stream: FaultyStream, rows: Sequence[Row]) -> None:
    """All is there, and the first arrivals of every key are in order."""
    expected: dict[str, list[Id]] = defaultdict(list)
    for key, lsn, ordinal in rows:
        expected[key].append((lsn, ordinal))
    assert {key: stream.ids(key) for key in expected} == expected
    assert len(stream.ids()) == len(rows)


def test_every_record_arrives_once_in_the_order_of_its_key_with_the_leadership() -> None:
    rows = rows_of(3_000, keys=700)
    with FaultyStream() as stream:
        sent = send(stream, [batch_of(rows[:1_000]), batch_of(rows[1_000:1_001]), batch_of(rows[1_001:])])
        check_order(stream, rows)
        assert len(stream.taken) == sent.records == 3_000
        assert {entry.event["leadership"] for entry in stream.taken} == {3}
        assert (sent.retried, sent.dead_lettered, sent.requests) == (0, 0, len(stream.requests))


def half_of_the_records(draw: random.Random, entries: list[Entry]) -> Behaviour:
    code = draw.choice(["ProvisionedThroughputExceededException", "InternalFailure"])
    return Behaviour(failing={place: code for place in range(len(entries)) if draw.random() < 0.5})


def whole_requests(draw: random.Random, entries: list[Entry]) -> Behaviour:
    codes = [(400, "ProvisionedThroughputExceededException"), (400, "ThrottlingException"), (500, "InternalFailure")]
    return Behaviour(error=draw.choice([*codes, (503, "NeverHeardOf"), (429, "")])) if draw.random() < 0.5 else FINE


def closed_connections(draw: random.Random, entries: list[Entry]) -> Behaviour:
    return Behaviour(closes=True, takes=draw.random() < 0.5) if draw.random() < 0.5 else FINE


def all_at_once(draw: random.Random, entries: list[Entry]) -> Behaviour:
    fault = draw.choice([half_of_the_records, whole_requests, closed_connections, lambda *_: FINE])
    return fault(draw, entries)


@pytest.mark.parametrize("fault", [half_of_the_records, whole_requests, closed_connections, all_at_once])
def test_what_fails_goes_again_before_later_records_of_its_key(fault: Any) -> None:
    draw = random.Random(11)
    rows = rows_of(2_000, keys=300)
    with FaultyStream(lambda _, entries: fault(draw, entries)) as stream:
        sent = send(stream, [batch_of(rows)], patient(max_request_records=50))
        check_order(stream, rows)
        assert sent.records == 2_000
        assert sent.retried > 0
        if fault in {half_of_the_records, whole_requests}:
            assert len(stream.taken) == 2_000


def test_after_a_time_out_records_may_repeat_with_their_id_and_their_order_holds() -> None:
    rows = rows_of(600, keys=60)
    with FaultyStream(lambda number, _: Behaviour(answers=number % 5 != 1)) as stream:
        sent = send(stream, [batch_of(rows)], SendOptions(timeout=timedelta(milliseconds=200)))
        check_order(stream, rows)
        assert len(stream.taken) > sent.records == 600


def test_requests_keep_the_bound_in_bytes_and_a_larger_record_goes_alone() -> None:
    sizes = [300] * 50 + [3_000] + [300] * 50
    rows = [(f"key {place}", 1, place) for place in range(len(sizes))]
    events = [json.dumps({"lsn": 1, "ordinal": place, "fill": "x" * size}).encode() for place, size in enumerate(sizes)]
    with FaultyStream() as stream:
        send(stream, [raw_batch(rows, events)], patient(max_request_bytes=2_000))
        check_order(stream, rows)
        assert max(len(request) for request in stream.requests) == 5
        assert [len(one) for one in stream.requests if any(entry.id == (1, 50) for entry in one)] == [1]


def test_a_record_as_large_as_a_stream_can_be_set_to_take_arrives() -> None:
    with FaultyStream() as stream:
        events = [b'{"lsn":1,"ordinal":0,"fill":"%s"}' % (b"x" * (10 << 20))[:-100]]
        send(stream, [raw_batch([("a", 1, 0)], events)], patient(max_record_bytes=10 << 20))
        assert stream.ids() == [(1, 0)]


def test_the_hottest_key_is_told_with_its_rate() -> None:
    rows = [("cold", 1, 0), *[("hot", 2, ordinal) for ordinal in range(30)], ("warm", 3, 0), ("warm", 3, 1)]
    with FaultyStream() as stream:
        sent = send(stream, [batch_of(rows[:10]), batch_of(rows[10:])])
        assert (sent.hottest_key, sent.hottest_records) == ("hot", 30)
        assert sent.hottest_per_s == pytest.approx(30 / sent.seconds)
        # One of them a request.
        assert len(stream.requests) >= 30


def test_an_error_that_somebody_must_mend_stops_with_one_line() -> None:
    with FaultyStream() as stream, Sender("changes", endpoint_url=stream.url, options=PATIENT) as sender:
        for number, code in enumerate([*STOP, "SomethingNew"], 1):
            stream.behave = lambda *_, code=code: refused(code)
            with pytest.raises(StreamRefused) as stopped:
                sender.send([batch_of([("a", 1, 0), ("a", 1, 1)])], leadership=1, fence=always)
            assert len(stream.requests) == number
            told = str(stopped.value)
            assert told.startswith(f"stream 'changes': {code} (as told); ")
            assert STOP.get(code, "this answer is not known here") in told
            assert "\n" not in told


def test_a_record_with_a_code_that_is_not_known_stops() -> None:
    stream = FaultyStream(lambda *_: Behaviour(failing={0: "SomethingNew"}))
    with stream, pytest.raises(StreamRefused, match="SomethingNew"):
        send(stream, [batch_of([("a", 1, 0), ("b", 1, 1)])])


@pytest.mark.parametrize("raw", [b"<html>welcome</html>", b"{}", b'{"Records":[]}'])
def test_an_answer_that_is_not_of_kinesis_stops(raw: bytes) -> None:
    stream = FaultyStream(lambda *_: Behaviour(raw=raw))
    with stream, pytest.raises(StreamRefused, match="not of Kinesis; check the region, and endpoint_url"):
        send(stream, [batch_of([("a", 1, 0)])])


def test_when_leading_ends_all_that_is_on_its_way_is_broken_off_and_nothing_more_is_sent() -> None:
    lost = threading.Event()

    def fence() -> Nanos:
        if lost.is_set():
            raise NotLeading("test", "the lease is over")
        return FOREVER

    def behave(number: int, _: list[Entry]) -> Behaviour:
        if number == 9:
            lost.set()
        # The first gets no answer: it is on its way when the fence raises.
        return Behaviour(answers=number != 0)

    rows = rows_of(2_000, keys=2_000)
    with FaultyStream(behave) as stream:
        options = SendOptions(max_request_records=10, in_flight=2, timeout=timedelta(hours=1))
        with Sender("changes", endpoint_url=stream.url, options=options) as sender:
            with pytest.raises(NotLeading):
                sender.send([batch_of(rows)], leadership=3, fence=fence)
            assert len(stream.requests) == 10
            # It sends again when it may.
            lost.clear()
            sender.send([batch_of(rows)], leadership=4, fence=fence)
        check_order(stream, rows)


def test_when_leading_ends_a_request_without_an_answer_is_not_waited_for() -> None:
    lost = threading.Event()

    def fence() -> Nanos:
        if lost.is_set():
            raise NotLeading("test", "the lease is over")
        return FOREVER

    def behave(*_: object) -> Behaviour:
        lost.set()
        return Behaviour(answers=False)

    stream, options = FaultyStream(behave), SendOptions(timeout=timedelta(hours=1))
    with stream, Sender("changes", endpoint_url=stream.url, options=options) as sender, pytest.raises(NotLeading):
        sender.send([batch_of([("a", 1, 0)])], leadership=1, fence=fence)


def test_a_request_is_broken_off_when_the_leave_to_send_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "WATCH_EVERY", 3_600)
    end = time.monotonic() + 0.5

    def fence() -> Nanos:
        left = end - time.monotonic()
        if left <= 0:
            raise NotLeading("test", "the leave is over")
        return Nanos(int(left * 1e9))

    stream, options = FaultyStream(lambda *_: Behaviour(answers=False)), SendOptions(timeout=timedelta(hours=1))
    with stream, Sender("changes", endpoint_url=stream.url, options=options) as sender, pytest.raises(NotLeading):
        sender.send([batch_of([("a", 1, 0)])], leadership=1, fence=fence)


def test_the_fence_is_asked_before_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "WATCH_EVERY", 3_600)
    asked = 0

    def fence() -> Nanos:
        nonlocal asked
        asked += 1
        return FOREVER

    with FaultyStream(lambda number, _: refused("InternalFailure", 500) if number % 2 else FINE) as stream:
        with Sender("changes", endpoint_url=stream.url, options=PATIENT) as sender:
            sender.send([batch_of(rows_of(50, keys=5))], leadership=1, fence=fence)
        # And once at the beginning.
        assert asked == len(stream.requests) + 1


WRONG_ROWS: list[tuple[str | None, bytes | None, str]] = [
    ("a", b'{"fill":"' + b"x" * 1_000 + b'"}', "the record has more than the 500 bytes that the stream takes"),
    ("", b'{"a":1}', "the partition key has 0 characters; Kinesis takes 1 to 256"),
    (None, b'{"a":1}', "the partition key has 0 characters; Kinesis takes 1 to 256"),
    ("k" * 257, b'{"a":1}', "the partition key has 257 characters; Kinesis takes 1 to 256"),
    ("a", b"[1]", "the event is not a JSON object with members"),
    ("a", b"{}", "the event is not a JSON object with members"),
    ("a", None, "the event is not a JSON object with members"),
]


def test_rows_that_no_stream_takes_are_put_away_as_they_are_and_the_others_arrive() -> None:
    place = Kept()
    rows: list[tuple[str | None, int, int]] = [("a", 5, 0)]
    events: list[bytes | None] = [b'{"lsn":5,"ordinal":0}']
    letters = []
    for key, event, reason in WRONG_ROWS:
        letters.append(DeadLetter(5, len(rows), reason, key, event))
        rows += [(key, 5, len(rows)), ("a", 5, len(rows) + 1)]
        events += [event, b'{"lsn":5,"ordinal":%d}' % (len(rows) - 1)]
    with FaultyStream() as stream:
        sent = send(stream, [raw_batch(rows, events)], patient(max_record_bytes=500), place)
        assert stream.ids() == [(5, ordinal) for ordinal in range(0, len(rows), 2)]
    assert place.letters == letters
    assert (sent.records, sent.dead_lettered) == (len(WRONG_ROWS) + 1, len(WRONG_ROWS))
    assert sent.first_letter == f"0/5 1: {WRONG_ROWS[0][2]}"


def test_a_key_of_256_characters_of_any_length_in_bytes_is_sent() -> None:
    with FaultyStream() as stream:
        send(stream, [batch_of([("ü" * 256, 1, 0)])])
        assert [entry.key for entry in stream.taken] == ["ü" * 256]


def refuse(*wrong: int) -> Any:
    """As Kinesis does: all of a request, when one of its records is wrong."""

    def behave(_: int, entries: list[Entry]) -> Behaviour:
        return refused("InvalidArgumentException") if any(entry.id[1] in wrong for entry in entries) else FINE

    return behave


def test_the_wrong_ones_of_a_refused_request_are_found_and_put_away_before_later_ones_of_their_key() -> None:
    rows = rows_of(400, keys=100)
    stream = FaultyStream(refuse(5, 77, 78))
    seen: list[set[Id]] = []

    class Watching(Kept):
        async def write(self, letters: Sequence[DeadLetter]) -> None:
            for letter in letters:
                later = {(7, n) for key, _, n in rows if key == letter.partition_key and n > letter.ordinal}
                seen.append(later & set(stream.ids()))
            await super().write(letters)

    place = Watching()
    with stream:
        sent = send(stream, [batch_of(rows)], place=place)
        check_order(stream, [row for row in rows if row[2] not in {5, 77, 78}])
    assert sorted(letter.ordinal for letter in place.letters) == [5, 77, 78]
    assert place.letters[0].reason == "InvalidArgumentException (as told)"
    assert place.letters[0].payload == b'{"lsn": 7, "ordinal": 5}'
    assert seen == [set()] * 3
    assert (sent.records, sent.dead_lettered) == (397, 3)


def test_a_stream_that_refuses_every_record_is_what_is_wrong_and_no_record_is_put_away() -> None:
    place = Kept()
    stream = FaultyStream(lambda *_: refused("ValidationException"))
    with stream, pytest.raises(StreamRefused, match=r"ValidationException \(as told\); it refuses every record alone"):
        send(stream, [batch_of(rows_of(10, keys=10))], place=place)
    assert not place.letters


@pytest.mark.parametrize("place", [Kept("it is down"), None], ids=["down", "none"])
@pytest.mark.parametrize("at_once", [True, False], ids=["found by us", "found by Kinesis"])
def test_when_a_record_cannot_be_put_away_nothing_is_acknowledged(place: Kept | None, *, at_once: bool) -> None:
    rows = rows_of(40, keys=4)
    with FaultyStream(refuse(8)) as stream:
        options = patient(max_record_bytes=20 if at_once else 1_000)
        with pytest.raises(DeadLetterFailed, match="it is down" if place else "none is set, and record 0/7 "):
            send(stream, [batch_of(rows)], options, place)
        # What lies behind it did not go.
        key = rows[8][0]
        assert all(ordinal < 8 for _, ordinal in stream.ids(key))


def test_batches_are_taken_as_there_is_room() -> None:
    rows = [(f"key {ordinal}", lsn, ordinal) for lsn in range(40) for ordinal in range(100)]
    most = 0

    def behave(number: int, _: list[Entry]) -> Behaviour:
        if not number:
            # However fast the answers would be.
            wait_for(lambda: most > 400, "as many batches are taken as there is room for")
        return FINE

    with (
        FaultyStream(behave) as stream,
        Sender("changes", endpoint_url=stream.url, options=patient(max_held_bytes=500_000)) as sender,
    ):

        def batches() -> Iterator[pa.RecordBatch]:
            nonlocal most
            for start in range(0, len(rows), 100):
                most = max(most, start + 100 - len(stream.taken))
                yield batch_of(rows[start : start + 100], fill="x" * 1_000)

        sender.send(batches(), leadership=1, fence=always)
        check_order(stream, rows)
    # A batch has a little above 100,000 bytes, and one is taken while less than the bound is held.
    assert 400 < most <= 600


def test_an_error_of_who_gives_the_batches_is_raised() -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield batch_of([("a", 1, 0)])
        raise ValueError("no more")

    stream = FaultyStream()
    with (
        stream,
        Sender("changes", endpoint_url=stream.url, options=PATIENT) as sender,
        pytest.raises(ValueError, match="no more"),
    ):
        sender.send(batches(), leadership=1, fence=always)


@pytest.mark.parametrize("patient", [True, False])
def test_a_failure_is_handed_on_when_whoever_gives_batches_has_ended_or_is_too_slow(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, patient: bool
) -> None:
    asked, raised, let_go, ended = (threading.Event() for _ in range(4))

    def fence() -> Nanos:
        if asked.is_set():
            raised.set()
            raise NotLeading("test", "the lease is over")
        return FOREVER

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch_of([("a", 1, 0)])
        asked.set()
        assert raised.wait(TIMEOUT)
        # As one that is about to take the slot.
        let_go.wait(0.3 if patient else TIMEOUT)
        ended.set()

    monkeypatch.setattr(sending, "READER_ENDS_WITHIN", TIMEOUT if patient else 0.1)
    with FaultyStream() as stream, Sender("changes", endpoint_url=stream.url, options=PATIENT) as sender:
        with pytest.raises(NotLeading):
            sender.send(batches(), leadership=1, fence=fence)
        assert ended.is_set() == patient
        assert ("has not ended after 0.1 s" in caplog.text) != patient
        let_go.set()
        assert ended.wait(TIMEOUT)


def test_no_batches_are_no_requests() -> None:
    with FaultyStream() as stream:
        assert send(stream, []).requests == 0
        assert not stream.requests


def test_a_connection_that_was_closed_meanwhile_costs_no_record() -> None:
    stream = FaultyStream(lambda *_: Behaviour(closes_after=True))
    with stream, Sender("changes", endpoint_url=stream.url, options=PATIENT) as sender:
        for lsn in range(3):
            sender.send([batch_of([("a", lsn, 0)])], leadership=1, fence=always)
        assert [entry.id for entry in stream.taken] == [(0, 0), (1, 0), (2, 0)]


def test_a_request_is_signed_with_what_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "for a while")
    with FaultyStream() as stream:
        send(stream, [batch_of([("a", 1, 0)])])
        head, body = stream.heads[0], stream.bodies[0]
    assert head["x-amz-security-token"] == "for a while"
    found = re.fullmatch(
        r"AWS4-HMAC-SHA256 Credential=local/(\d{8})/us-east-1/kinesis/aws4_request, "
        r"SignedHeaders=(\S+), Signature=(\S+)",
        head["authorization"],
    )
    assert found is not None
    day, signed, signature = found.groups()
    assert signed == "content-type;host;x-amz-date;x-amz-security-token;x-amz-target"
    lines = "".join(f"{name}:{head[name]}\n" for name in signed.split(";"))
    canonical = f"POST\n/\n\n{lines}\n{signed}\n{sha256(body).hexdigest()}"
    scope = f"{day}/us-east-1/kinesis/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{head['x-amz-date']}\n{scope}\n{sha256(canonical.encode()).hexdigest()}"
    key = b"AWS4local"
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    assert hmac.digest(key, text.encode(), "sha256").hex() == signature


def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority("test")
    certificate, key = authority.issue("kinesis", ["127.0.0.1"])
    files = {"cert.pem": certificate, "key.pem": key, "ca.pem": authority.certificate}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    stream = FaultyStream()
    stream.secure(str(tmp_path / "cert.pem"), str(tmp_path / "key.pem"))
    with stream:
        with pytest.raises(StreamRefused, match=r"certificate not trusted .*; name the certificates to trust"):
            send(stream, [batch_of([("a", 1, 0)])])
        monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "ca.pem"))
        send(stream, [batch_of([("a", 1, 0)])])
        assert stream.ids() == [(1, 0)]


def test_without_credentials_or_region_there_is_no_sender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(OptionError, match="no AWS credentials found"):
        Sender("changes")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(OptionError, match="no region found; set region"):
        Sender("changes")


class Sts(BaseHTTPRequestHandler):
    """Gives no credentials out."""

    status, code = 403, "AccessDenied"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = f"<ErrorResponse><Error><Code>{self.code}</Code><Message>as told</Message></Error></ErrorResponse>"
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


def test_a_role_that_may_not_be_taken_stops_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").write_text(
        "[profile taken]\nrole_arn = arn:aws:iam::123456789012:role/sender\nsource_profile = own\n"
        "[profile own]\naws_access_key_id = local\naws_secret_access_key = local\n"
    )
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Sts)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name, value in {
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_PROFILE": "taken",
        "AWS_ENDPOINT_URL_STS": f"http://127.0.0.1:{server.server_address[1]}",
    }.items():
        monkeypatch.setenv(name, value)
    try:
        with FaultyStream() as stream, Sender("changes", endpoint_url=stream.url, options=PATIENT) as sender:
            for ask in (sender.describe, lambda: sender.send([batch_of([("a", 1, 0)])], leadership=1, fence=always)):
                with pytest.raises(StreamRefused, match=r"no credentials \(.*AccessDenied.*as told\); check the role"):
                    ask()
            assert not stream.requests
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("wrong", [{"max_request_records": 501}, {"in_flight": 0}, {"shards": 0}])
def test_options_that_cannot_be_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(OptionError, match=f"{next(iter(wrong))} is from 1 to "):
        SendOptions(**wrong)  # type: ignore[arg-type]


def test_the_api_as_it_is_takes_what_we_send(kinesis: Kinesis, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in kinesis.settings().items():
        monkeypatch.setenv(name, value)
    client = boto3.client("kinesis")
    client.create_stream(StreamName="sent-changes", ShardCount=2)
    rows = rows_of(300, keys=40)
    with Sender("sent-changes", options=SendOptions(shards=2)) as sender:
        told = sender.describe()
        assert told is not None
        assert (told.status, told.shards, told.max_record_bytes) == ("ACTIVE", 2, 1 << 20)
        assert sender.send([batch_of(rows)], leadership=3, fence=always).records == 300
    found: dict[str, list[Id]] = defaultdict(list)
    for shard in client.list_shards(StreamName="sent-changes")["Shards"]:
        iterator = client.get_shard_iterator(
            StreamName="sent-changes", ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        for record in client.get_records(ShardIterator=iterator)["Records"]:
            event = json.loads(record["Data"])
            found[record["PartitionKey"]].append((event["lsn"], event["ordinal"]))
    expected: dict[str, list[Id]] = defaultdict(list)
    for key, lsn, ordinal in rows:
        expected[key].append((lsn, ordinal))
    assert found == expected


def test_a_stream_that_is_not_there_is_told(kinesis: Kinesis, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in kinesis.settings().items():
        monkeypatch.setenv(name, value)
    with Sender("nowhere") as sender:
        with pytest.raises(StreamRefused, match=r"'nowhere': ResourceNotFoundException .*; create it, or check"):
            sender.send([batch_of([("a", 1, 0)])], leadership=1, fence=always)
        with pytest.raises(StreamRefused, match=r"'nowhere': ResourceNotFoundException .*; create it, or check"):
            sender.describe()
