"""How a command reaches Kafka: from the environment, a file, and options, each over the one before.

A value may be a secret, so no error here quotes one.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from strandline.config import read_bounded
from strandline.errors import ConfigError, OptionError

ADDRESS_VARIABLE = "STRANDLINE_KAFKA"
ADDRESS = "127.0.0.1:9092"
COMMENTS = ("#", "!")
# A person is waiting. What a broker that has just been started needs, and no more.
START_WITHIN = timedelta(seconds=5)


def kafka_settings(
    environment: Mapping[str, str], file: Path | None, pairs: Sequence[str], address: str | None, group: str | None
) -> dict[str, str]:
    """All settings, by librdkafka's names."""
    settings = {"bootstrap.servers": environment.get(ADDRESS_VARIABLE) or ADDRESS}
    if file is not None:
        settings |= read_properties(file)
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise OptionError("--set takes name=value, such as --set security.protocol=ssl")
        settings[name.strip()] = value
    given = {"bootstrap.servers": address, "group.id": group}
    return settings | {name: value for name, value in given.items() if value is not None}


def read_properties(file: Path) -> dict[str, str]:
    """The settings in a file of lines `name=value`; empty lines and those that begin with # or ! do not count."""
    try:
        text = read_bounded(file).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(file, None, "is not UTF-8") from None
    settings: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith(COMMENTS):
            continue
        name, equals, value = (part.strip() for part in stripped.partition("="))
        if not equals or not name:
            raise ConfigError(file, number, "is not name=value")
        if name in settings:
            raise ConfigError(file, number, f"'{name}' is given twice")
        settings[name] = value
    return settings
