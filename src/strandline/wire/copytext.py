"""One line of COPY in its text form, from its bytes: the same texts of values as pgoutput sends."""

import re
from typing import Final

from strandline.errors import MalformedChange
from strandline.wire.pgoutput import Row

NULL: Final = b"\\N"
ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)
LETTERS: Final = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


def copied(line: bytes) -> Row:
    """The values of a line, which ends with its line break."""
    if line[-1:] != b"\n":
        raise MalformedChange(f"a line of COPY ends early, after {len(line)} bytes")
    fields = line[:-1].split(b"\t")
    if b"\\" not in line:
        return list(fields)
    return [None if field == NULL else plain(field) if b"\\" in field else field for field in fields]


def plain(field: bytes) -> bytes:
    """A field without its escapes."""
    return ESCAPED.sub(lambda found: LETTERS.get(found[1], found[1]), field)
