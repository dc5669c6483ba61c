"""How a connection stands between two readings of the log."""

import msgspec

from strandline.units import Nanos


class Standing(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How a connection stands while nothing of it is unfinished."""

    index: int
    seen: Nanos
    was_open: bool
    is_ignoring: bool
    is_opaque: bool
    is_framed: bool
