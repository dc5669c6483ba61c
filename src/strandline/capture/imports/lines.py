"""Exports of opensearch-migrations: a line a record, in base64, with or without `KEY|` before it.

`kafkaExport.sh` writes them, packed by gzip. The key says nothing that the record does not, so it is not looked at.
"""

import base64
import binascii
from collections.abc import Iterator

from strandline.capture.imports.items import MOST_RECORD, Broken, Item, Readable, Unreadable, parse

MOST_LINE = MOST_RECORD // 3 * 4 + 4096
"""A record as large as any, and its key."""


def read_lines(file: Readable) -> Iterator[Item]:
    """The records of a file. Empty lines do not count."""
    number = 0
    while line := file.readline(MOST_LINE + 1):
        number += 1
        place = f"line {number}"
        if len(line) > MOST_LINE:
            while line and not line.endswith(b"\n"):
                line = file.readline(MOST_LINE)
            yield Broken(place, f"is longer than {MOST_LINE:,} bytes")
            continue
        text = line.strip().rpartition(b"|")[2]
        if not text:
            continue
        try:
            yield parse(base64.b64decode(text, validate=True))
        except binascii.Error:
            yield Broken(place, "is not base64")
        except Unreadable as error:
            yield Broken(place, str(error))
