"""Calls of Kinesis: signed requests, with credentials, region and endpoint as the AWS tools find them.

botocore finds and signs; the bodies and the connections are ours, because its own cost ten times as much a record.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import msgspec
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import BotoCoreError, ClientError, NoRegionError
from botocore.httpsession import get_cert_path
from botocore.session import Session
from botocore.utils import get_environ_proxies

from strandline import __version__
from strandline.cdc.failures import Course, Problem, answered, not_answered
from strandline.cdc.http import Connections
from strandline.errors import MalformedBody, OptionError
from strandline.json_decode import MalformedJson, decode
from strandline.wire.answers import Answer
from strandline.wire.body import unchunked
from strandline.wire.head import Head

SERVICE = "kinesis"
ROLE = "check the role, and that it may be taken with the credentials that are there"
MAX_MESSAGE = 300

log = logging.getLogger(__name__)


class _Error(msgspec.Struct):
    """As much as is needed of an answer that is an error."""

    type: str = msgspec.field(name="__type", default="")
    message: str | None = None
    big_message: str | None = msgspec.field(name="Message", default=None)


ERROR = msgspec.json.Decoder(_Error)


class Api:
    """One endpoint. Nothing is connected before the first call."""

    def __init__(self, *, region: str | None, endpoint_url: str | None, timeout: timedelta) -> None:
        try:
            session = Session()
            meta = session.create_client(SERVICE, region_name=region, endpoint_url=endpoint_url).meta
            self._credentials: Any = session.get_credentials()
        except NoRegionError:
            raise OptionError(
                "Kinesis: no region found; set region beside the stream's name, or AWS_DEFAULT_REGION"
            ) from None
        except (BotoCoreError, ValueError) as error:
            raise OptionError(f"Kinesis: {error}") from None
        if self._credentials is None:
            raise OptionError("Kinesis: no AWS credentials found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
        self.url: str = meta.endpoint_url
        self.region: str = meta.region_name
        self._timeout = timeout
        self._has_answered = False
        parts = urlsplit(self.url)
        self._host = parts.netloc.rpartition("@")[2]
        self._target = parts.path or "/"
        tls = None
        if parts.scheme == "https":
            tls = ssl.create_default_context(cafile=session.get_config_variable("ca_bundle") or get_cert_path(True))
        self._connections = Connections(parts.hostname or "", parts.port or (443 if tls else 80), tls)
        if get_environ_proxies(self.url):
            log.warning("a proxy is set in the environment; %s is connected to without it", self._host)

    async def call(self, action: str, body: bytes, may_send: Callable[[], object] = lambda: None) -> bytes | Problem:
        """The body of the answer, or why there is none. `may_send` is asked last of all, and raises if it may not."""
        try:
            head = await self._signed(action, body)
        except BotoCoreError as error:
            # Those that are there could not be renewed just now.
            return Problem("no credentials", _line(str(error)), Course.AGAIN)
        except ClientError as error:
            return _not_given(error)
        try:
            answer = await self._connections.ask(head, body, self._timeout, may_send)
        except OSError as error:
            return not_answered(error, has_answered=self._has_answered)
        self._has_answered = True
        return _read(answer)

    async def _signed(self, action: str, body: bytes) -> bytes:
        credentials = self._credentials
        if hasattr(credentials, "refresh_needed") and credentials.refresh_needed():
            frozen = await asyncio.to_thread(credentials.get_frozen_credentials)
        else:
            frozen = credentials.get_frozen_credentials()
        headers = {
            "Host": self._host,
            "Content-Type": "application/x-amz-json-1.1",
            "X-Amz-Target": f"Kinesis_20131202.{action}",
        }
        request = AWSRequest("POST", self.url, headers, body)
        SigV4Auth(frozen, SERVICE, self.region).add_auth(request)
        lines = [f"{name}: {value}\r\n" for name, value in request.headers.items()]
        last = f"User-Agent: strandline/{__version__}\r\nContent-Length: {len(body)}\r\n\r\n"
        return f"POST {self._target} HTTP/1.1\r\n{''.join(lines)}{last}".encode("latin-1")

    def close(self) -> None:
        """Close the connections that are idle."""
        self._connections.close()


def _not_given(error: ClientError) -> Problem:
    """Whoever gives credentials out, such as for a role, has refused: for a while, or until somebody mends it."""
    told, about = error.response.get("Error", {}), error.response.get("ResponseMetadata", {})
    course = answered(told.get("Code", ""), "", about.get("HTTPStatusCode", 400)).course
    passing = course in {Course.AGAIN, Course.SLOWER}
    return Problem("no credentials", _line(str(error)), course if passing else Course.STOP, ROLE)


def _read(answer: Answer) -> bytes | Problem:
    head = Head(answer.head)
    try:
        body = unchunked(head, answer.body)
        if answer.status == 200 and not answer.cut:
            return body
        error = decode(body, ERROR)
    except (MalformedBody, MalformedJson):
        error = _Error()
    code = (head.get("x-amzn-ErrorType") or error.type).rpartition("#")[2].partition(":")[0]
    return answered(code, _line(error.message or error.big_message or ""), answer.status)


def _line(text: str) -> str:
    return " ".join(text.split())[:MAX_MESSAGE]
