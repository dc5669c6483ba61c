"""Kinesis' requests: the same value from JSON and CBOR, and what is wrong told with the real code."""

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.wire import cbor, kinesis
from strandline.wire.kinesis import CBOR, JSON, MAX_REQUEST, Refused, check_sizes, read

put_records = msgspec.json.Decoder(kinesis.PutRecords)
entries = st.lists(st.tuples(st.binary(max_size=100), st.text(min_size=1, max_size=256)), min_size=1, max_size=500)


@given(entries)
def test_json_and_cbor_are_the_same_request(entries: list[tuple[bytes, str]]) -> None:
    as_cbor = [{"Data": data, "PartitionKey": key} for data, key in entries]
    as_json = [{"Data": base64.b64encode(data).decode(), "PartitionKey": key} for data, key in entries]
    one = read(json.dumps({"StreamName": "s", "Records": as_json}).encode(), JSON, put_records)
    other = read(cbor.encode({"StreamName": "s", "Records": as_cbor}), CBOR, put_records)
    assert one == other
    assert [(entry.data, entry.partition_key) for entry in one.records] == entries


@given(st.binary(max_size=200), st.sampled_from([JSON, CBOR]))
def test_garbage_is_refused_and_nothing_else(garbage: bytes, content_type: str) -> None:
    with pytest.raises(Refused) as refused:
        read(garbage, content_type, put_records)
    assert refused.value.code in {"SerializationException", "ValidationException"}


ENTRY = {"Data": "YQ==", "PartitionKey": "a"}


@pytest.mark.parametrize(
    ("request_", "code", "message"),
    [
        ({"Records": []}, "ValidationException", "at 'records' .* length greater than or equal to 1"),
        ({"Records": [ENTRY] * 501}, "ValidationException", "at 'records' .* length less than or equal to 500"),
        (
            {"Records": [ENTRY, {"Data": "", "PartitionKey": ""}]},
            "ValidationException",
            "'records.2.member.partitionKey' .* length greater than or equal to 1",
        ),
        (
            {"Records": [{"Data": "", "PartitionKey": "é" * 257}]},
            "ValidationException",
            "'records.1.member.partitionKey' .* length less than or equal to 256",
        ),
        ({"Records": [{"Data": ""}]}, "ValidationException", "Value null at 'records.1.member.partitionKey'"),
        ({}, "ValidationException", "Value null at 'records'"),
        ({"Records": [ENTRY], "StreamName": "a b"}, "ValidationException", "regular expression pattern: "),
        (
            {"Records": [{**ENTRY, "ExplicitHashKey": "-1"}]},
            "ValidationException",
            "explicitHashKey' .* regular expression pattern",
        ),
        ({"Records": [{"Data": "!", "PartitionKey": "a"}]}, "SerializationException", "base64"),
        ({"Records": [{"Data": 1, "PartitionKey": "a"}]}, "SerializationException", "Expected `bytes`"),
        ({"Records": "a"}, "SerializationException", "Expected `array`"),
        ([], "SerializationException", "Expected `object`"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_real_code(request_: Any, code: str, message: str) -> None:
    with pytest.raises(Refused, match=message) as refused:
        read(json.dumps(request_).encode(), JSON, put_records)
    assert (refused.value.code, refused.value.status) == (code, 400)


@pytest.mark.parametrize("body", [b"", b"{", b'{"a":' * 100_000, b"\xff", b'{"Records":[{"PartitionKey":"\xff"}]}'])
def test_what_is_no_json_cannot_be_deserialised(body: bytes) -> None:
    with pytest.raises(Refused) as refused:
        read(body, JSON, put_records)
    assert refused.value.code == "SerializationException"


def test_a_key_of_256_characters_is_taken_however_many_bytes_it_has() -> None:
    body = json.dumps({"Records": [{"Data": "", "PartitionKey": "𝄞" * 256}]}, ensure_ascii=False).encode()
    assert len(read(body, JSON, put_records).records[0].partition_key.encode()) == 1024


@given(st.lists(st.integers(0, 1 << 20), min_size=1, max_size=500))
def test_sizes_within_both_limits_pass_and_no_others(sizes: list[int]) -> None:
    try:
        check_sizes(sizes, limit=1 << 19)
    except Refused as refused:
        code = "ValidationException" if max(sizes) > 1 << 19 else "InvalidArgumentException"
        assert refused.code == code
        assert max(sizes) > 1 << 19 or sum(sizes) > MAX_REQUEST
    else:
        assert max(sizes) <= 1 << 19
        assert sum(sizes) <= MAX_REQUEST


def test_a_record_that_is_too_large_is_named() -> None:
    with pytest.raises(Refused, match=r"'records\.2\.member\.data' .* less than or equal to 10"):
        check_sizes([10, 11, 12], limit=10)
    with pytest.raises(Refused, match="at 'data'"):
        check_sizes([11], limit=10, is_single=True)


@pytest.mark.parametrize(
    ("named", "stream"),
    [
        ({"StreamName": "tide"}, "tide"),
        ({"StreamARN": "arn:aws:kinesis:us-east-1:123456789012:stream/tide"}, "tide"),
    ],
)
def test_a_stream_is_named_by_its_name_or_its_arn(named: dict[str, str], stream: str) -> None:
    decoder = msgspec.json.Decoder(kinesis.DescribeStream)
    assert read(json.dumps(named).encode(), JSON, decoder).stream == stream


def test_a_request_without_a_stream_is_refused() -> None:
    request = read(b"{}", JSON, msgspec.json.Decoder(kinesis.DescribeStream))
    with pytest.raises(Refused, match="Either StreamName or StreamARN"):
        assert request.stream
