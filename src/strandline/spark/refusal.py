"""Errors of ours that Spark hands on from another process, told in our own words."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from strandline.errors import StrandlineError

OURS = re.compile(r"strandline\.errors\.(\w+): (.+)")


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
