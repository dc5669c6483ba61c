"""The keys that tokens at the door are checked with: a secret, or a file of public ones that may change meanwhile."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import jwt

from strandline.errors import OptionError

Key = str | jwt.PyJWK

log = logging.getLogger(__name__)


class Keys(Protocol):
    """Gives out what a token may have been signed with."""

    def of(self, key_id: str | None) -> Sequence[Key]: ...


class SharedSecret:
    """One secret, for whatever key a token names."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def of(self, key_id: str | None) -> Sequence[Key]:  # noqa: ARG002  (it has one only)
        return [self._secret]


class KeyFile:
    """Public keys in a file (JWKS), read again when it has changed; one without an id fits any token."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = _stamp(path)
        try:
            self._keys = _read(path)
        except OSError as error:
            raise OptionError(f"auth.jwt.jwks: {path} cannot be read: {error.strerror}") from None
        except (ValueError, jwt.PyJWTError) as error:
            raise OptionError(f"auth.jwt.jwks: {path} is no file of public keys (JWKS): {error}") from None

    def of(self, key_id: str | None) -> Sequence[Key]:
        stamp = _stamp(self._path)
        if stamp != self._stamp:
            self._stamp = stamp
            self._read_again()
        return [key for key in self._keys if key.key_id is None or key.key_id == key_id]

    def _read_again(self) -> None:
        try:
            self._keys = _read(self._path)
        except (OSError, ValueError, jwt.PyJWTError) as error:
            log.warning("%s has changed and cannot be used, so the keys stay as they were: %s", self._path, error)
        else:
            log.info("%s has changed: %d keys", self._path, len(self._keys))


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _read(path: Path) -> list[jwt.PyJWK]:
    return jwt.PyJWKSet.from_json(path.read_text()).keys
