"""SCRAM (RFC 5802, RFC 7677) as Kafka speaks it: a client proves its password, and the server that it knows it.

    START ── first ──> GREETED ── answer: our proof ──> PROVED ── answer: None ──> DONE
                          └──────── anything wrong ───────┴─────────────────────> FAILED

No channel binding. Names and passwords are taken as UTF-8 and not normalised, since Kafka's brokers do not either.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from strandline.errors import AuthenticationFailed

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
# The fewest that RFC 7677 allows; and as many as still take about a second, so that no server can keep us busy.
FEWEST_ITERATIONS, MOST_ITERATIONS = 4096, 1_000_000

GS2_HEADER = b"n,,"
EXTENSIONS = rb"(?:,[A-Za-z]=[^\0,]+)*"
# A message that begins with m= demands an extension. We know none, so RFC 5802 has us refuse it.
CLIENT_FIRST = re.compile(rb"n,(?:a=[^,]*)?,(n=([^\0,]+),r=([!-+\--~]+))" + EXTENSIONS)
CLIENT_FINAL = re.compile(rb"(c=biws,r=([!-+\--~]+)),p=([A-Za-z0-9+/=]+)")
SERVER_FIRST = re.compile(rb"r=([!-+\--~]+),s=([A-Za-z0-9+/=]+),i=([1-9][0-9]{0,17})" + EXTENSIONS)
SERVER_FINAL = re.compile(rb"v=([A-Za-z0-9+/=]+)" + EXTENSIONS)
SERVER_ERROR = re.compile(rb"e=([ -+\--~]{1,80})" + EXTENSIONS)
NONCE = re.compile(r"[!-+\--~]+")


class State(Enum):
    """How far an exchange has come."""

    START = auto()
    GREETED = auto()
    PROVED = auto()
    DONE = auto()
    FAILED = auto()


class ScramClient:
    """One exchange. The nonce must be random, and another one each time.

    The answer to the first challenge takes as long as the server's iterations, a second at most.
    """

    def __init__(self, mechanism: str, username: str, password: str, nonce: str) -> None:
        if not NONCE.fullmatch(nonce):
            raise ValueError("a nonce is printable ASCII without a comma")
        self._hash = HASHES[mechanism]
        self._password = password.encode()
        self._nonce = nonce.encode()
        name = username.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = b"n=%b,r=%b" % (name.encode(), self._nonce)
        self._signature = b""
        self._state = State.START

    @property
    def state(self) -> State:
        """How far it has come; only when DONE has the server proved itself."""
        return self._state

    def first(self) -> bytes:
        """What the client says first."""
        if self._state is not State.START:
            raise RuntimeError("an exchange is begun once")
        self._state = State.GREETED
        return GS2_HEADER + self._first_bare

    def answer(self, challenge: bytes) -> bytes | None:
        """What to say to the server's challenge; None once it has proved that it knows the password too."""
        # Failed unless it ends well: nobody can go on with an exchange in which something was wrong.
        state, self._state = self._state, State.FAILED
        if state is State.GREETED:
            answer = self._prove(challenge)
            self._state = State.PROVED
            return answer
        if state is State.PROVED:
            self._verify(challenge)
            self._state = State.DONE
            return None
        if state is State.START:
            raise RuntimeError("the client speaks first")
        raise AuthenticationFailed("the server sent a challenge after the end of the exchange")

    def _prove(self, challenge: bytes) -> bytes:
        _refuse_error(challenge)
        found = SERVER_FIRST.fullmatch(challenge)
        if found is None:
            raise AuthenticationFailed("the server's first message is not one of SCRAM")
        nonce, salt, iterations = found[1], _decode(found[2], "server's salt"), int(found[3])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise AuthenticationFailed("the server's nonce does not extend ours")
        if not FEWEST_ITERATIONS <= iterations <= MOST_ITERATIONS:
            bounds = f"{FEWEST_ITERATIONS:,} to {MOST_ITERATIONS:,}"
            raise AuthenticationFailed(f"the server asks for {iterations:,} iterations; allowed are {bounds}")
        final_bare = b"c=%b,r=%b" % (base64.b64encode(GS2_HEADER), nonce)
        message = b",".join((self._first_bare, challenge, final_bare))
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, iterations)
        client_key = self._hmac(salted, b"Client Key")
        stored_key = hashlib.new(self._hash, client_key).digest()
        proof = bytes(a ^ b for a, b in zip(client_key, self._hmac(stored_key, message), strict=True))
        self._signature = self._hmac(self._hmac(salted, b"Server Key"), message)
        return b"%b,p=%b" % (final_bare, base64.b64encode(proof))

    def _verify(self, challenge: bytes) -> None:
        _refuse_error(challenge)
        found = SERVER_FINAL.fullmatch(challenge)
        if found is None:
            raise AuthenticationFailed("the server's final message is not one of SCRAM")
        if not hmac.compare_digest(_decode(found[1], "server's signature"), self._signature):
            raise AuthenticationFailed("the server's signature is wrong: it does not know the password")

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)


