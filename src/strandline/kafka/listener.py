"""Whether a listener of Kafka speaks TLS, found out by a question without it.

A handshake that a broker without TLS breaks off looks like a broker that is gone, and so does what librdkafka says of
either mistake. The question is answered before anybody signs in, and only by who speaks as it was asked.
"""

import socket
import struct
from collections.abc import Mapping
from enum import Enum, auto

from strandline.errors import KafkaError, NoBroker, OptionError, WrongListener

WITHIN = 5.0
# ApiVersions 0, with a number that is repeated by who understands it, and from nobody.
NUMBER = b"strl"
QUESTION = struct.pack(">ihh4sh", 10, 18, 0, NUMBER, -1)
ALERT = b"\x15\x03"
"""How a record of TLS begins that says no; as the size of an answer it would be too large for any broker."""


class Listener(Enum):
    """What is spoken at an address."""

    UNKNOWN = auto()
    PLAIN = auto()
    TLS = auto()


def is_alert(beginning: bytes | memoryview) -> bool:
    """Whether an answer begins as TLS refuses what is none."""
    return bytes(beginning[: len(ALERT)]) == ALERT


def spoken(host: str, port: int, within: float = WITHIN) -> Listener:
    """Ask; blocks, so many seconds at most for each step."""
    try:
        with socket.create_connection((host, port), within) as asking:
            asking.sendall(QUESTION)
            answer = asking.makefile("rb").read(8)
    except (OSError, UnicodeError):
        return Listener.UNKNOWN
    if is_alert(answer):
        return Listener.TLS
    return Listener.PLAIN if answer[4:] == NUMBER else Listener.UNKNOWN


def explained(error: KafkaError, settings: Mapping[str, object]) -> KafkaError:
    """Why no broker answers, where one speaks otherwise than the settings say; else the error as it is. Blocks."""
    if not isinstance(error, NoBroker):
        return error
    from strandline.kafka.cluster import host_and_port  # noqa: PLC0415  (dear, and only for who is in trouble)

    has_tls = str(settings.get("security.protocol") or "").strip().lower().endswith("ssl")
    for place in str(settings.get("bootstrap.servers") or "").split(","):
        try:
            host, port = host_and_port(place)
        except OptionError:
            continue
        found = spoken(host, port)
        if found is (Listener.PLAIN if has_tls else Listener.TLS):
            return WrongListener(f"{host}:{port}", has_tls=found is Listener.TLS)
    return error
