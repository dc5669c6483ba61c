"""How to talk to a broker in safety: librdkafka's option names, read as librdkafka reads them, to TLS and SASL.

What librdkafka refuses is refused. As there, an empty string is no value, `sasl.mechanisms` is `sasl.mechanism` (the
later one counts), and what the security protocol has no use for is not looked at. Only a user with no protocol is
refused: librdkafka would sign in nowhere.
"""

import os
import secrets
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self, TypeVar

from strandline.config import Secret
from strandline.errors import AuthenticationFailed, OptionError, did_you_mean
from strandline.wire.scram import HASHES, ScramClient

NAMES = frozenset({
    "security.protocol",
    "ssl.ca.location", "ssl.ca.pem",
    "ssl.certificate.location", "ssl.certificate.pem",
    "ssl.key.location", "ssl.key.pem", "ssl.key.password",
    "enable.ssl.certificate.verification", "ssl.endpoint.identification.algorithm",
    "sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password",
})  # fmt: skip
"""The options that are taken here. Others whose names begin like these are refused: silence would be unsafe."""
OURS = ("security.", "ssl.", "sasl.", "enable.ssl.", "enable.sasl.")
ALIASES = {"sasl.mechanisms": "sasl.mechanism"}

PROTOCOLS = {
    "plaintext": {"tls": False, "sasl": False},
    "ssl": {"tls": True, "sasl": False},
    "sasl_plaintext": {"tls": False, "sasl": True},
    "sasl_ssl": {"tls": True, "sasl": True},
}
BOOLEANS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
IDENTIFICATIONS = {"https": True, "none": False}
PLAIN = "PLAIN"
MECHANISMS = (PLAIN, *HASHES)
# Asks for the system's own authorities, as if the option were not there.
PROBE = "probe"
NONCE_BYTES = 24

T = TypeVar("T")


class SaslClient(Protocol):
    """The client's side of one SASL exchange."""

    def first(self) -> bytes:
        """What the client says first."""
        ...

    def answer(self, challenge: bytes) -> bytes | None:
        """What to say next; None when the exchange is complete and the server has proved itself.

        Raises AuthenticationFailed.
        """
        ...


class PlainClient:
    """PLAIN (RFC 4616) sends the password itself; it is TLS that proves the server, and hides the password."""

    def __init__(self, username: str, password: str) -> None:
        self._first = b"\0%b\0%b" % (username.encode(), password.encode())

    def first(self) -> bytes:
        """Name and password."""
        return self._first

    def answer(self, challenge: bytes) -> bytes | None:
        """None: a server that lets us in has nothing to say."""
        if challenge:
            raise AuthenticationFailed("the server answered PLAIN with a challenge")
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sasl:
    """Who we are."""

    mechanism: str
    username: str
    password: Secret

    def client(self) -> SaslClient:
        """A client for one exchange."""
        if self.mechanism == PLAIN:
            return PlainClient(self.username, self.password.reveal())
        nonce = secrets.token_urlsafe(NONCE_BYTES)
        return ScramClient(self.mechanism, self.username, self.password.reveal(), nonce)


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """TLS, SASL, both or neither."""

    tls: ssl.SSLContext | None = None
    sasl: Sasl | None = None

    @classmethod
    def parse(cls, settings: Mapping[str, object]) -> Self:
        """Read the options of `NAMES`, and the files that they name; what is not about security is let pass."""
        for name in settings:
            if name.startswith(OURS) and name not in NAMES:
                raise OptionError(f"{name} is not supported; {did_you_mean(name, NAMES)}")
        given = {ALIASES.get(name, name): _text(value) for name, value in settings.items() if name in NAMES}
        options = {name: value for name, value in given.items() if value is not None}
        wanted = _choice(options, "security.protocol", PROTOCOLS, "plaintext")
        # All choices are checked, also those that do not matter; a file is opened only when it is needed.
        verify = _choice(options, "enable.ssl.certificate.verification", BOOLEANS, "true")
        identify = _choice(options, "ssl.endpoint.identification.algorithm", IDENTIFICATIONS, "https")
        filled = {name: value for name, value in options.items() if value}
        if "security.protocol" not in options and filled.keys() & {"sasl.username", "sasl.password"}:
            raise OptionError("a user is given, and security.protocol is not: set it to sasl_ssl, or to sasl_plaintext")
        return cls(
            tls=_tls(filled, verify=verify, identify=identify) if wanted["tls"] else None,
            sasl=_sasl(filled) if wanted["sasl"] else None,
        )


def _text(value: object) -> str | None:
    if value is None:
        return None
    return value.reveal() if isinstance(value, Secret) else str(value)


