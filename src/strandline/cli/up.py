"""`strandline up`: real servers for development, until Ctrl-C."""

import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Annotated, Literal

from cyclopts import Parameter, Token
from prometheus_client import CollectorRegistry, Gauge
from rich.console import Console
from rich.table import Table

from strandline.cli.settings import ADDRESS_VARIABLE
from strandline.cli.signals import on_stop_request
from strandline.errors import OptionError, StrandlineError
from strandline.observe import Observed
from strandline.stack import SERVERS, Stack
from strandline.stack.ports import LOOPBACK

WATCH_INTERVAL = 0.25


def _directory(_type: object, tokens: Sequence[Token]) -> Path:
    name = tokens[0].value
    if not name:  # which a Path would take for the current directory
        raise OptionError("--data takes a directory, and its name is empty")
    return Path(name)


def up(
    *,
    only: str = ",".join(SERVERS),
    kafka_clusters: int = 1,
    kafka_brokers: int = 1,
    data: Annotated[Path | None, Parameter(converter=_directory)] = None,
    observe: Annotated[int | None, Parameter(name="--observe-port")] = None,
    output: Annotated[Literal["table", "json"], Parameter(name="--format")] = "table",
) -> None:
    """Start real servers, say where they are once all of them answer, and stop them on Ctrl-C.

    Parameters
    ----------
    only
        Which servers, with commas between: kafka, postgres, kinesis.
    kafka_clusters
        How many independent Kafka clusters, at most 16.
    kafka_brokers
        How many brokers each cluster has, at most 16.
    data
        Keep Kafka's and Postgres' data in this directory; the next `up` with it serves the same records.
    observe
        Serve /metrics, /healthz and /readyz on this loopback port (0: any free one).
    output
        A table for people, or one line of JSON for programs.
    """
    if observe is not None and not 0 <= observe <= 65535:
        raise OptionError(f"--observe-port takes 0 to 65535, not {observe}")
    stack = Stack(
        [name.strip() for name in only.split(",") if name.strip()],
        kafka_clusters=kafka_clusters,
        kafka_brokers=kafka_brokers,
        data=data,
    )
    if observe is None:
        _run(stack, output)
        return
    registry = CollectorRegistry()
    ready = Gauge("strandline_stack_ready", "1 while every server of the stack runs", registry=registry)
    ready.set_function(lambda: float(not _not_ready(stack)))
    try:
        pages = Observed(LOOPBACK, observe, registry, lambda: _not_ready(stack))
    except StrandlineError as error:
        raise StrandlineError(f"--observe-port: {error}; 0 takes any free port") from error
    with pages:
        print(f"strandline: {pages.address}/readyz tells when all servers are ready", file=sys.stderr)
        _run(stack, output)


def _run(stack: Stack, output: str) -> None:
    stop = Event()

    def ask_to_stop() -> None:
        stop.set()
        stack.cancelled.set()

    with on_stop_request(ask_to_stop), stack:
        _show(stack, output)
        while not stop.wait(WATCH_INTERVAL):
            failure = stack.failure()
            if failure is not None:
                raise failure


def _not_ready(stack: Stack) -> list[str]:
    if not stack.ready:
        return ["the servers are starting"]
    failure = stack.failure()
    return [] if failure is None else [str(failure)]


def _show(stack: Stack, output: str) -> None:
    if output == "json":
        print(json.dumps({server.name: server.settings() for server in stack.servers}), flush=True)
        return
    table = Table()
    table.add_column("server")
    table.add_column("address")
    for server in stack.servers:
        table.add_row(server.name, server.address)
    console = Console()
    console.print(table)
    # Plain lines of any length, to be pasted as they are.
    for server in stack.servers:
        console.print(f"# {server.name}", style="dim", highlight=False)
        for line in _lines(server.settings(), is_first=server in stack.kafka[:1]):
            print(line)
    print("\nReady. Ctrl-C stops everything.", flush=True)


def _lines(settings: Mapping[str, str], *, is_first: bool) -> Iterator[str]:
    """What a shell or a program is to be given; the commands of strandline find the first cluster by themselves."""
    for key, value in settings.items():
        yield f"export {key}={shlex.quote(value)}" if key.isupper() else f"{key}={value}"
    if is_first:
        yield f"export {ADDRESS_VARIABLE}={shlex.quote(settings['bootstrap.servers'])}"
