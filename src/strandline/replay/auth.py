"""How a replayed request proves who sends it: as captured, not at all, or anew.

auth: pass                                    # the default: as captured
auth: remove                                  # without Authorization
auth: {basic: {user: u, password: p}}
auth: {header: {name: X-Api-Key, value: k}}
auth: {sigv4: {service: es, region: eu-west-1}}    # credentials as the AWS tools find them
"""

import base64
from dataclasses import dataclass
from typing import Literal, Protocol

from strandline.config import Secret, Section, only_key
from strandline.units import Nanos
from strandline.wire.head import Head


class Auth(Protocol):
    """What is done to a request last."""

    @property
    def needs_body(self) -> bool:
        """Whether it must see the body."""
        ...

    @property
    def is_timely(self) -> bool:
        """Whether the proof tells the time, and is good for a while only."""
        ...

    def describe(self) -> str:
        """What it does, without secrets."""
        ...

    def apply(self, head: Head, body: bytes, now: Nanos) -> Head:
        """The head with the proof, for a body as it is sent but without chunks, at a time since 1970."""
        ...


@dataclass(frozen=True, slots=True)
class RemoveAuth:
    """No proof at all."""

    needs_body: bool = False
    is_timely: bool = False

    def describe(self) -> str:
        return "remove header Authorization"

    def apply(self, head: Head, body: bytes, now: Nanos) -> Head:  # noqa: ARG002 - the body does not matter here
        head.remove("Authorization")
        return head


@dataclass(frozen=True, slots=True)
class HeaderAuth:
    """The same header on every request."""

    name: str
    value: Secret
    told: str
    needs_body: bool = False
    is_timely: bool = False

    def describe(self) -> str:
        return self.told

    def apply(self, head: Head, body: bytes, now: Nanos) -> Head:  # noqa: ARG002 - the body does not matter here
        head.set(self.name, self.value.reveal())
        return head


class BasicConfig(Section, frozen=True, kw_only=True):
    """What `basic` takes."""

    user: str
    password: Secret

    def __post_init__(self) -> None:
        if ":" in self.user:
            raise ValueError("a user's name holds no colon")


class HeaderConfig(Section, frozen=True, kw_only=True):
    """What `header` takes."""

    name: str
    value: Secret

    def __post_init__(self) -> None:
        Head(b"GET / HTTP/1.1\r\n\r\n").set(self.name, self.value.reveal())


class SigV4Config(Section, frozen=True, kw_only=True):
    """What `sigv4` takes."""

    service: str
    region: str


class AuthConfig(Section, frozen=True, kw_only=True):
    """One way to prove; it has exactly one of these keys."""

    basic: BasicConfig | None = None
    header: HeaderConfig | None = None
    sigv4: SigV4Config | None = None

    def __post_init__(self) -> None:
        only_key(self)


AuthChoice = Literal["pass", "remove"] | AuthConfig


def build_auth(choice: AuthChoice) -> Auth | None:
    """What a configuration asks for; None to pass what was captured."""
    if choice == "remove":
        return RemoveAuth()
    if choice == "pass":
        return None
    if choice.basic is not None:
        pair = f"{choice.basic.user}:{choice.basic.password.reveal()}".encode()
        value = Secret(f"Basic {base64.b64encode(pair).decode()}")
        return HeaderAuth("Authorization", value, f"set header Authorization, basic, as {choice.basic.user}")
    if choice.header is not None:
        return HeaderAuth(choice.header.name, choice.header.value, f"set header {choice.header.name}")
    if choice.sigv4 is None:
        return None
    from strandline.replay.sigv4 import signer  # noqa: PLC0415  (botocore takes most of a second to load)

    return signer(choice.sigv4.service, choice.sigv4.region)
