"""Whoever knows the password is let in, and no server that does not know it is believed."""

import base64
import hashlib
import hmac
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.errors import AuthenticationFailed
from strandline.wire.scram import HASHES, ScramClient, State

MECHANISMS = sorted(HASHES)
NONCE = "fyko+d2lbbFgONRv9qkxdawL"

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30)
nonces = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters=","), min_size=1, max_size=40)


@dataclass
class Server:
    """A reference server: keeps what RFC 5802 has it keep, and checks a proof by undoing it."""

    mechanism: str
    username: str
    password: str
    nonce: str = "3rfcNHYJY1ZVvWVs7j"
    salt: bytes = b"salt of the sea"
    iterations: int = 4096

    def digest(self, key: bytes, message: str) -> bytes:
        return hmac.new(key, message.encode(), HASHES[self.mechanism]).digest()

    def challenge(self, first: bytes) -> bytes:
        header, name, nonce = first.decode().split(",n=")[0], *first.decode().split(",n=")[1].split(",r=")
        assert header == "n,"
        assert name.replace("=2C", ",").replace("=3D", "=") == self.username
        self.first = f"n={name},r={nonce}"
        self.challenged = f"r={nonce}{self.nonce},s={base64.b64encode(self.salt).decode()},i={self.iterations}"
        return self.challenged.encode()

    def final(self, answer: bytes) -> bytes:
        bare, proof = answer.decode().split(",p=")
        assert bare == f"c=biws,{self.challenged.split(',')[0]}"
        message = f"{self.first},{self.challenged},{bare}"
        hash_ = HASHES[self.mechanism]
        salted = hashlib.pbkdf2_hmac(hash_, self.password.encode(), self.salt, self.iterations)
        stored_key = hashlib.new(hash_, self.digest(salted, "Client Key")).digest()
        signature = int.from_bytes(self.digest(stored_key, message), "big")
        key = (int.from_bytes(base64.b64decode(proof), "big") ^ signature).to_bytes(len(stored_key), "big")
        if hashlib.new(hash_, key).digest() != stored_key:
            return b"e=invalid-proof"
        return b"v=" + base64.b64encode(self.digest(self.digest(salted, "Server Key"), message))


servers = st.builds(
    Server, st.sampled_from(MECHANISMS), texts, texts, nonces, st.binary(min_size=1), st.integers(4096, 6000)
)


def challenged(mechanism: str = "SCRAM-SHA-256", *, knows: str = "pencil") -> tuple[ScramClient, Server, bytes]:
    """A client, its server, and the server's right challenge."""
    client, server = ScramClient(mechanism, "user", knows, NONCE), Server(mechanism, "user", "pencil")
    return client, server, server.challenge(client.first())


def test_the_example_of_rfc_7677() -> None:
    client = ScramClient("SCRAM-SHA-256", "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    nonce = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    answer = client.answer(nonce + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    assert answer == b"c=biws," + nonce + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert client.answer(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") is None
    assert client.state is State.DONE


@settings(max_examples=50)
@given(servers, nonces)
def test_whoever_knows_the_password_is_let_in(server: Server, nonce: str) -> None:
    client = ScramClient(server.mechanism, server.username, server.password, nonce)
    answer = client.answer(server.challenge(client.first()))
    assert answer is not None
    assert client.answer(server.final(answer)) is None
    assert client.state is State.DONE


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_refused(mechanism: str) -> None:
    client, server, challenge = challenged(mechanism, knows="crayon")
    answer = client.answer(challenge)
    assert answer is not None
    with pytest.raises(AuthenticationFailed, match="the server refused us: invalid-proof") as failure:
        client.answer(server.final(answer))
    assert "crayon" not in str(failure.value)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_server_that_does_not_know_the_password_is_not_believed(mechanism: str) -> None:
    client, server, challenge = challenged(mechanism)
    answer = client.answer(challenge)
    assert answer is not None
    forger = replace(server, password="crayon")
    forger.first, forger.challenged = server.first, server.challenged
    salted = hashlib.pbkdf2_hmac(HASHES[mechanism], b"crayon", server.salt, server.iterations)
    message = f"{server.first},{server.challenged},{answer.decode().split(',p=')[0]}"
    forged = base64.b64encode(forger.digest(forger.digest(salted, "Server Key"), message))
    with pytest.raises(AuthenticationFailed, match="signature is wrong"):
        client.answer(b"v=" + forged)
    with pytest.raises(AuthenticationFailed, match="after the end"):
        client.answer(server.final(answer))
    assert client.state is State.FAILED


