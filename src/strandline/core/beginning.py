"""How a new leader begins with its slot: reads on, has the rows that are there sent first, makes the slot, or stops.

- A slot that is there is read on: only one that we make brings the rows that are there, and a leader that finds such a
  snapshot unfinished takes another one for the rest.
- No slot is made in the place of one of which something was delivered: what came after that is lost, and must be told.
- Rows never come after changes: a snapshot that was left unfinished, with changes published since, stays so.
- An unfinished snapshot is never passed over in silence.
"""

from typing import NamedTuple


class Unfinished(NamedTuple):
    """A snapshot that was due and is not finished."""

    start: int | None
    """Where its slot began; None while that may not have been made."""


class Found(NamedTuple):
    """What a new leader finds."""

    has_slot: bool
    unfinished: Unfinished | None
    acknowledged: int | None
    """Up to where all was delivered, as it is kept in Postgres for this very slot."""
    checkpointed: int | None
    """The same by the checkpoint, which may be of another time: it counts only where there is no slot."""


class ReadOn(NamedTuple):
    """Read the changes of the slot, and nothing else."""

    leaves_unfinished: bool
    """Whether rows that were due are not sent, since they are no longer wanted."""


class TakeAgain(NamedTuple):
    """Send the tables that are not finished, under another snapshot; then read the slot."""


class RowsTooLate(NamedTuple):
    """Stop: rows are due and wanted, and changes were published since."""

    published: int


class Lost(NamedTuple):
    """Stop: the slot is gone, and with it the changes after what was delivered."""

    delivered: int


class Make(NamedTuple):
    """Make the slot."""

    with_rows: bool
    """Whether the rows that are there are sent first."""
    abandoned: Unfinished | None
    """A snapshot of an earlier slot that nobody will finish."""


Beginning = ReadOn | TakeAgain | RowsTooLate | Lost | Make


def begin(found: Found, *, wants_rows: bool) -> Beginning:
    """What to do first; `wants_rows` is whether rows that are there are to be sent at all."""
    unfinished = found.unfinished
    if found.has_slot:
        if unfinished is None or not wants_rows:
            return ReadOn(leaves_unfinished=unfinished is not None)
        if found.acknowledged is not None and (unfinished.start is None or found.acknowledged > unfinished.start):
            return RowsTooLate(found.acknowledged)
        return TakeAgain()
    delivered = [position for position in (found.acknowledged, found.checkpointed) if position is not None]
    if delivered:
        return Lost(max(delivered))
    return Make(with_rows=wants_rows, abandoned=unfinished)
