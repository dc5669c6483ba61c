"""One exchange as the comparison sees it: read from a result, which may hold more than is wanted here."""

import binascii
from base64 import b64decode
from typing import Annotated

import msgspec

from strandline.errors import MalformedResult
from strandline.json_decode import MalformedJson, decode

# As wide as the columns that they go to.
Short = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
Long = Annotated[int, msgspec.Meta(ge=-(2**60), lt=2**60)]


class Message(msgspec.Struct, kw_only=True, gc=False):
    """A request or a response. A head is latin-1; a body is text, or base64 where it is none, as it was on the wire."""

    head: str
    length: Long
    method: str | None = None
    target: str | None = None
    status: Short | None = None
    complete: bool | None = None
    head_length: int | None = None
    """Of a head that is cut."""
    body: str | None = None
    body_base64: str | None = None
    sha256: str | None = None
    """Of the whole body, where it is cut."""

    def held(self) -> bytes:
        """As much of the body as there is."""
        if self.body_base64 is not None:
            try:
                return b64decode(self.body_base64, validate=True)
            except (binascii.Error, ValueError):
                raise MalformedResult("a body is not base64") from None
        return (self.body or "").encode()


class Attempt(msgspec.Struct, kw_only=True, gc=False):
    """One sending of the request."""

    response: Message | None
    sent_us: Long | None
    end_us: Long | None
    error: str | None = None


class Exchange(msgspec.Struct, kw_only=True, gc=False):
    """A captured request, the source's answer and the target's."""

    id: str
    connection: str
    partition: Short
    offset: Long
    ordinal: Short
    source_request: Message
    source_response: Message | None
    target_request: Message | None
    attempts: list[Attempt]
    source_time_us: Long
    source_end_us: Long | None = None
    sent_us: Long | None
    lateness_us: Long | None
    error: str | None = None

    @property
    def target_response(self) -> Message | None:
        """The answer to the last attempt."""
        return self.attempts[-1].response if self.attempts else None

    @property
    def source_us(self) -> int | None:
        """How long the source took."""
        if self.source_response is None or self.source_end_us is None:
            return None
        return max(0, self.source_end_us - self.source_time_us)

    @property
    def target_us(self) -> int | None:
        """How long the target took, at the last attempt."""
        last = self.attempts[-1] if self.attempts else None
        if last is None or last.response is None or last.sent_us is None or last.end_us is None:
            return None
        return max(0, last.end_us - last.sent_us)


_DECODER = msgspec.json.Decoder(Exchange)


def read_exchange(record: bytes | None) -> Exchange:
    """The exchange of a result; MalformedResult if it is none."""
    if record is None:
        raise MalformedResult("it is empty")
    try:
        return decode(record, _DECODER)
    except MalformedJson as error:
        raise MalformedResult(str(error)) from None
