"""A plan that cannot be carried out is refused before anything starts."""

from datetime import timedelta
from typing import Any

import pytest

from strandline.errors import OptionError
from strandline.replay import Limits
from tests.replay.support import plan


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"limits": Limits(concurrency=0)}, "concurrency is to be at least 1, not 0"),
        ({"limits": Limits(memory=0)}, "memory is to be at least 1, not 0"),
        ({"limits": Limits(answer_within=timedelta(0))}, "answer_within is to be above 0, not 0 s"),
        ({"limits": Limits(quiescence=timedelta(seconds=-1))}, "drain and quiescence cannot be below 0"),
        ({"packet_timeout": timedelta(0)}, "packet_timeout is to be above 0, not 0 s"),
        ({"lookahead": timedelta(seconds=70)}, "lookahead is to exceed packet_timeout"),
    ],
)
def test_a_bound_that_lets_nothing_through_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        plan("127.0.0.1:1", "t", "http://127.0.0.1:1", **changes)


@pytest.mark.parametrize(("settings", "seconds"), [({}, 22.5), ({"session.timeout.ms": "6000"}, 3)])
def test_a_member_may_stand_still_for_half_of_its_session(settings: dict[str, object], seconds: float) -> None:
    assert plan("127.0.0.1:1", "t", "http://127.0.0.1:1", kafka=settings).stalled_after.total_seconds() == seconds


def test_a_session_without_a_length_is_refused() -> None:
    with pytest.raises(OptionError, match=r"'session\.timeout\.ms' takes a whole number of milliseconds"):
        plan("127.0.0.1:1", "t", "http://127.0.0.1:1", kafka={"session.timeout.ms": "long"})
