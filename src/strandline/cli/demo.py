"""`strandline demo`: a shop's traffic is captured, replayed on Spark against the shop's next version, and compared.

What it does is what a user would do: it runs the commands, and shows each of them.
"""

import asyncio
import os
import random
import re
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Annotated, TypeVar

from cyclopts import App, Parameter

from strandline.cli.signals import on_stop_request
from strandline.demo.customers import visit
from strandline.demo.serving import serving
from strandline.demo.shop import NONE, PLANTED, Changes, Shop
from strandline.errors import OptionError, StrandlineError
from strandline.stack import Stack
from strandline.stack.processes import OVERLOADED, leashed
from strandline.stalls import StallDetector, bytes_below, unless_stalled

TOPIC = "shop"
RESULTS, AGAIN = "shop-results", "shop-results-again"
PARTITIONS = 4
WORKERS = 2
SPEEDUP = 2
LONGEST_S = 600.0
SILENCE_S = 300.0
"""A command that makes no progress for so long is ended."""
END_WITHIN_S = 30.0
T = TypeVar("T")
ADDRESS = re.compile(r"capturing http://127\.0\.0\.1:(\d+) ")


app = App(name="demo")
app.command(
    "strandline.cli.demo_cdc:cdc",
    name="cdc",
    help="""Publish the changes of a bank's accounts, kill the instance that does, and show that nothing is lost.

    Starts a real Postgres and a Kinesis endpoint, and two instances of `strandline cdc run`. Accounts are opened,
    changed and closed, some of it rolled back; the instance that leads is killed, and the other takes over. Compares
    what arrived with what was done. Takes about a minute and a half.
    """,
)
app.command(
    "strandline.cli.demo_gateway:gateway",
    name="gateway",
    help="""Show prices that tick in a browser, with a button that cuts the network, and that nothing is missed.

    Starts a real Kafka broker, a producer of prices, the gateway, and a page on this machine whose address it prints.
    The page counts what it misses and what comes twice. Ctrl-C ends it.
    """,
)
app.command(
    "strandline.cli.demo_proxy:proxy",
    name="proxy",
    help="""Show two Kafka clusters that look like one, and that one of them can be killed without a loss.

    Starts two real clusters and the proxy in front of them. Orders are written to topics of both, a group of two reads
    both; one cluster is killed and comes back. Compares what was acknowledged with what was read. Takes about a minute.
    """,
)


@app.default
def demo(
    *,
    seconds: float = 20.0,
    changes: Annotated[bool, Parameter(negative="--no-changes")] = True,
    seed: int = 1,
    out: Path = Path("demo-report"),
) -> None:
    """Capture a shop's traffic, replay it at twice the speed against the next version, and find what has changed.

    Parameters
    ----------
    seconds
        For how long customers come.
    changes
        Whether the next version has its three changes: a search that is slower, a field with another name, orders that
        fail now and then. Without them the report has nothing to find.
    seed
        Another number, other customers.
    out
        Where the report goes.
    """
    if not 0 < seconds <= LONGEST_S:
        raise OptionError(f"--seconds takes more than 0, and {LONGEST_S:g} at most")
    stack = Stack(["kafka"])
    say("Starting a real Kafka broker ...")
    with on_stop_request(stack.cancelled.set), stack:
        asyncio.run(_until_stopped(stack, PLANTED if changes else NONE, seconds, seed, out))
    say(f"\nThe report: {(out / 'report.html').resolve()}")


async def _until_stopped(stack: Stack, changes: Changes, seconds: float, seed: int, out: Path) -> None:
    loop = asyncio.get_running_loop()
    work = asyncio.create_task(_show(stack.kafka[0].address, changes, seconds, seed, out))

    def stop() -> None:
        loop.call_soon_threadsafe(work.cancel)

    with on_stop_request(stop):
        if stack.cancelled.is_set():  # asked for before anybody listened here
            work.cancel()
        try:
            await work
        except asyncio.CancelledError:
            raise StrandlineError("the demo was stopped") from None


