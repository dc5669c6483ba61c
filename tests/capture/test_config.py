"""A configuration is checked whole before anything starts, and no error shows a secret or where a key lies."""

from pathlib import Path

import pytest

from strandline import config
from strandline.capture.config import CaptureConfig, RedactionSection, files_of, parse_target, settings_of
from strandline.capture.proxy import is_sampled
from strandline.capture.recorder import Reliable
from strandline.capture.redaction import Action
from strandline.config import Secret
from strandline.errors import ConfigError, OptionError
from strandline.stack.certificates import Authority

WHOLE = """
listen: "[::1]:8080"
to: https://service.example
topic: traffic
partitions: 12
node_id: edge-1
reliable: all
release_after_s: 2.5
sample: 0.1
buffer_bytes: 10000000
idle_after_s: 60
redaction:
  key: a-key-of-enough-letters
  headers: {Authorization: hash, Cookie: remove}
  query: {token: hash}
  json: {password: remove, user.card.number: hash, "*.secret": hash}
  max_body_bytes: 1000
  pass_types: [text/html]
"""


def read(path: Path, text: str) -> CaptureConfig:
    path.write_text(text)
    return config.load(path, CaptureConfig)


def test_a_file_with_everything_in_it(tmp_path: Path) -> None:
    settings = settings_of(read(tmp_path / "c.yaml", WHOLE), {})
    assert settings.listen == ("::1", 8080)
    assert settings.upstream == ("service.example", 443)
    assert settings.upstream_tls is not None
    assert settings.reliable is Reliable.ALL
    assert settings.redaction is not None
    assert settings.redaction.json["user.card.number"] is Action.HASH
    assert settings.redaction.pass_types == {"text/html"}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("lissten: x", r"c.yaml:1: key 'lissten' is unknown; did you mean 'listen'\?"),
        ("sample: 2", "c.yaml:1: 'sample'"),
        ("reliable: maybe", "c.yaml:1: 'reliable'"),
        ("redaction: {headers: {a: shred}}", "c.yaml:1: 'redaction.headers.a'"),
        ("release_after_s: 0", "c.yaml:1: 'release_after_s'"),
    ],
)
def test_a_fault_is_named_with_its_place(tmp_path: Path, line: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        read(tmp_path / "c.yaml", line)


@pytest.mark.parametrize(
    ("section", "told"),
    [
        (RedactionSection(), "names nothing"),
        (RedactionSection(headers={"a": "hash"}), "needs a key"),
        (RedactionSection(headers={"a": "hash"}, key=Secret("short")), "needs a key of 16"),
        (RedactionSection(headers={"a": "hash"}, json={"a": "remove"}), "needs a key"),
        (RedactionSection(headers={"Content-Length": "remove"}), "where a message ends"),
        (RedactionSection(headers={"a b": "remove"}), "not the name of a header"),
        (RedactionSection(json={"a..b": "remove"}), "names with dots"),
    ],
)
def test_a_redaction_that_could_not_be_kept_is_refused(section: RedactionSection, told: str) -> None:
    with pytest.raises(OptionError, match=told) as caught:
        settings_of(CaptureConfig(listen="h:1", to="http://h", redaction=section), {})
    assert "short" not in str(caught.value)


@pytest.mark.parametrize(
    ("listen", "to", "told"),
    [
        (None, "http://h", "--listen"),
        ("h:1", None, "--to"),
        ("8080", "http://h", "HOST:PORT"),
        ("h:99999", "http://h", "HOST:PORT"),
        ("h:1", "ftp://h", "--to takes"),
        ("h:1", "http://h/path", "--to takes"),
        ("h:1", "http://user:pass@h", "--to takes"),
        ("h:1", "http://h:99999", "--to takes"),
        ("h:1", "http://h:0", "--to takes"),
        ("h:1", "http://h:1", "where the capture itself listens"),
        ("127.0.0.1:8080", "http://localhost:8080", "where the capture itself listens"),
        ("0.0.0.0:80", "http://127.0.0.1", "where the capture itself listens"),
        ("[::]:443", "https://[::1]", "where the capture itself listens"),
    ],
)
def test_addresses_that_do_not_fit_are_refused(listen: str | None, to: str | None, told: str) -> None:
    with pytest.raises(OptionError, match=told) as caught:
        settings_of(CaptureConfig(listen=listen, to=to), {})
    assert "pass@" not in str(caught.value)


@pytest.mark.parametrize("topic", ["", "a b", "a" * 250])
def test_a_topic_that_cannot_be_is_refused(topic: str) -> None:
    with pytest.raises(OptionError, match="is not the name of a topic"):
        settings_of(CaptureConfig(listen="h:1", to="http://h", topic=topic), {})


def test_an_upstream_has_the_usual_port_unless_told() -> None:
    assert parse_target("http://h") == (False, ("h", 80))
    assert parse_target("https://[::1]:9443/") == (True, ("::1", 9443))


def test_files_are_beside_the_configuration_and_the_one_that_is_wrong_is_named(tmp_path: Path) -> None:
    certificate, key = Authority("a").issue("b", ["c"], password="p")
    (tmp_path / "cert.pem").write_text(certificate)
    (tmp_path / "private.pem").write_text(key)
    text = "listen: h:1\nto: http://h\ntls: {certificate: cert.pem, key: private.pem}"
    with pytest.raises(OptionError, match=r"^tls\.key: .*/private\.pem cannot be used: it is protected by a password$"):
        settings_of(files_of(read(tmp_path / "c.yaml", text), tmp_path), {})
    text = "listen: h:1\nto: https://h\nupstream_tls: {ca: ca.pem}"
    with pytest.raises(OptionError, match=r"^upstream_tls\.ca: .*/ca\.pem cannot be used: No such file or directory$"):
        settings_of(files_of(read(tmp_path / "c.yaml", text), tmp_path), {})


def test_a_sample_depends_on_the_id_alone_and_grows_with_the_rate() -> None:
    ids = [f"n-{number}" for number in range(2000)]
    tenth = {name for name in ids if is_sampled(name, 0.1)}
    half = {name for name in ids if is_sampled(name, 0.5)}
    assert 100 < len(tenth) < 300
    assert tenth < half
    assert all(is_sampled(name, 1.0) for name in ids)
    assert not any(is_sampled(name, 0.0) for name in ids)
