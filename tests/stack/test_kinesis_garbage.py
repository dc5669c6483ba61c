"""What is no request, or half of one, gets an answer or an end in time, and the endpoint serves everybody else."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strandline.stack import Kinesis
from strandline.stack.endpoint import connection as bounds
from strandline.stack.endpoint.server import Endpoint
from strandline.wire import cbor
from tests.stack.sdk import client
from tests.support import wait_for

HEAD = (
    "POST / HTTP/1.1\r\nHost: kinesis\r\nAuthorization: x\r\n"
    "Content-Type: {type}\r\nX-Amz-Target: Kinesis_20131202.{action}\r\n"
)
JSON, CBOR = "application/x-amz-json-1.1", "application/x-amz-cbor-1.1"


def request(action: str, body: bytes, content_type: str = JSON, *, extra: str = "") -> bytes:
    head = HEAD.format(type=content_type, action=action)
    return f"{head}{extra}Content-Length: {len(body)}\r\n\r\n".encode() + body


def connect(kinesis: Kinesis) -> socket.socket:
    host, port = kinesis.address.split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def until_closed(connection: socket.socket) -> bytes:
    found = b""
    while piece := connection.recv(1 << 16):
        found += piece
    return found


def answer(connection: socket.socket) -> tuple[int, bytes]:
    """The next answer: its status and its body. Nothing beyond it is read."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        piece = connection.recv(1)
        assert piece, f"the connection ended in {head!r}"
        head += piece
    left = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
    body = []
    while left:
        body.append(connection.recv(min(left, 1 << 20)))
        left -= len(body[-1])
    return int(head.split()[1]), b"".join(body)


def assert_serves(kinesis: Kinesis) -> None:
    assert "StreamNames" in client(kinesis.endpoint).list_streams()
    assert kinesis.failure() is None


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\0\1\2\3\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
        (b"POST / HTTP/1.1\r\nno field\r\nContent-Length: 0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nX: " + b"x" * (300 << 10), 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n" + b"x" * (bounds.MAX_BODY + 1), 413),
    ],
    ids=range(8),
)
def test_what_is_no_request_is_refused_and_the_connection_ends(kinesis: Kinesis, sent: bytes, status: int) -> None:
    with connect(kinesis) as connection:
        connection.sendall(sent)
        assert until_closed(connection).startswith(f"HTTP/1.1 {status} ".encode())
    assert_serves(kinesis)


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (request("PutRecords", b"{"), (400, "SerializationException")),
        (request("PutRecords", b"[" * 100_000), (400, "SerializationException")),
        (request("PutRecords", b'{"a":' * 100_000), (400, "SerializationException")),
        (request("PutRecords", b"\xff"), (400, "SerializationException")),
        (request("ListStreams", b""), (400, "SerializationException")),
        (request("Nothing", b"{}"), (400, "UnknownOperationException")),
        (request("ListStreams", b"{}", "text/plain"), (400, "UnknownOperationException")),
        (b"GET / HTTP/1.1\r\n\r\n", (400, "UnknownOperationException")),
        (request("ListStreams", b"{}").replace(b"Authorization", b"X"), (400, "MissingAuthenticationTokenException")),
        (request("GetRecords", b'{"ShardIterator":"\xc3\xa9"}'), (400, "InvalidArgumentException")),
    ],
    ids=range(10),
)
def test_a_request_that_makes_no_sense_is_refused_and_the_connection_goes_on(
    kinesis: Kinesis, sent: bytes, told: tuple[int, str]
) -> None:
    with connect(kinesis) as connection:
        connection.sendall(sent)
        status, body = answer(connection)
        assert (status, json.loads(body)["__type"]) == told
        connection.sendall(request("ListStreams", b"{}"))
        assert answer(connection)[0] == 200


