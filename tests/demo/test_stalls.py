"""A demo whose step stands still, or that is stopped, ends with one line and exit code 1."""

import asyncio
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.cli.demo_cdc import STREAM, Demo
from strandline.demo.customers import REMEDY, visit
from strandline.errors import Stalled, StrandlineError
from strandline.stack import Kinesis, Postgres
from strandline.stack.processes import OVERLOADED, Child
from tests.support import TIMEOUT

# A command of ours that works while it starts, and idles once it serves.
STEP = """
import asyncio, sys
from strandline import stalls
from strandline.cli.commands import app, main
from strandline.cli.demo import run_step

# A machine that stops for a moment while the command starts is not taken for a command that does.
stalls.LONGEST_GAP_S = 0.5

def step():
    asyncio.run(run_step("up", "--only", "kinesis", silence_s=float(sys.argv[1])))

app.command(step, name="step")
sys.exit(main(["step"]))
"""


def test_a_command_of_the_demo_that_stands_still_is_ended_with_one_line_and_exit_code_1() -> None:
    result = subprocess.run(
        [sys.executable, "-c", STEP, "3"], capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert result.returncode == 1
    assert "Ready." in result.stdout  # the start, which takes long, was not cut off
    said = [line for line in result.stderr.splitlines() if not line.startswith(("strandline: kinesis: ", "{"))]
    assert said[-1] == f"strandline: strandline up made no progress for 3 s and was ended; {OVERLOADED}"
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "after"),
    [
        ((), "Starting a real Kafka broker"),
        ((), "$ strandline capture"),
        (("cdc",), "$ strandline cdc run"),
        pytest.param((), "Customers come", marks=pytest.mark.soak),
        pytest.param(("cdc",), "Starting a real Postgres", marks=pytest.mark.soak),
        pytest.param(("gateway",), "Prices tick on", marks=pytest.mark.soak),
        pytest.param(("proxy",), "Orders are written", marks=pytest.mark.soak),
    ],
)
def test_a_demo_that_is_stopped_says_so_in_one_line_at_most(
    arguments: tuple[str, ...], after: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "strandline", "demo", *arguments]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if line.startswith(after):
                break
        demo.send_signal(signal.SIGINT)
        said, errors = demo.communicate(timeout=TIMEOUT)
    assert "Traceback" not in said + errors
    # Those that run until they are stopped have done what they were to do.
    is_over = arguments in {("gateway",), ("proxy",)}
    assert demo.returncode == (0 if is_over else 1), errors
    told = [line for line in errors.splitlines() if re.match(r"strandline: .*(stopped|interrupted)", line)]
    assert len(told) == (0 if is_over else 1), errors


async def _visit(answer: Callable[[socket.socket], None], silence_s: float = TIMEOUT) -> int:
    """Visits of a server that answers so."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                answer(connection)

        serving = threading.Thread(target=serve)
        serving.start()
        try:
            return await visit(listening.getsockname()[1], 1.0, random.Random(1), silence_s=silence_s)
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            serving.join()


def test_customers_who_get_no_answer_are_told_of_in_one_line() -> None:
    kept: list[socket.socket] = []
    with pytest.raises(Stalled) as failure:
        asyncio.run(_visit(kept.append, silence_s=2.0))
    for connection in kept:
        connection.close()
    assert str(failure.value) == f"a visit of the shop made no progress for 2 s and was ended; {REMEDY}"


def test_customers_whose_connections_are_closed_are_told_of_in_one_line() -> None:
    with pytest.raises(StrandlineError, match=r"^a customer of the shop got no answer \(.+\); [^\n]*$"):
        asyncio.run(_visit(socket.socket.close))


def test_instances_of_the_cdc_demo_that_stand_still_are_told_of_in_one_line(
    postgres: Postgres, kinesis: Kinesis, tmp_path: Path
) -> None:
    demo = Demo(postgres, kinesis, tmp_path, threading.Event(), silence_s=2.0)
    demo._make_stream()
    program = "import time; time.sleep(600)"
    command = [sys.executable, "-I", "-S", "-c", program]
    child = Child(name="instance", command=command, log=tmp_path / "log", cwd=tmp_path)
    child.start()
    instance: Any = SimpleNamespace(name="first", child=child)
    try:
        with pytest.raises(Stalled) as failure:
            demo._until(lambda: kinesis.counts(STREAM).records > 0, "changes arrive", [instance])
    finally:
        child.stop(signal.SIGKILL, 0)
    line = f"strandline cdc run made no progress for 2 s, before changes arrive, and was ended; {OVERLOADED}"
    assert str(failure.value) == line
