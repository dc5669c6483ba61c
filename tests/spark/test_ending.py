"""A JVM that does not answer any more is not waited for without an end."""

import signal
import subprocess
from collections.abc import Iterator
from threading import Event

import pytest

from strandline.spark.pipeline import ended_in_time
from tests.support import TIMEOUT


@pytest.fixture
def jvm() -> Iterator["subprocess.Popen[bytes]"]:
    """As good as one that is frozen: it ends by itself after more than a test takes."""
    with subprocess.Popen(["sleep", "600"]) as process:
        process.send_signal(signal.SIGSTOP)
        yield process
        process.kill()


def test_a_jvm_that_does_not_end_when_all_is_over_is_killed(jvm: "subprocess.Popen[bytes]") -> None:
    over = Event()
    with ended_in_time(over.is_set, within=0) as watched:
        watched(jvm)
        over.set()
        # As somebody who has asked it for something.
        assert jvm.wait(TIMEOUT) == -signal.SIGKILL


@pytest.mark.parametrize("is_over", [False, True])
def test_a_jvm_is_left_alone_while_all_goes_on_and_once_it_has_ended(
    jvm: "subprocess.Popen[bytes]", *, is_over: bool
) -> None:
    looked = Event()

    def look() -> bool:
        looked.set()
        return is_over

    with ended_in_time(look, within=TIMEOUT) as watched:
        watched(jvm)
        assert looked.wait(TIMEOUT)
    assert jvm.poll() is None
