"""Lines that only who knows a secret can write: both ends prove that they know it, then every line is sealed.

    driver -> member    its challenge
    member -> driver    its own challenge, and the proof that answers both
    driver -> member    the proof of the other side

The secret never travels. The seals are made with a key that follows from both challenges, and count the lines of each
direction: a line that was changed, left out, repeated, or sent back to who wrote it does not open. What is said can be
read by who listens; it cannot be forged.
"""

import hmac
from enum import Enum

CHALLENGE_BYTES = 32
PROOF_BYTES = 32


class Side(Enum):
    """Who speaks."""

    DRIVER = b"driver"
    MEMBER = b"member"


class NotTrusted(Exception):
    """The other end does not know the secret, or a line is not what it wrote."""


class Handshake:
    """What one side proves, and expects of the other, on one connection."""

    def __init__(self, secret: bytes, *, driver: bytes, member: bytes) -> None:
        if len(driver) != CHALLENGE_BYTES or len(member) != CHALLENGE_BYTES:
            raise NotTrusted("a challenge of the wrong length")
        self._secret = secret
        self._challenges = driver + member

    def proof(self, side: Side) -> bytes:
        """What this side says to show that it knows the secret."""
        return self._derive(b"proof " + side.value)

    def check(self, side: Side, proof: bytes) -> None:
        """Raise NotTrusted unless this is the proof of that side."""
        if not hmac.compare_digest(self.proof(side), proof):
            raise NotTrusted("the other end does not know the secret of this run")

    def seal(self, side: Side) -> "Seal":
        """What seals the lines that this side writes, or opens them at the other end."""
        return Seal(self._derive(b"lines of " + side.value))

    def _derive(self, use: bytes) -> bytes:
        return hmac.digest(self._secret, use + b"\n" + self._challenges, "sha256")


class Seal:
    """One direction of a connection: the lines of it, one after the other."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0

    def close(self, content: bytes) -> bytes:
        """The line for a content that holds no line feed, without the one at its end."""
        return self._next(content) + b" " + content

    def open(self, line: bytes) -> bytes:
        """The content of the next line. Raises NotTrusted; nothing opens after that."""
        told, _, content = line.partition(b" ")
        if not hmac.compare_digest(self._next(content), told):
            raise NotTrusted("a line that the other end has not written, or not here")
        return content

    def _next(self, content: bytes) -> bytes:
        self._count += 1
        return hmac.digest(self._key, b"%d\n" % self._count + content, "sha256").hex().encode()
