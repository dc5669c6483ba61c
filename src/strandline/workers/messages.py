"""What a crew and its workers say to each other, whatever they serve: a line of JSON each, over a pair of sockets."""

import msgspec

# The first line has the whole configuration in it.
MOST_LINE_BYTES = 4 << 20
# Who does not hear so much is given up.
MOST_UNSENT_BYTES = 8 << 20


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """From a worker: it serves."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """From a worker: it cannot serve, and ends."""

    problem: str


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """To a worker: end in good order."""


def line(message: msgspec.Struct) -> bytes:
    """A message as it is sent."""
    return msgspec.json.encode(message) + b"\n"
