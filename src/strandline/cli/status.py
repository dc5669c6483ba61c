"""`strandline replay status`: how far a running replay is, asked of its own page."""

import http.client
import urllib.error
import urllib.request
from typing import Annotated, Literal

import msgspec
from cyclopts import Parameter
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from strandline.cli.escaping import escaped
from strandline.errors import OptionError, StrandlineError
from strandline.json_decode import MalformedJson, decode
from strandline.replay.status import PartitionStatus, Status, Unfinished
from strandline.replay.watch import STATUS

ANSWER_WITHIN = 10.0
MAX_PAGE = 16 << 20
WIDE = 10_000
NUMBERS = ("frontier", "end", "lag", "in flight", "oldest record", "age")
COLUMNS = ("partition", *NUMBERS[:5], "transaction", "connection", "age", "waits for")
RUNNING = {"runs", "has not begun"}
WAITING = (
    "the replay waits for its group: a member that was killed keeps its partitions until its session has run out "
    "(session.timeout.ms, 45 s unless set)"
)


def status(
    *,
    at: str = "http://127.0.0.1:9464",
    output: Annotated[Literal["table", "json"], Parameter(name="--format")] = "table",
) -> None:
    """Show how far a running replay is: per partition what holds its commit, for how long, and what that waits for.

    Parameters
    ----------
    at
        Where the replay shows itself (its --observe).
    output
        A table for people, or one line of JSON for programs.
    """
    page = _fetch(at)
    try:
        found = decode(page, msgspec.json.Decoder(Status))
    except MalformedJson:
        raise StrandlineError(f"what answers at {at} is no replay") from None
    if output == "json":
        print(page.decode())
        return
    print(head_line(found))
    if found.partitions:
        show(found.partitions)
    else:
        print(f"no partition is assigned; {WAITING}")


def head_line(found: Status) -> str:
    """The replay as a whole."""
    rate = "" if found.per_second is None else f" ({found.per_second:,.0f} a second)"
    parts = [f"{found.sent:,} of {found.requests:,} sent{rate}", f"{found.on_their_way:,} on their way"]
    if found.source_time is not None:
        parts.append(f"at {found.source_time:%Y-%m-%dT%H:%M:%SZ}")
    if found.sent:
        parts.append(f"late by {found.late_p50_ms:.1f} ms, p99 {found.late_p99_ms:.1f} ms")
    unsafe = "result" if found.unsafe == 1 else "results"
    counts = {"failed": found.failed, f"{unsafe} not safe yet": found.unsafe}
    parts += [f"{count:,} {name}" for name, count in counts.items() if count]
    return "   ".join([*parts, f"the clock {found.clock}" if found.clock in RUNNING else f"paused: {found.clock}"])


def show(partitions: list[PartitionStatus]) -> None:
    """A table; in a pipe without lines, and as wide as it needs to be."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDE)
    table = Table(box=box.ROUNDED if console.is_terminal else None, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="right" if name in NUMBERS else "left")
    for found in partitions:
        oldest = found.oldest
        cells = [f"{found.topic}/{found.partition}", *map(_number, (found.frontier, found.end, found.lag))]
        cells.append(f"{found.in_flight:,}")
        cells += ["-"] * 5 if oldest is None else _oldest(oldest)
        table.add_row(*(Text(escaped(cell)) for cell in cells))
    console.print(table)


def _oldest(oldest: Unfinished) -> list[str]:
    due = "" if oldest.due_in_s is None else f", in {_seconds(max(0.0, oldest.due_in_s))}"
    name = (oldest.id or "-", oldest.connection or "-")
    return [f"{oldest.offset:,}", *name, _seconds(oldest.age_s), oldest.waits_for + due]


def _number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 600 else f"{seconds / 60:.0f} min"


def _fetch(at: str) -> bytes:
    url = at.rstrip("/") if "://" in at else f"http://{at.rstrip('/')}"
    if not url.startswith(("http://", "https://")):
        raise OptionError(f"--at takes an address such as http://127.0.0.1:9464, not '{at}'")
    try:
        # Not by a proxy of the environment: most often it is this machine that is asked.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url + STATUS, timeout=ANSWER_WITHIN) as answer:
            page: bytes = answer.read(MAX_PAGE)
            return page
    except urllib.error.HTTPError as error:
        raise StrandlineError(f"what answers at {at} is no replay: it has no page {STATUS} ({error.code})") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        problem = getattr(reason, "strerror", None) or str(reason) or type(error).__name__
        raise StrandlineError(f"no replay answers at {at}: {problem}; say where with --at") from None
