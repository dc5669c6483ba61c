"""Options of a source or a sink, each read in one way: an unknown or a wrong one is refused."""

import re
from collections.abc import Mapping
from datetime import timedelta

from strandline.errors import OptionError, did_you_mean
from strandline.kafka.words import LONGEST_SPAN, UNITS

KAFKA = "kafka."
NUMBER = re.compile(r"[0-9]{1,18}")


def known(options: Mapping[str, str], valid: Mapping[str, str]) -> dict[str, str]:
    """The options by their names in lower case; raises OptionError for one that is not among the valid ones."""
    for name in options:
        if name.lower() not in valid:
            raise OptionError(f"option '{name}' is unknown; {did_you_mean(name, valid.values())}")
    return {name.lower(): value for name, value in options.items()}


def count(options: Mapping[str, str], name: str) -> int | None:
    """A whole number above 0."""
    text = options.get(name.lower())
    if text is None:
        return None
    if not NUMBER.fullmatch(text) or not int(text):
        raise OptionError(f"option '{name}' is '{text}'; it takes a whole number above 0")
    return int(text)


def span(options: Mapping[str, str], name: str) -> timedelta | None:
    """A length of time."""
    text = options.get(name.lower())
    if text is None:
        return None
    number = text.rstrip("".join(UNITS))
    unit = UNITS.get(text[len(number) :])
    if unit is None or not NUMBER.fullmatch(number) or int(number) > LONGEST_SPAN // unit:
        raise OptionError(f"option '{name}' is '{text}'; it takes a time such as 500ms, 10s, 15m or 2h")
    return int(number) * unit


def choice(options: Mapping[str, str], name: str, valid: tuple[str, ...]) -> str:
    """One of the given words; the first of them where there is none."""
    value = options.get(name.lower(), valid[0])
    if value not in valid:
        raise OptionError(f"option '{name}' is '{value}'; {did_you_mean(value, valid)}")
    return value