@given(st.data())
def test_no_single_bit_of_the_signature_can_change_unnoticed(data: st.DataObject) -> None:
    client, server, challenge = challenged()
    answer = client.answer(challenge)
    assert answer is not None
    signature = bytearray(base64.b64decode(server.final(answer)[2:]))
    signature[data.draw(st.integers(0, len(signature) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(AuthenticationFailed, match="signature is wrong"):
        client.answer(b"v=" + base64.b64encode(signature))


@pytest.mark.parametrize("nonce", ["other", NONCE, NONCE[:-1] + "x", NONCE[1:] + "xy"])
def test_a_nonce_that_does_not_extend_ours_is_refused(nonce: str) -> None:
    client, _, _ = challenged()
    with pytest.raises(AuthenticationFailed, match="the server's nonce does not extend ours"):
        client.answer(f"r={nonce},s=c2FsdA==,i=4096".encode())


@pytest.mark.parametrize("iterations", [1, 4095, 1_000_001, 10**17])
def test_too_few_and_too_many_iterations_are_refused(iterations: int) -> None:
    client, _, _ = challenged()
    with pytest.raises(AuthenticationFailed, match=f"asks for {iterations:,} iterations; allowed are 4,096 to"):
        client.answer(f"r={NONCE}x,s=c2FsdA==,i={iterations}".encode())


@pytest.mark.parametrize(
    ("challenge", "problem"),
    [
        (b"", "not one of SCRAM"),
        (b"\xff\0", "not one of SCRAM"),
        (f"r={NONCE}x,s=c2FsdA==,i={'9' * 5000}".encode(), "not one of SCRAM"),
        (f"r={NONCE}x,s=,i=4096".encode(), "not one of SCRAM"),
        (f"r={NONCE}x,s=c2F=sdA=,i=4096".encode(), "the server's salt is not base64"),
        (f"m=must,r={NONCE}x,s=c2FsdA==,i=4096".encode(), "not one of SCRAM"),
        (b"e=unknown-user", "the server refused us: unknown-user"),
        (b"e=two\nlines", "not one of SCRAM"),
    ],
)
def test_a_challenge_that_makes_no_sense_is_refused_in_one_line(challenge: bytes, problem: str) -> None:
    client, _, _ = challenged()
    with pytest.raises(AuthenticationFailed, match=f"^authentication failed: .*{problem}$"):
        client.answer(challenge)
    assert client.state is State.FAILED


@given(st.binary(), st.booleans())
def test_no_garbage_does_more_than_fail(garbage: bytes, late: bool) -> None:
    client, _, challenge = challenged()
    if late:
        client.answer(challenge)
    with pytest.raises(AuthenticationFailed):
        client.answer(garbage)


def test_an_exchange_is_held_in_its_order() -> None:
    client = ScramClient("SCRAM-SHA-512", "user", "pencil", NONCE)
    with pytest.raises(RuntimeError, match="the client speaks first"):
        client.answer(b"")
    client, _, _ = challenged()
    with pytest.raises(RuntimeError, match="begun once"):
        client.first()


@pytest.mark.parametrize("nonce", ["", "a,b", "a b", "\u00fc"])
def test_a_nonce_that_cannot_be_sent_is_refused(nonce: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII without a comma"):
        ScramClient("SCRAM-SHA-256", "user", "pencil", nonce)
