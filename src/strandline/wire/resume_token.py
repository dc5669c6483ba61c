"""Where a client was, as a text that it keeps and nobody else can make or use.

Signed with a key that has a name, so that keys can be changed while old tokens are still about; bound to the subject
that it was given to; of no use after its time.
"""

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

import msgspec

from strandline.json_decode import MalformedJson, decode

# What a message takes at most for each partition that it tells of, by a token and a position, names of topics included.
PLACE_BYTES = 1 << 10
DIGEST_BYTES = 16


class Position(NamedTuple):
    """Where a client goes on: the first offset that it has not seen, and what it knew of the log then."""

    offset: int
    topic_id: str | None = None
    epoch: int | None = None
    """The leader's epoch of the record before."""
    seen: int | None = None
    """Where that record is not the one before the offset: the offset behind it."""


Positions = dict[str, dict[int, Position]]
"""By topic and partition."""


class Fault(Enum):
    """What is wrong with a token."""

    MALFORMED = "token_malformed"
    FORGED = "token_forged"
    EXPIRED = "token_expired"
    NOT_YOURS = "token_not_yours"


class BadToken(ValueError):
    """A token that is not taken."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.value)
        self.fault = fault


class _Topic(msgspec.Struct, array_like=True):
    topic_id: str
    places: dict[int, tuple[int, int]]
    others: dict[int, str] = {}
    """Ids of partitions that were read of another topic of the name: of one made anew each is gone on with alone."""


class _Body(msgspec.Struct, array_like=True):
    key: str
    subject: str
    expires: int
    topics: dict[str, _Topic]


_BODY = msgspec.json.Decoder(_Body)


class Signer:
    """Makes and reads tokens. The first key signs; all are taken."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = dict(keys)
        self._signing = next(iter(keys))

    def sign(self, subject: str, positions: Positions, expires: int) -> str:
        """A token for a subject until a time in seconds."""
        topics = {topic: _topic(places) for topic, places in positions.items()}
        body = msgspec.json.encode(_Body(self._signing, subject, expires, topics))
        digest = self._digest(self._keys[self._signing], body)
        return f"{_text(body)}.{_text(digest)}"

    def read(self, token: str, subject: str, now: int) -> Positions:
        """The positions in a token of this subject."""
        body, digest = _parts(token)
        try:
            read = decode(body, _BODY)
        except MalformedJson:
            raise BadToken(Fault.MALFORMED) from None
        key = self._keys.get(read.key)
        if key is None or not hmac.compare_digest(self._digest(key, body), digest):
            raise BadToken(Fault.FORGED)
        if read.subject != subject:
            raise BadToken(Fault.NOT_YOURS)
        if read.expires <= now:
            raise BadToken(Fault.EXPIRED)
        return {
            topic: {
                number: Position(offset, kept.others.get(number, kept.topic_id) or None, None if epoch < 0 else epoch)
                for number, (offset, epoch) in kept.places.items()
            }
            for topic, kept in read.topics.items()
        }

    @staticmethod
    def _digest(key: bytes, body: bytes) -> bytes:
        return hmac.digest(key, body, hashlib.sha256)[:DIGEST_BYTES]


def _topic(places: Mapping[int, Position]) -> _Topic:
    ids = {number: place.topic_id or "" for number, place in places.items()}
    common = next(iter(ids.values()), "")
    return _Topic(
        common,
        {number: (place.offset, _epoch(place)) for number, place in places.items()},
        {number: topic_id for number, topic_id in ids.items() if topic_id != common},
    )


def _epoch(place: Position) -> int:
    """The epoch at the offset itself, where that is known."""
    return -1 if place.epoch is None or place.seen is not None else place.epoch


def _parts(token: str) -> tuple[bytes, bytes]:
    body, dot, digest = token.partition(".")
    if not dot:
        raise BadToken(Fault.MALFORMED)
    try:
        return _bytes(body), _bytes(digest)
    except (NotBase64, ValueError):
        raise BadToken(Fault.MALFORMED) from None


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
