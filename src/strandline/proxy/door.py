"""Who may use the proxy: users with passwords, shown by PLAIN or SCRAM before anything else is answered."""

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from kio.schema.errors import ErrorCode

from strandline.config import Secret
from strandline.errors import AuthenticationFailed
from strandline.kafka.security import MECHANISMS, PLAIN
from strandline.wire.refusal import refused
from strandline.wire.scram import HASHES, ScramServer, State, Verifier

SALT_BYTES = 16
NONCE_BYTES = 24
PARTS_OF_PLAIN = 3


class Conversation(Protocol):
    """The server's side of one sign-in."""

    @property
    def username(self) -> str:
        """Who the client says it is."""
        ...

    @property
    def is_done(self) -> bool:
        """Whether the client has shown who it is."""
        ...

    def answer(self, message: bytes) -> bytes:
        """What to say; raises AuthenticationFailed."""
        ...


class Door:
    """Checks passwords. SCRAM's verifiers are made once, with a salt of this process."""

    def __init__(self, users: Mapping[str, Secret], mechanisms: tuple[str, ...] = MECHANISMS) -> None:
        self.mechanisms = mechanisms
        self._users = users
        self._verifiers = {
            (mechanism, name): Verifier.of(mechanism, password.reveal(), secrets.token_bytes(SALT_BYTES))
            for mechanism in mechanisms
            if mechanism in HASHES
            for name, password in users.items()
        }
        self._nobody = {
            mechanism: Verifier.of(mechanism, secrets.token_urlsafe(), secrets.token_bytes(SALT_BYTES))
            for mechanism in mechanisms
            if mechanism in HASHES
        }

    def password(self, username: str) -> str | None:
        """Of a user; None of somebody who is none."""
        known = self._users.get(username)
        return None if known is None else known.reveal()

    def is_same(self, other: "Door") -> bool:
        """Whether the same may come in, in the same ways."""
        users = ({name: password.reveal() for name, password in door._users.items()} for door in (self, other))
        return self.mechanisms == other.mechanisms and next(users) == next(users)

    def converse(self, mechanism: str) -> Conversation:
        """Begin a sign-in."""
        if mechanism == PLAIN:
            return _Plain(self._users)
        return _Scram(mechanism, self._verifiers, self._nobody[mechanism])


def lets_in(door: Door | None, before: Door | None, username: str | None) -> bool:
    """Whether whoever came in by one door, with a name or without, could come in by another."""
    if door is None or (before is not None and door.is_same(before)):
        return True
    if before is None or username is None:
        # Who is at the door, or came in when there was none, has to knock.
        return False
    return door.password(username) == before.password(username)


class _Plain:
    def __init__(self, users: Mapping[str, Secret]) -> None:
        self.username = ""
        self.is_done = False
        self._users = users

    def answer(self, message: bytes) -> bytes:
        parts = message.split(b"\0")
        if len(parts) != PARTS_OF_PLAIN:
            raise AuthenticationFailed("the client's message is not one of PLAIN")
        self.username = parts[1].decode(errors="replace")
        known = self._users.get(self.username)
        expected = b"" if known is None else known.reveal().encode()
        if not hmac.compare_digest(parts[2], expected) or known is None:
            raise AuthenticationFailed(f"user '{self.username}' or its password is wrong")
        # An authorization id (RFC 4616): nobody may act as another user, which Kafka's brokers refuse too.
        if parts[0] not in (b"", parts[1]):
            raise AuthenticationFailed(f"user '{self.username}' may not act as another user")
        self.is_done = True
        return b""


class _Scram:
    def __init__(self, mechanism: str, verifiers: Mapping[tuple[str, str], Verifier], nobody: Verifier) -> None:
        nonce = secrets.token_urlsafe(NONCE_BYTES)
        self._server = ScramServer(mechanism, lambda name: verifiers.get((mechanism, name)), nobody, nonce)

    @property
    def username(self) -> str:
        return self._server.username

    @property
    def is_done(self) -> bool:
        return self._server.state is State.DONE

    def answer(self, message: bytes) -> bytes:
        return self._server.answer(message)


class Visitor:
    """A client at the door."""

    def __init__(self, door: Door) -> None:
        self.username = ""
        self.is_let_in = False
        self.failure: AuthenticationFailed | None = None
        self.door = door
        self._conversation: Conversation | None = None

    def shake(self, request: Any) -> Any:
        """The answer to SaslHandshake."""
        taken = request.mechanism in self.door.mechanisms
        if taken:
            self._conversation = self.door.converse(request.mechanism)
        code = ErrorCode.none if taken else ErrorCode.unsupported_sasl_mechanism
        return replace(refused(request, code), mechanisms=self.door.mechanisms)

    def authenticate(self, request: Any) -> Any:
        """The answer to SaslAuthenticate."""
        if self._conversation is None:
            return refused(request, ErrorCode.illegal_sasl_state, "SaslHandshake comes first")
        try:
            said = self._conversation.answer(request.auth_bytes)
        except AuthenticationFailed as error:
            self.failure = error
            return refused(request, ErrorCode.sasl_authentication_failed, str(error))
        if self._conversation.is_done:
            self.username, self.is_let_in = self._conversation.username, True
        return replace(refused(request, ErrorCode.none), auth_bytes=said)
