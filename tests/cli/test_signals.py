"""A request to stop: it is heard whatever the main thread is doing at that moment."""

import signal
from threading import Event, Lock

import pytest

from strandline.cli.signals import STOP_SIGNALS, on_stop_request, on_stop_signal
from tests.support import TIMEOUT


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_request_that_comes_while_the_main_thread_holds_a_lock_is_heard(number: signal.Signals) -> None:
    """As it does within `Event.wait`, which is where a command spends its time."""
    lock, heard = Lock(), Event()

    def act() -> None:
        if lock.acquire(timeout=TIMEOUT):
            heard.set()
            lock.release()

    with on_stop_request(act):
        with lock:
            signal.raise_signal(number)
            assert not heard.is_set()
        assert heard.wait(TIMEOUT)


def test_every_request_is_heard_before_the_handlers_of_before_are_back() -> None:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    heard = []
    with on_stop_request(lambda: heard.append(len(heard))):
        for number in STOP_SIGNALS:
            signal.raise_signal(number)
    assert heard == [0, 1, 2]
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


def test_a_handler_may_raise_out_of_what_the_main_thread_does() -> None:
    def act() -> None:
        raise KeyError("asked to stop")

    with pytest.raises(KeyError, match="asked to stop"), on_stop_signal(act):
        signal.raise_signal(signal.SIGTERM)
