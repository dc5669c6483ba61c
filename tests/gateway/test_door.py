"""Who is let in: tokens signed with public keys that change, forged ones, TLS, origins, handshakes that dawdle."""

import asyncio
import base64
import json
import re
import ssl
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from msgspec.structs import replace
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from strandline.config import Secret
from strandline.errors import GatewayRefused, OptionError
from strandline.gateway.client import GatewayClient
from strandline.gateway.config import AuthSection, GatewayConfig, JwtSection, TopicSection, settings_of
from strandline.stack import KafkaCluster
from strandline.stack.certificates import Authority
from tests.gateway.raw import PING, PONG, Raw, Seen, beside, frame, greeted, request
from tests.gateway.support import SECRET, Plain, run, serving, write
from tests.gateway.support import token as signed
from tests.ordered.support import create_topic

RSA_KEY = rsa.generate_private_key(65_537, 2048)
OTHER_RSA_KEY = rsa.generate_private_key(65_537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
PUBLIC_PEM = RSA_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
CLAIMS = {"sub": "me", "channels": ["a"]}


def public(key_id: str | None, key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> dict[str, Any]:
    """A key as it stands in a file of keys."""
    is_rsa = isinstance(key, rsa.RSAPrivateKey)
    text = (RSAAlgorithm if is_rsa else ECAlgorithm).to_jwk(key.public_key())  # type: ignore[arg-type]
    return {**json.loads(text), **({} if key_id is None else {"kid": key_id})}


def token(key: Any, algorithm: str, key_id: str | None = None, *, valid_s: float = 600) -> str:
    headers = None if key_id is None else {"kid": key_id}
    return jwt.encode({**CLAIMS, "exp": time.time() + valid_s}, key, algorithm=algorithm, headers=headers)


def by_hand(header: dict[str, Any] | bytes, signature: bytes = b"") -> str:
    """A token that no library would make."""
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    body = json.dumps({**CLAIMS, "exp": time.time() + 60}).encode()
    return b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in (head, body, signature)).decode()


@pytest.fixture(scope="module")
def topic(kafka: KafkaCluster) -> str:
    name = f"gateway-{uuid4().hex[:8]}"
    create_topic(kafka.address, name)
    return name


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": [public("r", RSA_KEY), public("e", EC_KEY)]}))
    return file


def by_keys(file: Path) -> dict[str, Any]:
    return {"auth": {"jwt": {"algorithms": ["RS256", "ES256"], "jwks": str(file)}}}


async def status(gateway: Any, shown: str) -> int:
    """What a client with a token is answered at the door."""
    try:
        async with connect(gateway.address, additional_headers={"Authorization": f"Bearer {shown}"}):
            return 101
    except InvalidStatus as error:
        return error.response.status_code


def test_tokens_are_taken_by_the_key_that_they_name_and_no_other(kafka: KafkaCluster, topic: str, keys: Path) -> None:
    hmac_with_public = by_hand({"alg": "HS256", "kid": "r"})
    signing = hmac_with_public.rpartition(".")[0].encode()
    digest = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256).sign(signing, PUBLIC_PEM)
    shown = {
        "RS256": (token(RSA_KEY, "RS256", "r"), 101),
        "ES256": (token(EC_KEY, "ES256", "e"), 101),
        "an unknown key": (token(RSA_KEY, "RS256", "x"), 401),
        "no key named": (token(RSA_KEY, "RS256"), 401),
        "another's key under a known name": (token(OTHER_RSA_KEY, "RS256", "r"), 401),
        "a key of another kind": (token(RSA_KEY, "RS256", "e"), 401),
        "the other way about": (token(EC_KEY, "ES256", "r"), 401),
        "an algorithm that is not taken": (token(RSA_KEY, "RS512", "r"), 401),
        "the public key as a secret": (by_hand({"alg": "HS256", "kid": "r"}, digest), 401),
        "no algorithm": (by_hand({"alg": "none", "kid": "r"}), 401),
        "no algorithm, in other letters": (by_hand({"alg": "nOnE", "kid": "r"}), 401),
        "no signature": (by_hand({"alg": "RS256", "kid": "r"}), 401),
        "a key that is no text": (by_hand({"alg": "RS256", "kid": {"a": 1}}), 401),
        "a header that is no object": (by_hand(b"[1]"), 401),
        "a header that is too deep": (by_hand(b"[" * 4000), 401),
        "no token at all": ("a.b", 401),
        "expired": (token(RSA_KEY, "RS256", "r", valid_s=-60), 401),
    }

    async def test() -> None:
        async with serving(kafka.address, [topic], **by_keys(keys)) as gateway:
            found = {name: await status(gateway, text) for name, (text, _) in shown.items()}
            assert found == {name: code for name, (_, code) in shown.items()}

    run(test)