async def _show(kafka: str, changes: Changes, seconds: float, seed: int, out: Path) -> None:
    async with serving(Shop()) as shop, _capturing(shop, kafka) as front:
        say(f"Customers come for {seconds:g} seconds ...")
        made = await visit(front, seconds, random.Random(seed))  # noqa: S311  (any customers will do)
        say(f"They made {made:,} requests.")
    replay = ("replay", "--topic", TOPIC, "--kafka", kafka, "--until", "live")
    next_ = Shop(changes)
    async with serving(next_) as target:
        to = ("--target", f"http://127.0.0.1:{target}", "--group", "demo", "--results-topic", RESULTS)
        how = ("--speedup", str(SPEEDUP), "--workers", str(WORKERS))
        await run_step(*replay, *to, *how, progress=lambda: next_.requests)
    say("Once more against the same version, as fast as it can be: what differs between the two runs is noise.")
    again = Shop(changes)
    async with serving(again) as target:
        to = ("--target", f"http://127.0.0.1:{target}", "--group", "demo-again", "--results-topic", AGAIN)
        await run_step(*replay, *to, "--speedup", "max", progress=lambda: again.requests)
    named = ("--title", "The shop and its next version", "--out", str(out))
    # It keeps what it works on below the directory of the report.
    read = ("--results", RESULTS, "--baseline", AGAIN, "--kafka", kafka)
    await run_step("report", *read, *named, progress=lambda: bytes_below(out))


@asynccontextmanager
async def _capturing(shop: int, kafka: str) -> AsyncIterator[int]:
    """A capture in front of the shop, on a port that is given."""
    to = ("--listen", "127.0.0.1:0", "--to", f"http://127.0.0.1:{shop}", "--kafka", kafka)
    into = ("--topic", TOPIC, "--partitions", str(PARTITIONS))
    async with _command("capture", *to, *into, stdout=asyncio.subprocess.PIPE) as process:
        assert process.stdout is not None  # noqa: S101  (asked for)
        line = (await _unless_stalled(process, process.stdout.readline(), "capture")).decode()
        found = ADDRESS.match(line)
        if found is None:
            raise StrandlineError("the capture did not start; it has said why above")
        say(line.rstrip())
        yield int(found[1])
        _signal(process, signal.SIGINT)
        await _end(process, "capture")


async def run_step(
    *arguments: str, progress: Callable[[], object] = lambda: None, silence_s: float = SILENCE_S
) -> None:
    """Run a command of ours to its end; raise where it fails, or makes no progress for so long."""
    async with _command(*arguments) as process:
        await _end(process, arguments[0], progress, silence_s)


@asynccontextmanager
async def _command(*arguments: str, stdout: int | None = None) -> AsyncIterator[asyncio.subprocess.Process]:
    """A command of ours, which has ended when this is left."""
    say(f"\n$ strandline {shlex.join(arguments)}")
    command = leashed([sys.executable, "-m", "strandline", *arguments], signal.SIGTERM)
    # It ends with us, however we end. It has a group of its own: a terminal's Ctrl-C is for us, and we end it in order.
    process = await asyncio.create_subprocess_exec(*command, stdout=stdout, process_group=0)
    try:
        yield process
    finally:
        if process.returncode is None:
            _signal(process, signal.SIGTERM)
            try:
                async with asyncio.timeout(END_WITHIN_S):
                    await process.wait()
            except TimeoutError:
                _signal(process, signal.SIGKILL)
                await process.wait()


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send a signal to a process, unless it has ended.

    `Process.send_signal` reaps a process that has just ended by itself. asyncio then finds no process to wait for, and
    reports its exit code as 255.
    """
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


async def _end(
    process: asyncio.subprocess.Process,
    name: str,
    progress: Callable[[], object] = lambda: None,
    silence_s: float = SILENCE_S,
) -> None:
    code = await _unless_stalled(process, process.wait(), name, progress, silence_s)
    if code:
        raise StrandlineError(f"strandline {name} ended with exit code {code}; it has said why above")


async def _unless_stalled(
    process: asyncio.subprocess.Process,
    step: Awaitable[T],
    name: str,
    progress: Callable[[], object] = lambda: None,
    silence_s: float = SILENCE_S,
) -> T:
    detector = StallDetector(silence_s, progress, pid=process.pid)
    return await unless_stalled(step, detector, f"strandline {name}", OVERLOADED)


def say(line: str) -> None:
    """A line for the user, before what the next command says."""
    print(line, flush=True)