@dataclass(frozen=True, slots=True)
class Verifier:
    """What a server keeps of a password: enough to check it, and not to use it."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    @classmethod
    def of(cls, mechanism: str, password: str, salt: bytes, iterations: int = FEWEST_ITERATIONS) -> "Verifier":
        """From a password and a random salt."""
        name = HASHES[mechanism]
        salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", name)
        stored_key = hashlib.new(name, client_key).digest()
        return cls(salt, iterations, stored_key, hmac.digest(salted, b"Server Key", name))


class ScramServer:
    """The server's side of one exchange. The nonce must be random, and another one each time.

    Users who are not there are asked for a proof like any other, and only then refused.
    """

    def __init__(
        self, mechanism: str, verifier_of: Callable[[str], Verifier | None], nobody: Verifier, nonce: str
    ) -> None:
        self.username = ""
        self._hash = HASHES[mechanism]
        self._verifier_of = verifier_of
        self._nobody = nobody
        self._nonce = nonce.encode()
        self._said: list[bytes] = []
        self._state = State.START

    @property
    def state(self) -> State:
        """How far it has come; only when DONE has the client proved itself."""
        return self._state

    def answer(self, message: bytes) -> bytes:
        """What to say to the client's message."""
        state, self._state = self._state, State.FAILED
        if state is State.START:
            return self._challenge(message)
        if state is State.GREETED:
            return self._check(message)
        raise AuthenticationFailed("the client goes on after the end of the exchange")

    def _challenge(self, message: bytes) -> bytes:
        found = CLIENT_FIRST.fullmatch(message)
        if found is None:
            raise AuthenticationFailed("the client's first message is not one of SCRAM")
        name = found[2].replace(b"=2C", b",").replace(b"=3D", b"=")
        self.username = name.decode(errors="replace")
        verifier = self._verifier_of(self.username) or self._nobody
        nonce = found[3] + self._nonce
        salt = base64.b64encode(verifier.salt)
        first = b"r=%b,s=%b,i=%d" % (nonce, salt, verifier.iterations)
        self._said = [found[1], first, nonce]
        self._state = State.GREETED
        return first

    def _check(self, message: bytes) -> bytes:
        found = CLIENT_FINAL.fullmatch(message)
        if found is None or found[2] != self._said[2]:
            raise AuthenticationFailed("the client's final message is not one of SCRAM")
        whole = b",".join((self._said[0], self._said[1], found[1]))
        verifier = self._verifier_of(self.username)
        proof = _decode(found[3], "client's proof")
        expected = verifier or self._nobody
        signature = hmac.digest(expected.stored_key, whole, self._hash)
        if len(proof) != len(signature):
            raise AuthenticationFailed(f"user '{self.username}' or its password is wrong")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        is_right = hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), expected.stored_key)
        if verifier is None or not is_right:
            raise AuthenticationFailed(f"user '{self.username}' or its password is wrong")
        self._state = State.DONE
        return b"v=" + base64.b64encode(hmac.digest(expected.server_key, whole, self._hash))


def _refuse_error(challenge: bytes) -> None:
    found = SERVER_ERROR.fullmatch(challenge)
    if found is not None:
        raise AuthenticationFailed(f"the server refused us: {found[1].decode()}")


def _decode(text: bytes, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise AuthenticationFailed(f"the {what} is not base64") from None
