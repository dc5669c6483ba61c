"""Standard output, with its faults told apart from those of any other file."""

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.errors import OutputClosed, OutputLost

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _Guarded(io.FileIO):
    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError as error:
            raise OutputClosed from error
        except OSError as error:
            raise OutputLost(f"cannot write to standard output: {error.strerror}") from error


def guard_output() -> None:
    """From here on, what cannot be written to standard output is an `OutputLost`.

    Standard error is there from here on, if only to go nowhere: else its number would be that of the next connection.
    """
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  (for the life of the process)
    plain = sys.stdout
    if isinstance(plain, io.TextIOWrapper):  # and not None, which it is where the process was started without one
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(_Guarded(plain.fileno(), "wb", closefd=False)),
            encoding=plain.encoding,
            errors=plain.errors,
            line_buffering=plain.line_buffering,
        )


def discard_output() -> None:
    """Let what is still buffered go nowhere: it would be tried again, and fail again, when the process ends."""
    if sys.stdout is None:
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
