"""How large what is fetched will be: foreseen by what came before, since packed records do not tell.

What is foreseen decides how much to ask for. It may be wrong; that what is held keeps its bound does not hang on it.
"""

# Large answers cost less to read in all; the first ones are small, so that rows are there soon.
FIRST_ASKED = 1 << 20
MOST_ASKED = 8 << 20
# An answer should be no more than such a part of the buffer as it comes, and once it is unpacked; and those of all
# leaders together no more than a half of it.
PACKED_PARTS = 8
UNPACKED_PARTS = 4
LEAST_ASKED = 64 << 10
FIRST_GROWTH = 4.0
SLOWLY = 0.9


class Foresight:
    """Tell it what came; it tells what will come."""

    def __init__(self, buffer_bytes: int) -> None:
        self._buffer_bytes = buffer_bytes
        self._most_asked = min(MOST_ASKED, max(LEAST_ASKED, buffer_bytes // PACKED_PARTS))
        self._step = FIRST_ASKED
        self.leaders = 1
        """How many are asked side by side."""
        self._growth = FIRST_GROWTH

    def to_ask(self) -> int:
        """The bytes to ask for in one fetch."""
        fitting = self.packed(self._buffer_bytes // max(UNPACKED_PARTS, 2 * self.leaders))
        return min(self._step, self._most_asked, fitting)

    def packed(self, unpacked: int) -> int:
        """The bytes to ask for to have so many once they are unpacked."""
        return max(1, int(unpacked / self._growth))

    def unpacked(self, packed: int) -> int:
        """What so many bytes will be here."""
        return int(packed * self._growth)

    def came(self) -> None:
        """An answer has come: the next may be twice as large."""
        self._step = min(MOST_ASKED, 2 * self._step)

    def grew(self, times: float) -> None:
        """Records were so many times as large as they were packed. Less growth is believed slowly."""
        self._growth = max(1.0, SLOWLY * self._growth, times)
