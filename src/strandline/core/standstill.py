"""Whether whoever publishes stands still: then it is not to lead on, for another might get on.

It does where it no longer asks whether it leads; and where it asks, and yet neither what it shows nor what its tasks
show changes. Either is enough: an epoch may take as long as a stream is slow, and without changes no task runs.
"""

from strandline.units import Nanos


class Standstill:
    """Is told what can be seen, and when. Before anybody asks for the first time, nothing is judged."""

    def __init__(self, patience: Nanos) -> None:
        self._patience = patience
        self._asked: Nanos | None = None
        self._moved = Nanos(0)
        self._shown: dict[str, object] = {}

    def asks(self, sign: object | None, now: Nanos) -> None:
        """Whoever publishes asks, and shows something that changes as it gets on; None where it gets on by asking."""
        if self._asked is None or sign is None:
            self._moved = now
        self._asked = now
        self._show("publisher", sign, now)

    def tasks(self, sign: object, now: Nanos) -> None:
        """Something that changes while tasks send, or wait to."""
        self._show("tasks", sign, now)

    def _show(self, who: str, sign: object, now: Nanos) -> None:
        if self._shown.get(who) != sign:
            self._shown[who] = sign
            self._moved = now

    def problem(self, now: Nanos) -> str | None:
        """What is wrong, in words; None while nothing is."""
        if self._asked is None:
            return None
        waited = f"for {self._patience / 1e9:g} s"
        if now - self._asked > self._patience:
            return f"whoever publishes has stood still {waited}"
        if now - self._moved > self._patience:
            return f"nothing has got on {waited}: Spark has ended no epoch, and no task has shown that it lives"
        return None
