"""Logs: one JSON object a line on stderr, plain text on a terminal.

Never log a secret, a token or a request's body. Configuration values that are secret are of type `config.Secret`,
which does not show itself.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """One object a line: time, level, logger, message, then whatever was given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update((key, value) for key, value in vars(record).items() if key not in FIELDS)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure(stream: TextIO | None = None, level: int = logging.INFO) -> None:
    """Send the logs of this process to a stream, stderr unless told otherwise."""
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s") if stream.isatty() else JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("strandline").setLevel(level)
