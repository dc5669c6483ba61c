"""The configuration of the gateway: what may stand in its file, and the settings that it comes to."""

import secrets
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from strandline.config import Secret, Section
from strandline.core.audience import Wanted
from strandline.core.channel import Template
from strandline.errors import OptionError
from strandline.gateway.auth import Door
from strandline.gateway.feed import Naming
from strandline.gateway.keys import KeyFile, Keys, SharedSecret
from strandline.gateway.limits import Limits, Seconds, Size
from strandline.tls import serving
from strandline.wire.resume_token import Signer

SHORTEST_KEY = 32
LISTEN = "listen in the file"
"""Where the address comes from."""


class TopicSection(Section, frozen=True, kw_only=True):
    """How the records of a topic are named."""

    channel: str = "{key}"
    type: str = "message"
    priority: str = "NORMAL"


class TlsSection(Section, frozen=True, kw_only=True):
    """PEM files."""

    certificate: str
    key: str


class JwtSection(Section, frozen=True, kw_only=True):
    """Which tokens are taken."""

    algorithms: Annotated[list[Literal["HS256", "RS256", "ES256"]], Meta(min_length=1)]
    secret: Secret | None = None
    """For HS256."""
    jwks: str | None = None
    """A file of public keys, for RS256 and ES256; read again when it has changed."""
    audience: str | None = None
    issuer: str | None = None
    channels_claim: str = "channels"
    class_claim: str = "class"
    classes: list[str] = msgspec.field(default_factory=list)
    """Whose replays go first where replays have to wait: the first class, then the second, and who is in none last."""


class AuthSection(Section, frozen=True, kw_only=True):
    """Who is let in."""

    anonymous: bool = False
    anonymous_channels: list[str] | None = None
    """What clients without a token may hear, as in a token's claim; everything where it is missing."""
    jwt: JwtSection | None = None


class GatewayConfig(Section, frozen=True, kw_only=True):
    """The file."""

    topics: Annotated[dict[str, TopicSection], Meta(min_length=1)]
    listen: str = "127.0.0.1:8090"
    kafka: str | None = None
    kafka_config: str | None = None
    auth: AuthSection = AuthSection()
    tls: TlsSection | None = None
    origins: list[str] | None = None
    conflate: list[str] = msgspec.field(default_factory=list)
    """Channels whose slow clients get the latest record only."""
    recent_bytes: Size = 16 << 20
    """Kept in memory of each partition."""
    history_bytes: Size = 64 << 20
    """Kept of what was read from Kafka for replays, for the next who wants it."""
    max_history_s: Annotated[float, Meta(gt=0)] | None = None
    """How old records may be that are given out; all that Kafka has where it is missing."""
    token_keys: dict[str, Secret] = msgspec.field(default_factory=dict)
    """What resume tokens are signed with, by name; the first signs."""
    token_every_s: Seconds = 10.0
    token_valid_s: Seconds = 86_400.0
    observe: str | None = None
    workers: Annotated[int, Meta(ge=1, le=256)] = 1
    """Processes on the one port."""
    limits: Limits = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All that the gateway has to know."""

    listen: tuple[str, int]
    kafka: Mapping[str, str]
    namings: Mapping[str, Naming]
    door: Door
    signer: Signer
    limits: Limits
    tls: ssl.SSLContext | None
    origins: list[Any] | None
    conflate: Wanted
    recent_bytes: int
    history_bytes: int
    max_history_s: float | None
    token_every_s: float
    token_valid_s: float

    def address(self, port: int) -> str:
        """What clients connect to, with the real port."""
        host = self.listen[0]
        return f"{'ws' if self.tls is None else 'wss'}://{f'[{host}]' if ':' in host else host}:{port}"


def settings_of(
    config: GatewayConfig,
    kafka: Mapping[str, str],
    listen: tuple[str, int],
    folder: Path,
    *,
    own_key: bytes | None = None,
) -> Settings:
    """The settings of a configuration; what cannot be is refused here, before anything starts.

    `own_key` signs resume tokens where the configuration has no key for that.
    """
    return Settings(
        listen=listen,
        kafka=kafka,
        namings={topic: _naming(topic, section) for topic, section in config.topics.items()},
        door=_door(config.auth, folder),
        signer=Signer(_token_keys(config.token_keys, own_key or secrets.token_bytes(SHORTEST_KEY))),
        limits=config.limits,
        tls=None if config.tls is None else serving(folder / config.tls.certificate, folder / config.tls.key, "tls"),
        # Only browsers say where they come from; for all others there are tokens.
        origins=None if config.origins is None else [*config.origins, None],
        conflate=Wanted(config.conflate),
        recent_bytes=config.recent_bytes,
        history_bytes=config.history_bytes,
        max_history_s=config.max_history_s,
        token_every_s=config.token_every_s,
        token_valid_s=config.token_valid_s,
    )


def _naming(topic: str, section: TopicSection) -> Naming:
    found = {}
    for name in ("channel", "type", "priority"):
        try:
            found[name] = Template.parse(getattr(section, name))
        except ValueError as error:
            raise OptionError(f"topics.{topic}.{name}: {error}") from None
    return Naming(**found)


def _token_keys(given: Mapping[str, Secret], own: bytes) -> dict[str, bytes]:
    short = next((name for name, key in given.items() if len(key.reveal()) < SHORTEST_KEY), None)
    if short is not None:
        raise OptionError(f"token_keys.{short} is shorter than {SHORTEST_KEY} characters")
    # Without keys of the user's, tokens are good for as long as this gateway runs.
    return {name: key.reveal().encode() for name, key in given.items()} or {"own": own}


def _door(auth: AuthSection, folder: Path) -> Door:
    channels = auth.anonymous_channels
    if channels is not None and not auth.anonymous:
        raise OptionError("auth.anonymous_channels is for auth.anonymous: true")
    anonymous = None if channels is None else Wanted(channels)
    if auth.jwt is None:
        if not auth.anonymous:
            raise OptionError("nobody is let in: give auth.jwt, or auth.anonymous: true")
        return Door(lets_anonymous_in=True, anonymous_channels=anonymous)
    if auth.anonymous and anonymous is None:
        raise OptionError(
            "auth.anonymous beside auth.jwt: without a token every channel could be read; "
            "list what clients without one may read in auth.anonymous_channels, or remove auth.anonymous"
        )
    section = auth.jwt
    return Door(
        keys=_keys(section, folder),
        algorithms=tuple(section.algorithms),
        audience=section.audience,
        issuer=section.issuer,
        channels_claim=section.channels_claim,
        class_claim=section.class_claim,
        classes=tuple(section.classes),
        lets_anonymous_in=auth.anonymous,
        anonymous_channels=anonymous,
    )


def _keys(section: JwtSection, folder: Path) -> Keys:
    if "HS256" in section.algorithms:
        # Beside others a public key would be taken for the secret of a token that says HS256.
        if len(set(section.algorithms)) > 1 or section.jwks is not None:
            raise OptionError("auth.jwt: HS256 goes with a secret alone, RS256 and ES256 with a file of keys (jwks)")
        if section.secret is None:
            raise OptionError("auth.jwt: HS256 needs a secret")
        if len(section.secret.reveal()) < SHORTEST_KEY:
            raise OptionError(f"auth.jwt.secret is shorter than {SHORTEST_KEY} characters")
        return SharedSecret(section.secret.reveal())
    if section.jwks is None or section.secret is not None:
        raise OptionError("auth.jwt: RS256 and ES256 go with a file of keys (jwks), and without a secret")
    return KeyFile(folder / section.jwks)
