"""What is done about each error."""

import errno
import socket
import ssl

import pytest

from strandline.cdc.failures import AGAIN, BACKOFF, PUT_AWAY, SLOWER, STOP, TABLE, Course, answered, not_answered


def test_every_code_has_one_course_and_what_stops_says_what_to_do() -> None:
    assert len(TABLE) == len(AGAIN) + len(SLOWER) + len(STOP) + len(PUT_AWAY)
    for code, (course, advice) in TABLE.items():
        assert bool(advice) == (course is Course.STOP)
        # The code tells more than the status.
        assert {answered(code, "", status).course for status in (200, 400, 500)} == {course}


@pytest.mark.parametrize(
    ("status", "course"),
    [
        (500, Course.AGAIN),
        (503, Course.AGAIN),
        (599, Course.AGAIN),
        (408, Course.AGAIN),
        (429, Course.SLOWER),
        (413, Course.PUT_AWAY),
        (200, Course.STOP),
        (301, Course.STOP),
        (400, Course.STOP),
        (404, Course.STOP),
    ],
)
def test_a_code_that_is_not_known_is_judged_by_the_status(status: int, course: Course) -> None:
    assert answered("NeverHeardOf", "", status).course is course
    problem = answered("", "", status)
    assert (str(problem), problem.course) == (f"HTTP status {status}", course)


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(),
        ConnectionRefusedError(errno.ECONNREFUSED, "refused"),
        ConnectionResetError("closed"),
        OSError(errno.ENETUNREACH, "no network"),
        ssl.SSLError(1, "broken"),
        socket.gaierror(socket.EAI_AGAIN, "later"),
    ],
)
def test_what_was_not_reached_is_tried_again(error: OSError) -> None:
    assert not_answered(error, has_answered=False).course is Course.AGAIN


def test_a_host_that_nobody_knows_stops_unless_it_was_known_before() -> None:
    error = socket.gaierror(socket.EAI_NONAME, "unknown")
    assert not_answered(error, has_answered=False).course is Course.STOP
    assert not_answered(error, has_answered=True).course is Course.AGAIN


def test_what_goes_again_has_a_wait() -> None:
    assert set(BACKOFF) == {Course.AGAIN, Course.SLOWER}
