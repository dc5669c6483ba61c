"""Who a client is: a signed token (JWT) at the door says so, and which channels it may hear."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

import jwt

from strandline.core.audience import Wanted
from strandline.gateway.keys import Keys

BEARER = "bearer "
LEEWAY_S = 5
# JSON may be nested deeper than can be read.
UNREADABLE = (jwt.PyJWTError, RecursionError)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a client is, and what it may hear."""

    subject: str
    allowed: Wanted | None = None
    """None: everything."""
    expires: int | None = None
    rank: int = 0
    """Lower ones are sent old records first, where that has to be waited for."""
    is_anonymous: bool = False


class NotAllowedIn(Exception):
    """A client without a token that is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Lets clients in."""

    keys: Keys | None = None
    algorithms: tuple[str, ...] = ()
    audience: str | None = None
    issuer: str | None = None
    channels_claim: str = "channels"
    class_claim: str = "class"
    classes: tuple[str, ...] = ()
    """The first is served first; who is in none of them comes last."""
    lets_anonymous_in: bool = False
    anonymous_channels: Wanted | None = None
    """What clients without a token may read; None: everything."""

    def identify(self, path: str, authorization: Sequence[str]) -> Identity:
        """Who comes with a request; a browser has its token in the query, for it cannot set headers."""
        given = [header[len(BEARER) :].strip() for header in authorization if header.lower().startswith(BEARER)]
        given = given or parse_qs(path.partition("?")[2]).get("access_token", [])
        if not given:
            if self.lets_anonymous_in:
                return Identity("anonymous", self.anonymous_channels, rank=len(self.classes), is_anonymous=True)
            raise NotAllowedIn("a token is needed")
        if len(given) > 1:
            raise NotAllowedIn("there is more than one token")
        return self.read(given[0])

    def read(self, token: str) -> Identity:
        """Who a token speaks of."""
        try:
            key_id = jwt.get_unverified_header(token).get("kid")
        except UNREADABLE:
            raise NotAllowedIn("the token cannot be read") from None
        fitting = [] if self.keys is None else self.keys.of(key_id)
        if not fitting:
            raise NotAllowedIn("the token names a key that is not known here")
        for key in fitting:
            try:
                claims = jwt.decode(
                    token,
                    key,
                    algorithms=list(self.algorithms),
                    audience=self.audience,
                    issuer=self.issuer,
                    leeway=LEEWAY_S,
                    options={"require": ["exp", "sub"]},
                )
            except jwt.InvalidSignatureError:
                continue
            except jwt.ExpiredSignatureError:
                raise NotAllowedIn("the token has expired") from None
            except UNREADABLE as error:
                raise NotAllowedIn(f"the token is not taken: {error}") from None
            return self._identity(claims)
        raise NotAllowedIn("the token's signature is not ours")

    def _identity(self, claims: dict[str, Any]) -> Identity:
        channels = claims.get(self.channels_claim, [])
        if not isinstance(channels, list) or not all(isinstance(channel, str) for channel in channels):
            raise NotAllowedIn(f"the token's claim '{self.channels_claim}' is no list of channels")
        named = claims.get(self.class_claim)
        rank = self.classes.index(named) if named in self.classes else len(self.classes)
        return Identity(str(claims["sub"]), Wanted(channels), int(claims["exp"]), rank)
