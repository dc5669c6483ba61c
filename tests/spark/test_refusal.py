"""What Spark tells at length is told in one line."""

import pytest

from strandline.errors import (
    OptionError,
    PublishingEnded,
    SnapshotLost,
    StrandlineError,
)
from strandline.spark.pipeline import cause
from strandline.spark.refusal import reason_in

JVM = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Lost task 1.0 in stage 0.0: ExecutorLostFailure
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:2844)
"""
PYTHON = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.api.python.PythonException: An exception was thrown: Traceback (most recent call last):
  File "worker.py", line 3592, in main
    process()
ValueError: the member cannot start

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:665)
"""


def test_what_python_raised_is_the_reason() -> None:
    assert reason_in(PYTHON) == "ValueError: the member cannot start"


def test_what_java_threw_is_the_reason_where_python_raised_nothing() -> None:
    told = (
        "An error occurred while calling o82.start.\n: java.io.IOException: mkdir of file:/proc/x failed\n\tat a.b(c:1)"
    )
    assert reason_in(told) == "java.io.IOException: mkdir of file:/proc/x failed"


def test_a_lost_task_is_the_reason_where_nothing_was_raised() -> None:
    assert "Lost task 1.0 in stage 0.0: ExecutorLostFailure" in reason_in(JVM)


def test_without_either_the_first_line_is_and_none_of_it_is_long() -> None:
    assert reason_in("\n  gone\nmore") == "gone"
    assert reason_in("x" * 10_000) == "x" * 500
    assert not reason_in(" \n")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("OptionError", OptionError),
        ("ChangesLost", StrandlineError),
        ("DeadLetterFailed", StrandlineError),
        ("StreamRefused", StrandlineError),
        ("SnapshotLost", SnapshotLost),
        ("NotLeading", PublishingEnded),
        ("SlotBusy", PublishingEnded),
        ("ConnectionLost", PublishingEnded),
    ],
)
def test_what_ended_a_query_is_known_by_its_name_a_wrong_option_as_the_users_doing(
    name: str, kind: type[StrandlineError]
) -> None:
    told = cause(PYTHON.replace("ValueError", f"strandline.errors.{name}"))
    assert type(told) is kind
    assert "the member cannot start" in str(told)