@pytest.mark.parametrize("path", ["/faults", "/records", "/counts"])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"stream":1}', b'{"stream":"s","more":1}'])
def test_a_control_call_that_makes_no_sense_is_refused(kinesis: Kinesis, path: str, body: bytes) -> None:
    head = f"POST {path} HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with connect(kinesis) as connection:
        connection.sendall(head.encode() + body)
        assert answer(connection)[0] == 400


def test_a_control_call_of_a_strangers_page_finds_nothing(kinesis: Kinesis) -> None:
    body = b'{"stream":"s","faults":[]}'
    with connect(kinesis) as connection:
        connection.sendall(b"POST /faults HTTP/1.1\r\nContent-Type: text/plain\r\nContent-Length: 26\r\n\r\n" + body)
        assert answer(connection)[0] == 404


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(min_size=1, max_size=2000), st.sampled_from([JSON, CBOR]))
def test_garbage_in_a_body_never_ends_it(kinesis: Kinesis, garbage: bytes, content_type: str) -> None:
    with connect(kinesis) as connection:
        for action in ("PutRecords", "CreateStream", "GetRecords"):
            connection.sendall(request(action, garbage, content_type))
            assert answer(connection)[0] == 400


def test_half_a_request_keeps_nobody_waiting(kinesis: Kinesis) -> None:
    whole = request("ListStreams", b"{}")
    with connect(kinesis) as early, connect(kinesis) as late:
        early.sendall(whole[:30])
        late.sendall(whole[:-1])
        assert_serves(kinesis)
        late.sendall(whole[-1:])
        assert answer(late)[0] == 200
        early.sendall(whole[30:])
        assert answer(early)[0] == 200


def told_by_a_fresh_one(
    sent: bytes, *, before: bytes = b"", size: int = 1 << 20, request_timeout_s: float = 30
) -> bytes:
    """What an endpoint in this process tells until it closes, to a client that comes after another one.

    The client sends pieces of a size, and the endpoint has time for each.
    """

    async def told() -> bytes:
        listening = socket.create_server(("127.0.0.1", 0))
        server = await Endpoint(0).serve(listening, request_timeout_s)
        _, first = await asyncio.open_connection(*listening.getsockname())
        first.write(before)
        await first.drain()
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        for at in range(0, len(sent), size):
            writer.write(sent[at : at + size])
            await asyncio.sleep(0)
        try:
            return await asyncio.wait_for(reader.read(), 30)
        except ConnectionResetError:
            return b""
        finally:
            first.close()
            writer.close()
            server.close()

    return asyncio.run(told())


def test_half_a_request_is_given_up_after_a_time() -> None:
    half = request("ListStreams", b"{}")[:-1]
    assert told_by_a_fresh_one(half, request_timeout_s=0.05).startswith(b"HTTP/1.1 408 ")


def test_half_requests_of_all_together_take_no_more_than_may_be_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_HELD", 10_000)
    half = request("PutRecords", b"x" * 10_000)[:-1000]
    assert told_by_a_fresh_one(half, before=half).startswith(b"HTTP/1.1 503 ")


def test_a_body_that_comes_in_more_pieces_than_are_kept_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_PIECES", 2)
    sent = request("DescribeStream", b'{"StreamName": "pieces"}', extra="Connection: close\r\n")
    assert b"Stream pieces under account" in told_by_a_fresh_one(sent, size=1)


def test_there_are_no_more_connections_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_CONNECTIONS", 1)
    assert told_by_a_fresh_one(request("ListStreams", b"{}")) == b""


def test_a_connection_that_is_reset_in_the_middle_harms_nobody(kinesis: Kinesis) -> None:
    for _ in range(20):
        with connect(kinesis) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            connection.sendall(request("PutRecords", b"x" * 100_000)[:50_000])
    assert_serves(kinesis)


