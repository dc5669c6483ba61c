"""Logs: one JSON object a line on stderr, plain text on a terminal.

Never log a secret, a token or a request's body. Configuration values that are secret are of type `config.Secret`,
which does not show itself.
"""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TextIO

FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """One object a line: time, level, logger, message, the fields of all lines, then whatever was given as `extra`."""

    def __init__(self, fields: Mapping[str, object]) -> None:
        super().__init__()
        self._fields = fields

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._fields,
        }
        line.update((key, value) for key, value in vars(record).items() if key not in FIELDS)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure(
    stream: TextIO | None = None, level: int = logging.INFO, fields: Mapping[str, object] = MappingProxyType({})
) -> None:
    """Send the logs of this process to a stream, stderr unless told otherwise; every line has the fields."""
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s") if stream.isatty() else JsonLines(fields))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("strandline").setLevel(level)
