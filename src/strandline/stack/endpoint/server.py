"""The endpoint as a process: `python -m strandline.stack.endpoint.server PORT KEEP_BYTES`."""

import asyncio
import gc
import socket
import sys
import time
from typing import Final, TypeVar

import msgspec
import uvloop

from strandline import logs
from strandline.json_decode import MalformedJson, decode
from strandline.stack.endpoint import control
from strandline.stack.endpoint.api import Answer, Api, Body
from strandline.stack.endpoint.connection import REQUEST_TIMEOUT_S, Connection, Guests, Reply, Silence
from strandline.stack.endpoint.faults import Orders
from strandline.stack.endpoint.streams import Moment, Streams
from strandline.stack.ports import LOOPBACK
from strandline.units import Nanos
from strandline.wire import cbor
from strandline.wire.head import Head, request_line
from strandline.wire.kinesis import CBOR, JSON, TARGET, Refused

BACKLOG: Final = 1024

Asked = TypeVar("Asked")


class Endpoint:
    """Kinesis' API at `/`, what tests ask beside it at other paths."""

    def __init__(self, keep_bytes: int) -> None:
        self._streams = Streams(keep_bytes)
        self._api = Api(self._streams)
        self._ms = 0
        self._controls = {
            control.FAULTS: self._set_faults,
            control.COUNTS: self._tell_counts,
            control.RECORDS: self._tell_records,
        }

    async def serve(self, listening: socket.socket, request_timeout_s: float = REQUEST_TIMEOUT_S) -> asyncio.Server:
        """Answer on a socket from now on."""
        guests = Guests(self.respond, request_timeout_s)
        return await asyncio.get_running_loop().create_server(
            lambda: Connection(guests), sock=listening, backlog=BACKLOG
        )

    def respond(self, head: Head, body: bytes) -> Reply | Silence:
        """The reply to a request."""
        method, target, _ = request_line(head.first_line)
        if target != "/":
            return self._control(method, target, head, body)
        content_type = (head.get("Content-Type") or "").partition(";")[0].strip().lower()
        try:
            answer = self._called(method, head, content_type, body)
        except Refused as refused:
            return _refusal(refused, content_type)
        fate = answer.fate
        if fate.time_out is not None:
            return Silence(fate.time_out.closes_after_s)
        if fate.refuse is not None:
            asked_for = Refused(fate.refuse.code, "A fault that was asked for.", fate.refuse.answered)
            return _refusal(asked_for, content_type, fate.delay_s)
        return Reply(_encode(answer.body, content_type), content_type, after_s=fate.delay_s)

    def _called(self, method: str, head: Head, content_type: str, body: bytes) -> Answer:
        target = head.get("X-Amz-Target") or ""
        if method != "POST" or content_type not in {JSON, CBOR} or not target.startswith(TARGET):
            raise Refused("UnknownOperationException")
        if head.get("Authorization") is None:
            raise Refused("MissingAuthenticationTokenException", "Missing Authentication Token")
        return self._api.call(target.removeprefix(TARGET), body, content_type, self._now())

    def _now(self) -> Moment:
        # Arrivals are searched by time, so a clock that is set back must not be seen.
        self._ms = max(self._ms, time.time_ns() // 1_000_000)
        return Moment(self._ms, Nanos(time.monotonic_ns()))

    def _control(self, method: str, target: str, head: Head, body: bytes) -> Reply:
        if (method, target) == ("GET", control.HEALTH):
            return Reply(b"ok")
        answer = self._controls.get(target)
        if answer is None or method != "POST" or head.get("Content-Type") != control.JSON:
            return Reply(b"there is nothing here", status=404)
        try:
            return answer(body)
        except Refused as refused:
            return Reply(refused.message.encode(), status=refused.status)

    def _set_faults(self, body: bytes) -> Reply:
        self._api.obey(_asked(body, Orders), self._now().monotonic)
        return Reply()

    def _tell_counts(self, body: bytes) -> Reply:
        counts = self._streams[_asked(body, control.Asked).stream].counts
        return Reply(msgspec.json.encode(counts), control.JSON)

    def _tell_records(self, body: bytes) -> Reply:
        asked = _asked(body, control.AskedPage)
        return Reply(control.encode_page(control.page(self._streams[asked.stream], asked)), control.MESSAGE_PACK)


def _asked(body: bytes, kind: type[Asked]) -> Asked:
    try:
        return decode(body, msgspec.json.Decoder(kind))
    except MalformedJson as error:
        raise Refused("SerializationException", str(error)) from None


def _refusal(refused: Refused, content_type: str, after_s: float = 0.0) -> Reply:
    if not refused.code:
        return Reply(status=refused.status, after_s=after_s)
    content_type = content_type if content_type in {JSON, CBOR} else JSON
    body = _encode({"__type": refused.code, "message": refused.message}, content_type)
    return Reply(body, content_type, refused.status, after_s)


def _encode(body: Body, content_type: str) -> bytes:
    if body is None:
        return b""
    if content_type == CBOR:
        return cbor.encode(msgspec.json.decode(body) if isinstance(body, bytes) else body)
    return body if isinstance(body, bytes) else msgspec.json.encode(body, enc_hook=_seconds)


def _seconds(timestamp: object) -> float:
    if isinstance(timestamp, cbor.Timestamp):
        return timestamp.ms / 1000
    raise NotImplementedError


async def serve(port: int, keep_bytes: int) -> None:
    """Serve until the process is ended."""
    # Bound here, so that a port that is taken is told in the words that who started us knows.
    listening = socket.create_server((LOOPBACK, port), backlog=BACKLOG)
    server = await Endpoint(keep_bytes).serve(listening)
    # Nothing that is there now is ever garbage, and it need not be looked at.
    gc.freeze()
    await server.serve_forever()


if __name__ == "__main__":
    logs.configure()
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))