def test_requests_sent_together_are_answered_in_order_however_they_are_cut(kinesis: Kinesis) -> None:
    requests = [request("DescribeStream", json.dumps({"StreamName": f"none-{n}"}).encode()) for n in range(20)]
    sent = b"".join(requests)
    for size in (len(sent), 1000, 61):
        with connect(kinesis) as connection:
            for at in range(0, len(sent), size):
                connection.sendall(sent[at : at + size])
            for n in range(20):
                assert f"none-{n} " in json.loads(answer(connection)[1])["message"]


def test_a_client_that_does_not_read_is_not_answered_without_an_end(kinesis: Kinesis) -> None:
    stream = "unread"
    sdk = client(kinesis.endpoint)
    sdk.create_stream(StreamName=stream, ShardCount=1)
    sdk.put_record(StreamName=stream, Data=b"x" * 1_000_000, PartitionKey="a")
    cursor = sdk.get_shard_iterator(StreamName=stream, ShardId="shardId-000000000000", ShardIteratorType="TRIM_HORIZON")
    read = request("GetRecords", json.dumps({"ShardIterator": cursor["ShardIterator"]}).encode())

    def resident_kib() -> int:
        return int(Path(f"/proc/{kinesis.pid}/statm").read_text().split()[1]) * 4

    before = resident_kib()
    with connect(kinesis) as connection:
        connection.sendall(read * 200)
        assert_serves(kinesis)
        assert resident_kib() - before < 100_000
        for _ in range(200):
            assert len(answer(connection)[1]) > 1_000_000
    sdk.delete_stream(StreamName=stream)


def test_a_body_in_chunks_is_read(kinesis: Kinesis) -> None:
    head = HEAD.format(type=JSON, action="ListStreams")
    with connect(kinesis) as connection:
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n1\r\n{{\r\n1\r\n}}\r\n0\r\n\r\n".encode())
        assert answer(connection)[0] == 200


def test_a_client_that_asks_whether_to_go_on_is_told(kinesis: Kinesis) -> None:
    whole = request("ListStreams", b"{}", extra="Expect: 100-continue\r\n")
    with connect(kinesis) as connection:
        connection.sendall(whole[:-2])
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(whole[-2:])
        assert answer(connection)[0] == 200


def test_cbor_is_spoken_with_those_who_speak_it(kinesis: Kinesis) -> None:
    def call(action: str, **asked: object) -> dict[str, Any]:
        connection.sendall(request(action, cbor.encode(asked), CBOR))
        status, body = answer(connection)
        return {"status": status, **(cbor.decode(body) if body else {})}

    with connect(kinesis) as connection:
        assert call("CreateStream", StreamName="cbor", ShardCount=1) == {"status": 200}
        put = call("PutRecords", StreamName="cbor", Records=[{"Data": b"\0\xff", "PartitionKey": "a"}])
        assert put["FailedRecordCount"] == 0
        cursor = call(
            "GetShardIterator", StreamName="cbor", ShardId="shardId-000000000000", ShardIteratorType="TRIM_HORIZON"
        )
        (record,) = call("GetRecords", ShardIterator=cursor["ShardIterator"])["Records"]
        assert (record["Data"], record["PartitionKey"]) == (b"\0\xff", "a")
        assert record["ApproximateArrivalTimestamp"] > 1.7e9
        assert call("DescribeStream", StreamName="none")["__type"] == "ResourceNotFoundException"
        assert call("DeleteStream", StreamName="cbor") == {"status": 200}


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom threading import Event\n"
        "from strandline.stack import Kinesis\n"
        "kinesis = Kinesis(Path(sys.argv[1]))\nkinesis.start(Event())\n"
        "print(kinesis.pid, flush=True)\ntime.sleep(600)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "kinesis")], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    try:
        pid = int(parent.stdout.readline())
        os.kill(pid, 0)
        parent.send_signal(signal.SIGKILL)
        wait_for(lambda: not Path(f"/proc/{pid}/exe").exists(), "the endpoint is gone")
    finally:
        parent.kill()
        parent.wait(30)
        parent.stdout.close()
