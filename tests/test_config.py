"""A configuration is read whole, or its first fault is named with its place in the file."""

from pathlib import Path

import pytest

from strandline.config import MAX_BYTES, Secret, Section, load
from strandline.errors import ConfigError


class Listen(Section, frozen=True, kw_only=True):
    host: str = "127.0.0.1"
    port: int


class Route(Section, frozen=True, kw_only=True):
    match: str
    cluster: str


class Server(Section, frozen=True, kw_only=True):
    listen: Listen
    routes: list[Route] = []
    limits: dict[str, int] = {}
    password: Secret | None = None
    clusters: dict[str, Listen] = {}


QUOTE_IT = "or put it in quotes if it is text"
NONE = "and cannot be read as one; put it in quotes if it is text"
NOT_FINITE = "is no finite number; put it in quotes if it is text"
GOOD = """\
listen: {port: 9092}
routes:
  - {match: "eu.*", cluster: west}
  - match: "*"
    cluster: east
limits: {clients: 10}
clusters:
  east:
    port: 1
password: hunter2
"""


def test_a_good_file_is_read_into_its_type(tmp_path: Path) -> None:
    (tmp_path / "server.yaml").write_text(GOOD)
    server = load(tmp_path / "server.yaml", Server)
    assert (server.listen.host, server.listen.port) == ("127.0.0.1", 9092)
    assert [route.cluster for route in server.routes] == ["west", "east"]
    assert server.limits == {"clients": 10}
    assert server.password is not None
    assert server.password.reveal() == "hunter2"


def test_a_secret_does_not_show_itself(tmp_path: Path) -> None:
    (tmp_path / "server.yaml").write_text(GOOD)
    assert "hunter2" not in repr(load(tmp_path / "server.yaml", Server)) + f"{Secret('hunter2')}"


@pytest.mark.parametrize("to", ["*hunter2", "!hunter2", "!hunter2 x", "!hunter2!x", "[hunter2", "@hunter2"])
def test_a_password_that_yaml_takes_for_something_else_is_not_repeated(to: str, tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(GOOD.replace("hunter2", to))
    with pytest.raises(ConfigError) as error:
        load(file, Server)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "to", "line", "problem"),
    [
        ("port: 9092", "prot: 9092", 1, "key 'listen.prot' is unknown; did you mean 'port'?"),
        ("{port: 9092}", "{}", 1, "key 'listen.port' is missing"),
        ("port: 9092", "port: http", 1, "'listen.port': expected `int`, got `str`"),
        ("    cluster: east", "    clutser: east", 5, "key 'routes.1.clutser' is unknown; did you mean 'cluster'?"),
        ("    cluster: east", "    cluster: 7", 5, "'routes.1.cluster': expected `str`, got `int`"),
        ("    port: 1", "    prot: 1", 9, "key 'clusters.east.prot' is unknown; did you mean 'port'?"),
        ("limits:", "limist:", 6, "key 'limist' is unknown; did you mean 'limits'?"),
        ("limits:", "zzz:", 6, "key 'zzz' is unknown; valid are clusters, limits, listen, password, routes"),
        ("{clients: 10}", "{clients: ten}", 6, "'limits.clients': expected `int`, got `str`"),
        ("limits:", "listen:", 6, "key 'listen' is given twice"),
        ("hunter2", "*anchor", 10, f"an alias (*) is not supported; write it out, {QUOTE_IT}"),
        ("password: hunter2", "password: {a", 11, "is not YAML: expected ',' or '}', but got '<stream end>'"),
        ("hunter2", "!secret hunter2", 10, f"a tag (!) is not supported; write the plain value, {QUOTE_IT}"),
        ("hunter2", "!!bool x", 10, f"a tag (!) is not supported; write the plain value, {QUOTE_IT}"),
        ("hunter2", "!hunter!2", 10, "is not YAML: found undefined tag handle"),
        ("hunter2", "[1]", 10, "'password': expected `str`, got `list`"),
        ("password:", "? [a]\n:", 10, "a key must be a plain word"),
        ("9092", "2020-99-99", 1, f"'listen.port': looks like a date {NONE}"),
        ("    cluster: east", "    cluster: 2020-01-01 25:00:00", 5, f"'routes.1.cluster': looks like a date {NONE}"),
        ("    port: 1", f"    port: {'9' * 5000}", 9, f"'clusters.east.port': looks like a whole number {NONE}"),
        ("hunter2", "0b_", 10, f"'password': looks like a whole number {NONE}"),
        ("hunter2", f"1{':00' * 200}.5", 10, f"'password': looks like a number {NONE}"),
        ("{clients: 10}", "{clients: .nan}", 6, f"'limits.clients': {NOT_FINITE}"),
        ("hunter2", "-.inf", 10, f"'password': {NOT_FINITE}"),
        ("hunter2", "=", 10, f"'password': looks like a sign of YAML {NONE}"),
        ("clients: 10", "2020-99-99: 10", 6, f"'limits.2020-99-99': looks like a date {NONE}"),
        ("limits: {clients: 10}", "<<: {limits: {clients: 10}}", 6, "merge '<<' is not supported; write it out"),
    ],
)
def test_a_fault_is_named_with_its_place(change: str, to: str, line: int, problem: str, tmp_path: Path) -> None:
    assert change in GOOD
    file = tmp_path / "server.yaml"
    file.write_text(GOOD.replace(change, to, 1))
    with pytest.raises(ConfigError) as error:
        load(file, Server)
    assert str(error.value) == f"{file}:{line}: {problem}"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (b"# nothing\n", "is empty"),
        (b"a: \x00", "is not YAML"),
        (b"\xff\xfe\xff", "is not YAML"),
        (b"[" * 100_000, "is nested deeper than 50 levels"),
        (b"- 1\n", "xpected `object`, got `array`"),
        (b"x" * (MAX_BYTES + 1), "is larger than 1,048,576 bytes"),
        (b"a: !!python/object/apply:os.system [ls]", "a tag .* is not supported"),
        (b"2026-99-99", "looks like a date and cannot be read as one"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused_in_one_line(content: bytes, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=problem) as error:
        load(file, Server)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(str(file))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file or directory"):
        load(tmp_path / "absent.yaml", Server)
