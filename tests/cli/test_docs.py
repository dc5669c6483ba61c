"""README.md and docs/ say what the code does: commands, options, files and examples in Python are taken as written."""

import ast
import importlib
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cyclopts import MissingArgumentError

from strandline.capture.config import CaptureConfig
from strandline.cdc.config import CdcConfig
from strandline.cdc.rows import SCHEMA
from strandline.cli.commands import app
from strandline.config import Section, load
from strandline.gateway.config import GatewayConfig
from strandline.gateway.limits import Limits
from strandline.kafka.starts import Ago, Latest
from strandline.proxy import config as proxy_config
from strandline.proxy.config import ProxyConfig
from strandline.replay.changes import TransformConfig
from strandline.report.rules import RulesFile
from strandline.spark import kinesis_options, ordered_options, traffic_options, wal_options
from strandline.stack import KafkaCluster
from strandline.wire import table
from tests.ordered.support import create_topic, produce
from tests.support import run_warm

ROOT = Path(__file__).parents[2]
PAGES = {page.name: page.read_text() for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^ *(?:\$ )?(?:\.venv/bin/)?strandline (?=[a-z])(.*)", re.MULTILINE)
FILES: dict[str, type[Section]] = {
    "gateway": GatewayConfig,
    "proxy": ProxyConfig,
    "cdc": CdcConfig,
    "replay": TransformConfig,
    "report": RulesFile,
    "capture": CaptureConfig,
}


def blocks(kind: str) -> Iterator[tuple[str, str]]:
    """Each fenced block of a kind, and its page."""
    for name, text in PAGES.items():
        for indent, of, block in FENCE.findall(text):
            if of == kind:
                yield name, re.sub(f"^{indent}", "", block, flags=re.MULTILINE)


def commands() -> Iterator[str]:
    """Those of the examples, and those that a sentence names."""
    for kind in ("", "console"):
        for _, block in blocks(kind):
            yield from COMMAND.findall(block.replace("\\\n", " "))
    for text in PAGES.values():
        yield from re.findall(r"`strandline ([a-z][^`]*)`", text)


@pytest.mark.parametrize("line", sorted(set(commands())))
def test_a_command_of_the_docs_is_taken_as_it_is_written(line: str) -> None:
    words = [word for word in shlex.split(line.partition(" | ")[0], comments=True) if word != "..."]
    known = options_of(words)
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known | {"--help"}
    # A sentence names a command, or an option, and leaves the rest to the reader.
    with suppress(MissingArgumentError):
        app.parse_args(words, exit_on_error=False, print_error=False)


def options_of(words: list[str]) -> set[str]:
    """The options of the command that such words begin with."""
    found = app
    for word in words:
        if word not in found:
            break
        found = found[word]
    if found.default_command is None:
        return set()
    return {name for argument in found.assemble_argument_collection() for name in argument.names}


TABLES = [
    ("README.md", "## Real servers for development", ["up"]),
    ("README.md", "## What is in a topic", ["tail"]),
    ("README.md", "### capture", ["capture"]),
    ("README.md", "### replay", ["replay"]),
    ("README.md", "#### Import", ["import"]),
    ("fleet.md", "# A replay by a fleet", ["replay"]),
]


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the tables behind a heading, up to the next one."""
    _, _, behind = FENCE.sub("", PAGES[page]).partition(heading)
    behind = re.split(r"^#+ ", behind, flags=re.MULTILINE)[0]
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in behind.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in cells]


@pytest.mark.parametrize(("page", "heading", "command"), TABLES)
def test_an_option_of_a_table_is_one_of_its_command(page: str, heading: str, command: list[str]) -> None:
    told = {option for row in rows(page, heading) for option in re.findall(r"--[a-z][a-z-]*", row[0])}
    assert told
    assert told <= options_of(command)


def names(text: str) -> set[str]:
    return set(re.findall(r"`([a-zA-Z]+)`", text))


def test_the_options_of_sources_and_sinks_are_those_that_are_told() -> None:
    told = {name for row in rows("README.md", "### ordered") for name in names(row[0])}
    assert set(ordered_options.OPTIONS.values()) <= told
    told = {name for row in rows("traffic.md", "## Options") for name in names(row[0])}
    assert told == set(traffic_options.STREAM.values())
    source, sink = re.findall(r"Options of the (?:source|sink): (.*?)\. (?=Options|An)", PAGES["cdc.md"], re.DOTALL)
    assert names(source) == set(wal_options.OPTIONS.values())
    assert names(sink) == set(kinesis_options.OPTIONS.values())


def test_the_columns_of_traffic_and_of_changes_are_those_that_are_told() -> None:
    told = [name for row in rows("traffic.md", "## Columns") for name in re.findall(r"`([a-z_0-9]+)`", row[0])]
    both = {field.name for part in ("request", "response") for field in table.SCHEMA.field(part).type}
    assert set(told) == {*table.SCHEMA.names, *both} - {"method", "path", "query"}
    (found,) = re.findall(r"^Rows have (.*?) \(the JSON\)", PAGES["cdc.md"], re.MULTILINE | re.DOTALL)
    assert re.findall(r"`([a-z_]+)`", found) == SCHEMA.names


def given(text: str) -> dict[str, str]:
    return dict(pair.split("=") for pair in text.split())


def test_an_option_of_an_ordered_source_reaches_what_it_is_for() -> None:
    found = ordered_options.SourceOptions.parse(
        given(
            "kafka.bootstrap.servers=k:1 kafka.sasl.username=u topics=a,b start=latest end=-1h slices=3 maxAhead=7m "
            "maxRowsPerEpoch=4 maxBytesPerEpoch=5 maxSpanPerEpoch=6s isolation=read_uncommitted bufferBytes=80000000 "
            "onMissing=earliest onCorrupt=skip"
        )
    )
    assert (found.topics, found.slices, found.buffer_bytes) == (("a", "b"), 3, 80_000_000)
    assert found.settings == {"bootstrap.servers": "k:1", "sasl.username": "u"}
    assert (found.start, found.end) == (Latest(), Ago(timedelta(hours=1)))
    assert (found.limits.rows, found.limits.bytes, found.limits.span) == (4, 5, timedelta(seconds=6))
    assert (found.rules.skip_missing, found.rules.skip_corrupt, found.max_ahead) == (True, True, timedelta(minutes=7))
    usual = ordered_options.SourceOptions.parse(given("kafka.bootstrap.servers=k:1 topics=a"))
    assert (usual.rules.skip_missing, usual.rules.skip_corrupt) == (False, False)
    assert (
        usual.rules
        != ordered_options.SourceOptions.parse(
            given("kafka.bootstrap.servers=k:1 topics=a isolation=read_uncommitted")
        ).rules
    )


def test_an_option_of_traffic_of_changes_and_of_a_stream_reaches_what_it_is_for() -> None:
    traffic = traffic_options.TrafficOptions.parse(given("kafka.bootstrap.servers=k:1 bodyBytes=10 heldBytes=20"))
    assert (traffic.bounds.body, traffic.bounds.requests + traffic.bounds.answers) == (10, 20)
    wal = wal_options.WalOptions.parse(
        given(
            "dsn=d slot=s publications=p inProgress=false spillDirectory=/large maxSpillBytes=9 frozenAfter=8s "
            "leadership=7 idleEvery=6s maxBytesPerEpoch=5"
        )
    )
    assert (wal.in_progress, wal.spill_directory, wal.max_spill_bytes) == (False, Path("/large"), 9)
    assert (wal.frozen_after, wal.leadership, wal.max_bytes) == (timedelta(seconds=8), 7, 5)
    assert wal.idle_every == timedelta(seconds=6)
    sink = kinesis_options.SinkOptions.parse(given("stream=s maxRequestBytes=9000000 timeout=8s shards=7"))
    assert (sink.sending.max_request_bytes, sink.sending.shards) == (9_000_000, 7)
    assert sink.sending.timeout == timedelta(seconds=8)


@pytest.mark.parametrize(("page", "text"), [*blocks("yaml")])
def test_a_file_of_the_docs_is_taken_as_it_is_written(
    page: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_module.py").write_text("def my_function(request):\n    return request\n")
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "example.yaml"
    file.write_text(text)
    name = re.match(r"# (\w+)\.yaml", text)
    kind = FILES[name[1] if name else page.removesuffix(".md")]
    assert isinstance(load(file, kind), kind)


def test_every_key_that_is_commented_out_in_the_file_of_the_proxy_is_one_of_its_keys() -> None:
    ((_, text),) = [found for found in blocks("yaml") if found[0] == "proxy.md"]
    sections = [each for each in vars(proxy_config).values() if isinstance(each, type) and issubclass(each, Section)]
    known = {field for section in sections for field in section.__struct_fields__}
    told = set(re.findall(r"(?:^ *# |[;,] )([a-z_]+)[:=] ?[\[{\d\w]", text, re.MULTILINE))
    assert {"topic_names", "allow", "filters", "workers", "idle_s", "timeouts"} <= told
    assert told - known <= {"certificate", "key"}


def test_the_file_that_the_readme_shows_of_a_capture_is_taken(tmp_path: Path) -> None:
    shown = re.search(r"^\$ cat capture.yaml\n(.*?)^\$", PAGES["README.md"], re.MULTILINE | re.DOTALL)
    assert shown is not None
    (tmp_path / "capture.yaml").write_text(shown[1])
    assert load(tmp_path / "capture.yaml", CaptureConfig).redaction is not None


def defaults(type_: type[msgspec.Struct]) -> Mapping[str, Any]:
    return {field.name: field.default for field in msgspec.structs.fields(type_)}


def test_every_key_of_a_capture_is_told_and_each_number_is_its_default() -> None:
    found, told = defaults(CaptureConfig), set[str]()
    for keys, values, _ in rows("capture.md", "## The configuration file")[2:]:
        some = [key.partition(".")[0] for key in re.findall(r"`([a-z_.]+)`", keys)]
        told |= set(some)
        if re.fullmatch(r"[\d.]+(, [\d.]+)*", values):
            assert [f"{float(value):g}" for value in values.split(", ")] == [f"{found[key]:g}" for key in some], keys
    assert told == set(found)


def test_every_limit_of_the_gateway_is_told() -> None:
    told = {name for row in rows("gateway.md", "## Running it") for name in re.findall(r"`([a-z_]+)`", row[0])}
    assert set(defaults(Limits)) <= told


@pytest.mark.parametrize(("page", "text"), [*blocks("python")])
def test_an_example_in_python_is_well_formed_and_what_it_imports_is_there(page: str, text: str) -> None:
    for node in ast.walk(compile(text, page, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("strandline"):
            module = importlib.import_module(node.module or "")
            assert all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)


def test_every_target_of_make_that_is_told_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    there = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    pages = [*PAGES.values(), (ROOT / "CONTRIBUTING.md").read_text()]
    assert {name for page in pages for name in re.findall(r"`make ([a-z]+(?:-[a-z]+)*)", page)} <= there


def example(start: str) -> tuple[str, str]:
    """A block of the README that begins so, and the first one behind it."""
    found = [block for _, _, block in FENCE.findall(PAGES["README.md"])]
    at = next(number for number, block in enumerate(found) if block.startswith(start))
    return found[at], found[at + 1]


def run(code: str) -> None:
    exec(code, {"__name__": "example"})  # noqa: S102  (our own examples)


def test_the_topic_of_the_readme_is_made_and_tailed_as_it_is_shown(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRANDLINE_KAFKA", kafka.address)
    # Others have a topic of that name.
    code, told = (
        example(start)[0].replace("tide", "readme-tide")
        for start in (
            "import json, os\nfrom confluent_kafka import Producer",
            "$ .venv/bin/strandline tail tide --where",
        )
    )
    run(code)
    command, *shown = told.splitlines()
    done = run_warm(*command.removeprefix("$ .venv/bin/strandline ").removesuffix(" | cat").split())
    assert done.stdout.splitlines() == shown[:-1]
    assert done.stderr.splitlines()[-1].partition(" in ")[0] == shown[-1].partition(" in ")[0]
    assert done.returncode == 0


def test_rows_of_the_topics_of_the_readme_come_as_it_is_shown(
    kafka: KafkaCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    code, shown = example("from strandline.ordered import")
    begin = 1_767_225_600_000
    create_topic(kafka.address, "events", 3)
    create_topic(kafka.address, "metrics", 1)
    produce(kafka.address, "metrics", [(0, begin, b'{"load": 0}')])
    rows = [(partition, begin + 250 * n, b'{"id": %d}' % n) for n, partition in enumerate((0, 2, 0, 1, 0))]
    produce(kafka.address, "events", rows)
    run(code.replace("127.0.0.1:9092", kafka.address))
    table, _, partitions = capsys.readouterr().out.partition("     topic")
    assert table == shown.partition("...")[0]
    assert partitions.splitlines()[0] == "  partition  start  end  position state"
    assert [line.split()[1:] for line in partitions.splitlines()[1:]] == [
        ["events", "0", "0", "3", "3", "live"],
        ["events", "1", "0", "1", "1", "live"],
        ["events", "2", "0", "1", "1", "live"],
        ["metrics", "0", "0", "1", "1", "live"],
    ]
