"""A JVM that does not answer any more is not waited for without an end."""

import signal
import subprocess
from collections.abc import Iterator
from threading import Event
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from strandline.errors import SparkEnded, Stalled
from strandline.spark import places
from strandline.spark.pipeline import ended_in_time
from strandline.spark.session import jvm_end_reported
from strandline.stack.processes import OVERLOADED
from tests.support import TIMEOUT


@pytest.fixture
def jvm() -> Iterator["subprocess.Popen[bytes]"]:
    """As good as one that is frozen: it ends by itself after more than a test takes."""
    # As Spark's: in a session of its own.
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
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


def context_in(jvm: "subprocess.Popen[bytes]") -> Any:
    """As much of Spark's as is asked for."""
    return SimpleNamespace(master="local[1]", _gateway=SimpleNamespace(proc=jvm), getConf=dict)


def answer_of(jvm: "subprocess.Popen[bytes]") -> NoReturn:
    """What a call into it comes to once it has ended."""
    jvm.wait(TIMEOUT)
    raise ConnectionRefusedError


@pytest.mark.usefixtures("freezes_count_little")
def test_a_fleet_whose_members_have_ended_kills_a_jvm_that_does_not_answer(
    jvm: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[object] = []
    monkeypatch.setattr(places, "SPARK_ENDS_WITHIN", 1.0)
    monkeypatch.setattr(places, "launch", lambda *_: context_in(jvm))
    monkeypatch.setattr(places, "end", ended.append)
    found = places.Places("frozen", "local[1]", {})
    found.open()
    found.end_soon()
    with pytest.raises(Stalled) as failure:
        found.ask(lambda _: answer_of(jvm))
    assert str(failure.value) == f"Spark at local[1] made no progress for 1 s and was ended; {OVERLOADED}"
    assert jvm.returncode == -signal.SIGKILL
    found.close()
    assert len(ended) == 1


def test_a_call_into_a_jvm_says_that_it_has_ended_and_hides_no_other_failure(jvm: "subprocess.Popen[bytes]") -> None:
    context = context_in(jvm)
    with pytest.raises(ConnectionRefusedError), jvm_end_reported(context):
        raise ConnectionRefusedError
    with pytest.raises(SparkEnded, match="has ended by itself, or was killed"), jvm_end_reported(context):
        jvm.kill()
        answer_of(jvm)