def test_keys_may_be_changed_while_it_runs(kafka: KafkaCluster, topic: str, keys: Path) -> None:
    fresh, old = token(OTHER_RSA_KEY, "RS256", "r2"), token(RSA_KEY, "RS256", "r")

    async def test() -> None:
        async with serving(kafka.address, [topic], **by_keys(keys)) as gateway:
            assert [await status(gateway, one) for one in (fresh, old)] == [401, 101]
            keys.write_text(json.dumps({"keys": [public("r2", OTHER_RSA_KEY), public("r", RSA_KEY)]}))
            assert [await status(gateway, one) for one in (fresh, old)] == [101, 101]
            keys.write_text(json.dumps({"keys": [public("r2", OTHER_RSA_KEY)]}))
            assert [await status(gateway, one) for one in (fresh, old)] == [101, 401]
            # What cannot be used changes nothing.
            keys.write_text("{")
            assert [await status(gateway, one) for one in (fresh, old)] == [101, 401]

    run(test)


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"algorithms": ["HS256"]}, "needs a secret"),
        ({"algorithms": ["HS256"], "secret": "short"}, "shorter than 32"),
        ({"algorithms": ["HS256", "RS256"], "secret": "x" * 32}, "HS256 goes with a secret alone"),
        ({"algorithms": ["HS256", "RS256"], "jwks": "keys.json"}, "HS256 goes with a secret alone"),
        ({"algorithms": ["RS256"], "secret": "x" * 32}, "without a secret"),
        ({"algorithms": ["RS256"]}, "go with a file of keys"),
        ({"algorithms": ["RS256"], "jwks": "missing.json"}, "missing.json cannot be read: No such file"),
    ],
)
def test_keys_that_do_not_fit_their_algorithms_are_refused_at_the_start(section: dict[str, Any], problem: str) -> None:
    if "secret" in section:
        section = {**section, "secret": Secret(section["secret"])}
    config = GatewayConfig(topics={"t": TopicSection()}, auth=AuthSection(jwt=JwtSection(**section)))
    with pytest.raises(OptionError, match=problem):
        settings_of(config, {}, ("127.0.0.1", 0), Path())


def test_nobody_is_let_in_whom_the_configuration_does_not_name() -> None:
    with pytest.raises(OptionError, match="nobody is let in: give "):
        settings_of(GatewayConfig(topics={"t": TopicSection()}), {}, ("127.0.0.1", 0), Path())


@pytest.mark.parametrize(
    ("auth", "problem"),
    [
        ({"anonymous": True, "jwt": True}, "without a token every channel could be read"),
        ({"anonymous_channels": ["a"], "jwt": True}, "auth.anonymous_channels is for auth.anonymous: true"),
    ],
)
def test_tokens_cannot_be_left_out_to_read_more_than_they_allow(auth: dict[str, Any], problem: str) -> None:
    jwt_ = JwtSection(algorithms=["HS256"], secret=Secret(SECRET))
    config = GatewayConfig(topics={"t": TopicSection()}, auth=AuthSection(**{**auth, "jwt": jwt_}))
    with pytest.raises(OptionError, match=re.escape(problem)):
        settings_of(config, {}, ("127.0.0.1", 0), Path())


def test_the_channels_that_a_token_allows_are_in_the_claim_that_the_configuration_names() -> None:
    named = JwtSection(algorithms=["HS256"], secret=Secret(SECRET), channels_claim="may")
    config = GatewayConfig(topics={"t": TopicSection()}, auth=AuthSection(jwt=named))
    door = settings_of(config, {}, ("127.0.0.1", 0), Path()).door
    allowed = door.identify("/", [f"Bearer {signed(['a'], may=['b'])}"]).allowed
    assert allowed is not None
    assert list(allowed) == ["b"]


@pytest.mark.parametrize(
    "greeting",
    [
        request("GET //[ HTTP/1.1"),
        request("GET /?access_token=a&access_token=b HTTP/1.1"),
        request(Authorization="Bearer a\r\nAuthorization: Bearer b"),
        request(Authorization="Basic bWU6bWU="),
        request(f"GET /?access_token={'%' * 500} HTTP/1.1"),
    ],
    ids=["a path that is none", "two tokens", "two headers", "another scheme", "no escapes"],
)
def test_whatever_is_shown_in_place_of_a_token_is_refused_in_words(
    kafka: KafkaCluster, topic: str, keys: Path, greeting: bytes
) -> None:
    with beside(kafka.address, [topic], **by_keys(keys)) as port, Raw(port, greeting) as raw:
        assert raw.head().startswith("HTTP/1.1 401 ")


def test_only_pages_of_the_origins_that_are_listed_may_connect(kafka: KafkaCluster, topic: str) -> None:
    origins = {
        "https://shop.example": "101",
        "https://SHOP.example": "403",
        "https://evil.example": "403",
        "https://shop.example.evil.example": "403",
        "http://shop.example": "403",
        "null": "403",
    }
    with beside(kafka.address, [topic], origins=["https://shop.example"]) as port:
        found = {}
        for origin in origins:
            with Raw(port, request(Origin=origin)) as raw:
                found[origin] = raw.head().split()[1]
        assert found == origins


def test_a_client_that_is_no_browser_needs_no_origin(kafka: KafkaCluster, topic: str) -> None:
    with beside(kafka.address, [topic], origins=["https://shop.example"]) as port, greeted(port) as raw:
        raw.send(frame(PING, b"x"))
        assert raw.hear() == Seen(PONG, b"x")


