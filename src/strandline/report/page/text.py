"""Text that others wrote, made fit to look at: nothing in it is invisible, turns the direction, or has no end."""

LINE = 300
"""How many characters of a name, a path or a value are shown."""

_INVISIBLE = (
    *range(0x20),
    *range(0x7F, 0xA0),
    0xAD,
    0x61C,
    0x180E,
    *range(0x200B, 0x2010),  # of no width, and marks of direction
    *range(0x2028, 0x202F),  # separators, and overrides of direction
    *range(0x2060, 0x2070),
    *range(0xD800, 0xE000),  # surrogates: alone they are no characters
    0xFEFF,
    *range(0xFFF9, 0xFFFC),
    0xFFFE,
    0xFFFF,
    *range(0xE0000, 0xE0080),  # tags
)
_NAMED = {code: f"⟨U+{code:04X}⟩" for code in _INVISIBLE}
_NAMED_BUT_LINES = {code: shown for code, shown in _NAMED.items() if chr(code) not in "\n\t"}


def line(text: str) -> str:
    """At most `LINE` characters on one line, with the number of each character that cannot be seen."""
    shown = text[: LINE + 1].translate(_NAMED)
    return shown if len(shown) <= LINE else shown[: LINE - 1] + "…"


def message(text: str, most: int) -> str:
    """A head and a body on several lines; beyond `most` characters a last line says how long the whole is."""
    head, blank, body = text.partition("\r\n\r\n")
    if blank:
        text = head.replace("\r\n", "\n") + "\n\n" + body
    shown = text[: most + 1].translate(_NAMED_BUT_LINES)
    if len(shown) <= most:
        return shown.rstrip("\n")
    return f"{shown[:most]}\n✂ cut here: the whole has {len(text):,} characters"
