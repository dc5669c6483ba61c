"""A position in Postgres' write-ahead log: a number to compute with, and the text that people and Postgres write."""

import re

TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


def lsn_text(lsn: int) -> str:
    """As Postgres writes it, such as 16/B374D848."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """The number of such a text."""
    found = TEXT.fullmatch(text)
    if found is None:
        raise ValueError(f"'{text}' is no position in a write-ahead log; one looks like 16/B374D848")
    return int(found[1], 16) << 32 | int(found[2], 16)
