"""A request proves itself as asked; a signature is the one that AWS's own tools compute."""

from dataclasses import dataclass
from datetime import UTC, datetime
from unittest.mock import patch

import botocore.auth
import msgspec
import pytest
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from strandline.clock import ManualClock
from strandline.config import Secret
from strandline.errors import OptionError
from strandline.replay.auth import AuthChoice, AuthConfig, BasicConfig, HeaderConfig, SigV4Config, build_auth
from strandline.replay.changes import TransformConfig
from strandline.replay.sigv4 import SignV4
from strandline.replay.transforms import Transform
from strandline.units import Nanos
from strandline.wire.head import Head, request_line

# The time, the key and the host of the examples that AWS publishes for Signature Version 4.
NOW = datetime(2015, 8, 30, 12, 36, 0, tzinfo=UTC)
NANOS = Nanos(int(NOW.timestamp()) * 1_000_000_000)
KEY = Credentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
SESSION_KEY = Credentials("AKIDEXAMPLE", "secret", "a/token==")


def head(first: str, *fields: str) -> Head:
    return Head(("\r\n".join([first, "Host: example.amazonaws.com", *fields]) + "\r\n\r\n").encode())


def signed(request: Head, body: bytes = b"", *, service: str = "service", key: Credentials = KEY) -> Head:
    return SignV4(service, "us-east-1", key).apply(request, body, NANOS)


def by_botocore(request: Head, query: str, body: bytes, service: str, key: Credentials) -> str:
    """What botocore itself would send, given the headers that are to be signed and the query as AWS wants it."""
    method, target, _ = request_line(request.first_line)
    url = f"https://example.amazonaws.com{target.partition('?')[0]}{query}"
    names = [name.decode() for name, _ in request.lines if name.decode().lower() in {"content-type", "x-amz-target"}]
    fields = {name: request.get(name) for name in ["Host", *names]}
    if service == "aoss":
        fields["X-Amz-Content-SHA256"] = request.get("X-Amz-Content-SHA256")
    made = AWSRequest(method=method, url=url, data=body, headers=fields)
    signer = (S3SigV4Auth if service == "s3" else SigV4Auth)(key, service, "us-east-1")
    with patch.object(botocore.auth, "get_current_datetime", lambda: NOW):
        signer.add_auth(made)
    return str(made.headers["Authorization"])


@pytest.mark.parametrize(
    ("target", "signature"),
    [
        ("/", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
        ("/?Param2=value2&Param1=value1", "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"),
    ],
)
def test_a_published_example_gets_its_published_signature(target: str, signature: str) -> None:
    made = signed(head(f"GET {target} HTTP/1.1"))
    assert made.get("X-Amz-Date") == "20150830T123600Z"
    assert made.get("Authorization") == (
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
        f"SignedHeaders=host;x-amz-date, Signature={signature}"
    )


@pytest.mark.parametrize("service", ["es", "aoss", "s3"])
@pytest.mark.parametrize("key", [KEY, SESSION_KEY])
@pytest.mark.parametrize(
    ("target", "query"),
    [
        ("/", ""),
        ("/a/b%20c/d,e:*", ""),
        ("/a//b/../c", ""),
        ("/i/_search?q=a+b&filter_path=x.*,y&flag", "?q=a%20b&filter_path=x.%2A%2Cy&flag="),
        ("/i/_search?q=%C3%A9&b=2&a=1&a=0", "?q=%C3%A9&b=2&a=1&a=0"),
        ("/i?X-Amz-Signature=old&q=1&x-amz-date=old", "?q=1"),
        ("/i?X-Amz-Signature=old", ""),
    ],
)
def test_a_signature_is_the_one_of_botocore(service: str, key: Credentials, target: str, query: str) -> None:
    body = b'{"a": 1}'
    old = ["Authorization: old", "X-Amz-Date: old", "x-amz-security-token: old", "X-Amz-Content-Sha256: old"]
    request = head(
        f"POST {target} HTTP/1.1", *old, "Content-Type: application/json", "X-Amz-Target: A.B", "Accept: */*"
    )
    made = signed(request, body, service=service, key=key)
    assert made.get("Authorization") == by_botocore(made, query, body, service, key)
    assert "old" not in made.to_bytes().decode()
    assert made.get("Accept") == "*/*"
    assert made.get("X-Amz-Security-Token") == key.token


def test_a_target_is_sent_as_captured_though_it_is_signed_in_another_form() -> None:
    assert request_line(signed(head("GET /a,b?x=*&y=a+b HTTP/1.1")).to_bytes())[1] == "/a,b?x=*&y=a+b"


def test_what_is_added_later_does_not_spoil_a_signature() -> None:
    plain = signed(head("GET / HTTP/1.1")).get("Authorization")
    assert signed(head("GET / HTTP/1.1", "X-Strandline-Request: 1-2.3")).get("Authorization") == plain


@dataclass
class Held:
    data: bytes

    @property
    def length(self) -> int:
        return len(self.data)

    def read(self) -> bytes:
        return self.data


def test_a_body_in_chunks_is_signed_without_them_and_sent_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY.secret_key)
    config = TransformConfig(auth=AuthConfig(sigv4=SigV4Config(service="es", region="us-east-1")))
    made = Transform("example.amazonaws.com", config, ManualClock(NANOS))
    assert made.needs_body
    assert made.describe()[1:] == ["sign for AWS service es in us-east-1"]
    request = head("POST / HTTP/1.1", "Transfer-Encoding: chunked")
    sent, body = made.apply(request.to_bytes(), Held(b"5\r\nhello\r\n0\r\n\r\n"))
    assert body is None
    assert Head(sent).get("Authorization") == by_botocore(Head(sent), "", b"hello", "es", KEY)
    assert Head(sent).get("Transfer-Encoding") == "chunked"


def test_without_credentials_nothing_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", f"{tmp_path}/none")
    monkeypatch.setenv("AWS_CONFIG_FILE", f"{tmp_path}/none")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(OptionError, match="no AWS credentials found"):
        build_auth(AuthConfig(sigv4=SigV4Config(service="es", region="us-east-1")))


def test_a_header_is_set_removed_or_passed_and_its_value_is_not_told() -> None:
    old = ["Authorization: old", "authorization: older"]
    assert build_auth("pass") is None
    choices: list[tuple[AuthChoice, str, list[str]]] = [
        ("remove", "Authorization", []),
        (AuthConfig(basic=BasicConfig(user="ann", password=Secret("päss"))), "Authorization", ["Basic YW5uOnDDpHNz"]),
        (AuthConfig(header=HeaderConfig(name="X-Api-Key", value=Secret("hidden"))), "X-Api-Key", ["hidden"]),
    ]
    for choice, name, values in choices:
        auth = build_auth(choice)
        assert auth is not None
        assert not auth.needs_body
        assert auth.apply(head("GET / HTTP/1.1", *old), b"", NANOS).all(name) == values
        assert "hidden" not in auth.describe() + repr(auth)


def test_a_header_or_a_user_that_cannot_be_sent_is_refused() -> None:
    with pytest.raises(ValueError, match="no name of a header"):
        HeaderConfig(name="A B", value=Secret("x"))
    with pytest.raises(ValueError, match="without signs"):
        HeaderConfig(name="A", value=Secret("x\r\nB: c"))
    with pytest.raises(ValueError, match="no colon"):
        BasicConfig(user="a:b", password=Secret("x"))
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"basic": {"user": "a"}}, AuthConfig)
