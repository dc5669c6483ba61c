"""The certificate and the key of a server: which of them cannot be used, and why; and a server that speaks no TLS."""

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.errors import OptionError
from strandline.stack.certificates import Authority
from strandline.tls import is_answered_without, serving

CASES: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "no certificate": (lambda c, k: c.unlink(), "tls.certificate: {c} cannot be read: No such file or directory"),
    "no key": (lambda c, k: k.unlink(), "tls.key: {k} cannot be read: No such file or directory"),
    "a directory": (lambda _, k: make_directory(k), "tls.key: {k} cannot be read: Is a directory"),
    "text": (lambda c, k: c.write_text("hunter2"), "tls.certificate: {c} holds no PEM certificate"),
    "nothing": (lambda c, k: c.write_text(""), "tls.certificate: {c} holds no PEM certificate"),
    "no PEM key": (lambda c, k: k.write_text("hunter2"), "tls.key: {k} holds no PEM key"),
    "the other way": (lambda c, k: k.write_text(c.read_text()), "tls.key: {k} holds no PEM key"),
    "another's": (lambda c, k: k.write_text(issued()[1]), "tls.key: {k} is not the key of {c}"),
    "protected": (
        lambda c, k: [file.write_text(text) for file, text in zip((c, k), issued("hunter2"), strict=True)],
        "tls.key: {k} cannot be used: it is protected by a password",
    ),
}


def make_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def issued(password: str | None = None) -> tuple[str, str]:
    return Authority("a").issue("b", ["c"], password=password)


@pytest.mark.parametrize("case", CASES)
def test_the_file_that_cannot_be_used_is_named_and_nothing_of_what_it_holds(case: str, tmp_path: Path) -> None:
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    for file, text in zip((certificate, key), issued(), strict=True):
        file.write_text(text)
    serving(certificate, key, "tls")
    spoil, told = CASES[case]
    spoil(certificate, key)
    with pytest.raises(OptionError) as error:
        serving(certificate, key, "tls")
    assert str(error.value) == told.format(c=certificate, k=key)


@pytest.mark.parametrize(
    ("answer", "is_without"),
    [(b"HTTP/1.1 400 Bad Request\r\n\r\n", True), (b"\x15\x03\x03\x00\x02\x02\x28", False), (b"", False)],
    ids=["http", "alert", "end"],
)
def test_an_answer_that_is_no_tls_is_told_from_a_refusal_and_from_an_end(answer: bytes, is_without: bool) -> None:
    coming, going = ssl.MemoryBIO(), ssl.MemoryBIO()
    coming.write(answer)
    if not answer:
        coming.write_eof()
    with pytest.raises(ssl.SSLError) as refusal:
        ssl.create_default_context().wrap_bio(coming, going, server_hostname="server").do_handshake()
    assert is_answered_without(refusal.value) is is_without
