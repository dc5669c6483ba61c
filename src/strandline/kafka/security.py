"""placeholder until the branch lands"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

NAMES: frozenset[str] = frozenset()


class SaslClient(Protocol):
    def first(self) -> bytes: ...
    def answer(self, challenge: bytes) -> bytes | None: ...


@dataclass(frozen=True)
class Sasl:
    mechanism: str
    username: str

    def client(self) -> SaslClient:
        raise NotImplementedError


@dataclass(frozen=True)
class Security:
    tls: ssl.SSLContext | None = None
    sasl: Sasl | None = None

    @classmethod
    def parse(cls, settings: Mapping[str, str]) -> "Security":
        return cls()
