"""How a replayed request proves who sends it: as captured, not at all, or anew.

    auth: pass                                    # the default: as captured
    auth: remove                                  # without Authorization
    auth: {basic: {user: u, password: p}}
    auth: {header: {name: X-Api-Key, value: k}}
    auth: {sigv4: {service: es, region: eu-west-1}}    # credentials as the AWS tools find them

A signature covers the host, the content type, all X-Amz-* headers and the body as it is sent, so what is added later,
such as the marker of a request, does not spoil it. What an older signature left is taken out.
"""

import base64
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Literal, Protocol
from urllib.parse import quote, unquote_to_bytes, urlsplit

from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.session import Session

from strandline.config import Secret, Section, only_key
from strandline.errors import OptionError
from strandline.units import Nanos
from strandline.wire.head import Head, request_line

SIGNATURE_HEADERS = ("Authorization", "X-Amz-Date", "X-Amz-Security-Token", "X-Amz-Content-SHA256")
SIGNATURE_PARAMETERS = {
    f"x-amz-{name}"
    for name in ("algorithm", "credential", "date", "expires", "security-token", "signature", "signedheaders")
}
# These want the hash of the body as a header too.
HASHED_SERVICES = {"s3", "aoss"}


class Auth(Protocol):
    """What is done to a request last."""

    @property
    def needs_body(self) -> bool:
        """Whether it must see the body."""
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

    def describe(self) -> str:
        return self.told

    def apply(self, head: Head, body: bytes, now: Nanos) -> Head:  # noqa: ARG002 - the body does not matter here
        head.set(self.name, self.value.reveal())
        return head


@dataclass(frozen=True, slots=True)
class SignV4:
    """AWS Signature Version 4. Credentials that expire are renewed when they are next used, which may block for it."""

    service: str
    region: str
    credentials: Any
    needs_body: bool = True

    def describe(self) -> str:
        return f"sign for AWS service {self.service} in {self.region}"

    def apply(self, head: Head, body: bytes, now: Nanos) -> Head:
        for name in SIGNATURE_HEADERS:
            head.remove(name)
        method, target, _ = request_line(head.first_line)
        path, query = _split(target)
        if query != target.partition("?")[2]:
            head = head.with_target(f"{path}?{query}" if query else path)
        credentials = self.credentials.get_frozen_credentials()
        stamp = datetime.fromtimestamp(now // 1_000_000_000, UTC).strftime("%Y%m%dT%H%M%SZ")
        head.set("X-Amz-Date", stamp)
        if credentials.token:
            head.set("X-Amz-Security-Token", credentials.token)
        if self.service in HASHED_SERVICES:
            head.set("X-Amz-Content-SHA256", sha256(body).hexdigest())
        request = AWSRequest(method=method, url=_url(head.get("Host") or "", path, query), data=body)
        for name in dict.fromkeys(name.decode("latin-1").lower() for name, _ in head.lines):
            if name in {"host", "content-type"} or name.startswith("x-amz-"):
                for value in head.all(name):
                    request.headers[name] = value
        request.context["timestamp"] = stamp
        signer = (S3SigV4Auth if self.service == "s3" else SigV4Auth)(credentials, self.service, self.region)
        signature = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
        signed = signer.signed_headers(signer.headers_to_sign(request))
        proof = f"Credential={signer.scope(request)}, SignedHeaders={signed}, Signature={signature}"
        head.set("Authorization", f"AWS4-HMAC-SHA256 {proof}")
        return head


def _split(target: str) -> tuple[str, str]:
    """The path and the query, without what an older signature left in it."""
    path, _, query = target.partition("?")
    parameters = [pair for pair in query.split("&") if pair.partition("=")[0].lower() not in SIGNATURE_PARAMETERS]
    return path, "&".join(parameters)


def _url(host: str, path: str, query: str) -> str:
    """The address as botocore wants it: the query percent-encoded in full, as AWS encodes it again to compare."""
    if not path.startswith("/"):
        path = urlsplit(path).path or "/"
    told = path.encode("latin-1").decode("utf-8", "replace").replace("#", "%23")
    pairs = [pair.partition("=") for pair in query.split("&") if pair]
    encoded = "&".join(f"{_encoded(name)}={_encoded(value)}" for name, _, value in pairs)
    return f"https://{host}{told}{'?' if encoded else ''}{encoded}"


def _encoded(text: str) -> str:
    return quote(unquote_to_bytes(text.replace("+", " ").encode("latin-1")), safe="-_.~")


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
    return None if choice.sigv4 is None else _signer(choice.sigv4)


def _signer(config: SigV4Config) -> SignV4:
    credentials = Session().get_credentials()
    if credentials is None:
        raise OptionError("auth 'sigv4': no AWS credentials found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    return SignV4(config.service, config.region, credentials)
