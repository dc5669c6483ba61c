"""For how long a thread has given no sign of life. Pure: time is an argument."""

from strandline.units import Nanos


class Pulse:
    """Remembers the longest silence until it is forgiven, so that one that is over before anybody looks is seen too."""

    def __init__(self, now: Nanos) -> None:
        self._last = now
        self._longest = Nanos(0)

    def beat(self, now: Nanos) -> None:
        """A sign of life; called by the thread itself."""
        self._longest = Nanos(max(self._longest, now - self._last))
        self._last = now

    def silence(self, now: Nanos) -> Nanos:
        """The longest silence that is not forgiven, or the one that lasts; called by anybody."""
        return Nanos(max(self._longest, now - self._last))

    def forgive(self) -> None:
        """Silences until the last sign of life have done no harm; called by the thread itself."""
        self._longest = Nanos(0)
