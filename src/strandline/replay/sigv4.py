"""AWS Signature Version 4 of a request.

A signature covers the host, the content type, all X-Amz-* headers and the body as it is sent, so what is added later,
such as the marker of a request, does not spoil it. What an older signature left is taken out.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any
from urllib.parse import quote, unquote_to_bytes, urlsplit

from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.session import Session

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


@dataclass(frozen=True, slots=True)
class SignV4:
    """AWS Signature Version 4. Credentials that expire are renewed when they are next used, which may block for it."""

    service: str
    region: str
    credentials: Any
    needs_body: bool = True
    is_timely: bool = True

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


def signer(service: str, region: str) -> SignV4:
    """With credentials as the AWS tools find them."""
    credentials = Session().get_credentials()
    if credentials is None:
        raise OptionError("auth 'sigv4': no AWS credentials found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    return SignV4(service, region, credentials)
