"""Logs are one JSON object a line, or plain text on a terminal."""

import io
import json
import logging
import os
import pty
from collections.abc import Iterator

import pytest

from strandline import logs


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_line_is_one_object_with_its_fields() -> None:
    stream = io.StringIO()
    logs.configure(stream)
    logging.getLogger("strandline.stack").info("took %d\nlines", 2, extra={"server": "kafka", "path": object})
    line = json.loads(stream.getvalue())
    assert (line["level"], line["logger"], line["message"]) == ("info", "strandline.stack", "took 2\nlines")
    assert line["server"] == "kafka"
    assert stream.getvalue().count("\n") == 1


def test_an_exception_stays_on_its_line() -> None:
    stream = io.StringIO()
    logs.configure(stream)
    try:
        raise KeyError("mark")
    except KeyError:
        logging.getLogger("strandline").exception("failed")
    assert stream.getvalue().count("\n") == 1
    assert "KeyError: 'mark'" in json.loads(stream.getvalue())["exception"]


def test_a_terminal_gets_plain_text() -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        logs.configure(terminal)
        logging.getLogger("strandline").warning("the tide is high")
        assert os.read(ours, 100) == b"the tide is high\r\n"
    os.close(ours)


def test_other_libraries_speak_only_when_they_warn() -> None:
    stream = io.StringIO()
    logs.configure(stream)
    logging.getLogger("somebody.else").info("chatter")
    assert not stream.getvalue()