def _choice(options: Mapping[str, str], name: str, choices: Mapping[str, T], default: str) -> T:
    value = options.get(name, default)
    found = choices.get(value.strip().lower())
    if found is None:
        raise OptionError(f"{name} takes {', '.join(choices)}, not '{value}'")
    return found


def _sasl(options: Mapping[str, str]) -> Sasl:
    mechanism = options.get("sasl.mechanism")
    if mechanism is None:
        # librdkafka would take GSSAPI, which we do not speak.
        raise OptionError(f"sasl.mechanism is missing; valid are {', '.join(MECHANISMS)}")
    if mechanism not in MECHANISMS:
        raise OptionError(f"sasl.mechanism '{mechanism}' is not supported; {did_you_mean(mechanism, MECHANISMS)}")
    username, password = (_sendable(options, name) for name in ("sasl.username", "sasl.password"))
    return Sasl(mechanism=mechanism, username=username, password=Secret(password))


def _sendable(options: Mapping[str, str], name: str) -> str:
    value = options.get(name)
    if value is None:
        raise OptionError(f"{name} is missing; {options['sasl.mechanism']} needs it")
    # The second: what Python makes of bytes in the environment that are not UTF-8.
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise OptionError(f"{name} holds a character that cannot be sent")
    return value


def _tls(options: Mapping[str, str], *, verify: bool, identify: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # In this order: Python has no name checked in a certificate that is not verified.
    context.check_hostname = verify and identify
    context.verify_mode = ssl.CERT_REQUIRED if verify else ssl.CERT_NONE
    if options.get("ssl.ca.location", PROBE) == PROBE and "ssl.ca.pem" not in options:
        context.load_default_certs()
    if options.get("ssl.ca.location", PROBE) != PROBE:
        _trust(context, "ssl.ca.location", options["ssl.ca.location"])
    if "ssl.ca.pem" in options:
        with _as_file(options["ssl.ca.pem"]) as path:
            _trust(context, "ssl.ca.pem", path)
    certificate, key = (_either(options, f"ssl.{part}") for part in ("certificate", "key"))
    if certificate is not None and key is not None:
        _identify(context, options, certificate, key)
    elif certificate is not None:
        raise OptionError(f"{certificate} is of no use without ssl.key.location or ssl.key.pem")
    elif key is not None:
        raise OptionError(f"{key} is of no use without ssl.certificate.location or ssl.certificate.pem")
    return context


def _either(options: Mapping[str, str], name: str) -> str | None:
    """The option that counts: librdkafka reads the file first, and the string takes its place."""
    return next((option for option in (f"{name}.pem", f"{name}.location") if option in options), None)


def _trust(context: ssl.SSLContext, option: str, path: str) -> None:
    try:
        if Path(path).is_dir():
            context.load_verify_locations(capath=path)
        else:
            context.load_verify_locations(cafile=path)
    except ssl.SSLError:
        raise OptionError(f"{option}{_shown(option, path)} holds no PEM certificate") from None
    except (OSError, ValueError) as error:
        raise OptionError(f"{option}{_shown(option, path)} cannot be read: {_reason(error)}") from None


def _identify(context: ssl.SSLContext, options: Mapping[str, str], certificate: str, key: str) -> None:
    with _path(options, certificate) as certificate_path, _path(options, key) as key_path:
        # Of the two files, Python does not tell which was wrong. So each is tried by itself.
        _trust(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), certificate, certificate_path)
        try:
            Path(key_path).read_bytes()
            # Always with a password: without one, OpenSSL would ask for it at the terminal.
            context.load_cert_chain(certificate_path, key_path, options.get("ssl.key.password", ""))
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise OptionError(f"{key} is not the key of {certificate}") from None
            shown = _shown(key, key_path)
            raise OptionError(f"{key}{shown} is no PEM key, or ssl.key.password does not open it") from None
        except (OSError, ValueError) as error:
            raise OptionError(f"{key}{_shown(key, key_path)} cannot be read: {_reason(error)}") from None


@contextmanager
def _path(options: Mapping[str, str], option: str) -> Iterator[str]:
    if option.endswith(".location"):
        yield options[option]
    else:
        with _as_file(options[option]) as path:
            yield path


@contextmanager
def _as_file(text: str) -> Iterator[str]:
    """A string under a path, since Python reads keys from files only. It is in memory and on no disk."""
    with os.fdopen(os.memfd_create("pem"), "wb") as file:
        file.write(text.encode(errors="replace"))
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"


def _shown(option: str, path: str) -> str:
    return f": {path}" if option.endswith(".location") else ""


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
