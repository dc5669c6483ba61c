"""The command `strandline`: one file a command, one line for every error, exit code 0, 1 or 2."""

import os
import sys
from collections.abc import Sequence

import cyclopts

from strandline import __version__, logs
from strandline.errors import StrandlineError, UsageError

app = cyclopts.App(
    name="strandline",
    version=__version__,
    help="Replays logs in order and on time, and never marks progress past what has been safely delivered.",
)
# By name, so that a command pays only for the imports of its own.
app.command("strandline.cli.up:up", name="up")
app.command("strandline.cli.demo:demo", name="demo")


def main(arguments: Sequence[str]) -> int:
    """Run one command; its exit code: 0 for success, 2 for wrong use, 1 for failure."""
    logs.configure()
    try:
        app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except cyclopts.CycloptsError as error:
        return _fail(" ".join(str(error).split()), 2)
    except UsageError as error:
        return _fail(str(error), 2)
    except StrandlineError as error:
        return _fail("\n  ".join([str(error), *getattr(error, "__notes__", [])]), 1)
    except BrokenPipeError:
        # Whoever read our output has left. What is still buffered has nowhere to go, and that is no error of its own.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _fail("nobody reads the output any more", 1)
    except KeyboardInterrupt:
        return _fail("interrupted", 1)
    return 0


def _fail(line: str, code: int) -> int:
    print(f"strandline: {line}", file=sys.stderr)
    return code


def run() -> None:
    """The entry point of the command."""
    sys.exit(main(sys.argv[1:]))
