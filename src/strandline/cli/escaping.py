"""Text from elsewhere on a terminal: what a terminal might act upon is written as escapes."""

import re

# Control characters, line and paragraph separators, and what turns the direction of writing or is not to be seen.
UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]")
SHORT = {"\t": r"\t", "\n": r"\n", "\r": r"\r"}


def escaped(text: str) -> str:
    """The text, with what a terminal might act upon written as escapes."""
    return UNSAFE.sub(_escape, text)


def json_escaped(line: str) -> str:
    """The same for a line of JSON, which stays what it is."""
    # In JSON such characters stand in strings only, where they may be written so.
    return UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", line)


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    return SHORT.get(character) or (f"\\x{ord(character):02x}" if character < "\x80" else f"\\u{ord(character):04x}")
