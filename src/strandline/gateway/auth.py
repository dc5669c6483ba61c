"""Who a client is: a signed token (JWT) at the door says so, and which channels it may hear."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt

from strandline.core.audience import Wanted
from strandline.gateway.session import Identity

ANONYMOUS = Identity("anonymous")
BEARER = "bearer "
LEEWAY_S = 5


class NotAllowedIn(Exception):
    """A client without a token that is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Lets clients in."""

    keys: tuple[tuple[str | None, Any], ...] = ()
    """By their ids; one without an id fits any token."""
    algorithms: tuple[str, ...] = ()
    audience: str | None = None
    issuer: str | None = None
    channels_claim: str = "channels"
    lets_anonymous_in: bool = False

    def identify(self, path: str, authorization: str | None) -> Identity:
        """Who comes with a request; a browser has its token in the query, for it cannot set headers."""
        token = None
        if authorization is not None and authorization.lower().startswith(BEARER):
            token = authorization[len(BEARER) :].strip()
        given = parse_qs(urlsplit(path).query).get("access_token")
        token = token or (given[0] if given else None)
        if token is None:
            if self.lets_anonymous_in:
                return ANONYMOUS
            raise NotAllowedIn("a token is needed")
        return self.read(token)

    def read(self, token: str) -> Identity:
        """Who a token speaks of."""
        try:
            key_id = jwt.get_unverified_header(token).get("kid")
        except jwt.InvalidTokenError:
            raise NotAllowedIn("the token cannot be read") from None
        fitting = [key for name, key in self.keys if name is None or name == key_id]
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
            except jwt.InvalidTokenError as error:
                raise NotAllowedIn(f"the token is not taken: {error}") from None
            return self._identity(claims)
        raise NotAllowedIn("the token's signature is not ours")

    def _identity(self, claims: dict[str, Any]) -> Identity:
        channels = claims.get(self.channels_claim, [])
        if not isinstance(channels, list) or not all(isinstance(channel, str) for channel in channels):
            raise NotAllowedIn(f"the token's claim '{self.channels_claim}' is no list of channels")
        return Identity(str(claims["sub"]), Wanted(channels), int(claims["exp"]))
