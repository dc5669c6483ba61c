"""Errors of ours that Spark hands on from another process, told in our own words."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from strandline.errors import StrandlineError

OURS = re.compile(r"strandline\.errors\.(\w+): (.+)")
TRACED = "Traceback (most recent call last):"
LONGEST = 500


@contextmanager
def refused_in_one_line() -> Iterator[None]:
    """Tell an error of ours as our own, without all that is round it."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        ours = own_words(str(error))
        if ours is None:
            raise
        raise StrandlineError(ours[1]) from error


def own_words(told: str) -> tuple[str, str] | None:
    """The name and the line of the error of ours in what Spark tells; None where there is none."""
    found = OURS.findall(told)
    return found[-1] if found else None


def reason_in(told: str) -> str:
    """The line of what Spark tells that says why.

    What Python raised, else which task was lost, else what Java threw, which Py4J puts below a line of its own; else
    the first one.
    """
    lines = [line for line in told.splitlines() if line.strip()]
    traced = next((number for number, line in enumerate(lines) if TRACED in line), len(lines))
    raised = (line for line in lines[traced + 1 :] if not line[0].isspace())
    lost = (line for line in lines if "Lost task" in line)
    thrown = (line.removeprefix(": ") for line in lines if line.startswith(": "))
    return next((line.strip()[:LONGEST] for line in (*raised, *lost, *thrown, *lines)), "")