@pytest.fixture
def tls(tmp_path: Path) -> dict[str, Any]:
    """The gateway's certificate and key, and what its clients believe."""
    authority = Authority("tests")
    certificate, key = authority.issue("gateway", ["127.0.0.1"])
    (tmp_path / "gateway.pem").write_text(certificate)
    (tmp_path / "gateway.key").write_text(key)
    (tmp_path / "ca.pem").write_text(authority.certificate)
    return {"certificate": str(tmp_path / "gateway.pem"), "key": str(tmp_path / "gateway.key")}


def test_with_tls_a_client_is_served_that_believes_the_certificate_and_no_other(
    kafka: KafkaCluster, topic: str, tls: dict[str, Any]
) -> None:
    async def test() -> None:
        async with serving(kafka.address, [topic], tls=tls) as gateway:
            assert gateway.address.startswith("wss://")
            believing = ssl.create_default_context(cafile=str(Path(tls["key"]).with_name("ca.pem")))
            async with connect(gateway.address, ssl=believing, max_size=None) as connection:
                client = Plain(connection)
                await client.say("subscribe", channels=["a"])
                await client.until("subscribed")
                # More than one record of TLS at a time.
                await asyncio.to_thread(write, kafka.address, topic, [(0, "a", "x" * 50_000), (0, "a", 2)])
                assert [len(str(message["data"])) for message in await client.records(2)] == [50_000, 1]
            async with GatewayClient(gateway.address, ["a"]) as doubting:
                with pytest.raises(GatewayRefused, match="its certificate is not believed: unable to get local issuer"):
                    await anext(aiter(doubting))
            with pytest.raises(Exception, match="did not receive a valid HTTP response"):
                async with connect(gateway.address.replace("wss", "ws")):
                    pass

    run(test)


def test_who_dawdles_over_the_handshake_is_shown_out_and_others_are_served_meanwhile(
    kafka: KafkaCluster, topic: str, tls: dict[str, Any]
) -> None:
    async def dawdle(port: int, secure: bool) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        # What begins a handshake of TLS, or of HTTP, and never comes to its end.
        begun = b"\x16\x03\x01\x02\x00\x01\x00" if secure else request()[:-2]
        for place in range(len(begun)):
            writer.write(begun[place : place + 1])
            await asyncio.sleep(0)
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()

    async def shown_out(secure: bool) -> None:
        config = {"tls": tls} if secure else {}
        async with serving(kafka.address, [topic], **config) as gateway:
            believing = ssl.create_default_context(cafile=str(Path(tls["key"]).with_name("ca.pem")))
            async with connect(gateway.address, ssl=believing if secure else None) as connection:
                client = Plain(connection)
                await client.say("subscribe", channels=["a"])
                await client.until("subscribed")
                port = int(gateway.address.rpartition(":")[2])
                # From now on: the one that is to be served must not be shown out, however slow the machine is.
                gateway.limits = replace(gateway.limits, handshake_s=1.0)
                dawdling = [asyncio.create_task(dawdle(port, secure)) for _ in range(50)]
                await asyncio.to_thread(write, kafka.address, topic, [(0, "a", 1)])
                assert (await client.records(1))[0]["data"] == 1
                # Who speaks HTTP is told why; in the middle of a handshake of TLS nothing can be said.
                (told,) = {answer.partition(b"\r\n")[0] for answer in await asyncio.gather(*dawdling)}
                assert told == (b"" if secure else b"HTTP/1.1 408 Request Timeout")
                # The one that was served is served on.
                await client.say("ping")
                assert (await client.until("pong"))[-1] == {"type": "pong"}

    async def test() -> None:
        await asyncio.gather(shown_out(secure=False), shown_out(secure=True))

    run(test)


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_who_only_connects_takes_a_place_of_all_that_there_are_until_it_is_gone(
    kafka: KafkaCluster, topic: str, tls: dict[str, Any], secure: bool
) -> None:
    believing = ssl.create_default_context(cafile=str(Path(tls["key"]).with_name("ca.pem")))

    async def test() -> None:
        limits = {"connections": 3, "handshake_s": 600}
        config = {"tls": tls} if secure else {}
        async with serving(kafka.address, [topic], limits=limits, **config) as gateway:
            assert gateway._arbiter is not None
            room = gateway._arbiter.room

            async def answered() -> int:
                try:
                    async with connect(gateway.address, ssl=believing if secure else None):
                        return 101
                except InvalidStatus as error:
                    assert error.response.headers["Retry-After"] == "5"
                    return error.response.status_code

            assert await answered() == 101
            while room.total > 0:
                await asyncio.sleep(0.01)
            port = int(gateway.address.rpartition(":")[2])
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            while room.total < 3:
                await asyncio.sleep(0.01)
            assert await answered() == 503
            for _, writer in silent[:2]:
                writer.close()
            while room.total > 1:
                await asyncio.sleep(0.01)
            assert await answered() == 101
            silent[2][1].close()
            while room.total:
                await asyncio.sleep(0.01)

    run(test)
