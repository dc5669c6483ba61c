"""How far a stream of changes has come, as Spark keeps it: with what its numbers mean something in."""

from typing import Any, Self

import msgspec
from msgspec import Struct

from strandline.cdc.assembly import Offset
from strandline.cdc.slot import SlotIdentity, SlotState
from strandline.errors import OptionError


class Mark(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An offset, the slot that it is of, and the settings that number the events of a transaction."""

    end: int
    lsn: int
    ordinal: int
    system: str
    timeline: int
    database: str
    slot: str
    ordinals: str
    keys: dict[str, list[str]] | None = None
    """The primary keys, when the slot was taken, of tables with replica identity FULL: they number events too, and the
    catalog may have others by the time that the same changes are read again. None in checkpoints of before."""
    committed: int | None = None
    """When the last change up to here was committed, or when there was none left; in microseconds of Unix."""

    @classmethod
    def at(cls, state: SlotState, ordinals: str, keys: dict[str, list[str]]) -> Self:
        """Where a slot stands."""
        identity = msgspec.structs.asdict(state.identity)
        return cls(end=state.confirmed, lsn=0, ordinal=0, ordinals=ordinals, keys=keys, **identity)

    @classmethod
    def read(cls, told: dict[str, Any], ordinals: str) -> Self:
        """One that was told before, under the same settings: under others its ordinals mean other events."""
        try:
            mark = msgspec.convert(told, cls)
        except msgspec.ValidationError as error:
            raise OptionError(f"the checkpoint is not one of postgres_wal: {error}; name another directory") from None
        # Fewer settings were kept once.
        if ordinals != mark.ordinals and not ordinals.startswith(f"{mark.ordinals} "):
            raise OptionError(
                f"the checkpoint was made with {mark.ordinals}, and now it is {ordinals}: events would be numbered "
                "otherwise, so set it back, or begin anew with another checkpoint and another slot"
            )
        return msgspec.structs.replace(mark, ordinals=ordinals)

    def told(self) -> dict[str, Any]:
        """As Spark takes it."""
        return msgspec.structs.asdict(self)

    def moved(self, reached: Offset, committed: int | None) -> Self:
        """The same, further on.

        Who reads knows of transactions and not of idle advances: one that is cut behind such an advance would have the
        end of the last whole one before it, which the slot has passed.
        """
        moved = msgspec.structs.replace(self, lsn=reached.lsn, ordinal=reached.ordinal).behind(reached.end)
        return moved if committed is None else msgspec.structs.replace(moved, committed=committed)

    def known_by(self, keys: dict[str, list[str]]) -> Self:
        """The same place, from which on these are the keys of tables."""
        return msgspec.structs.replace(self, keys=keys)

    def behind(self, end: int) -> Self:
        """The same, or where all up to `end` is delivered too."""
        return self if end <= self.end else msgspec.structs.replace(self, end=end)

    def is_within(self, other: Self) -> bool:
        """Whether all up to here is whole and delivered where another stands: no transaction is cut there."""
        # A commit begins at its LSN, which may be the very end of the one before it. A message ends at its own.
        return other.end >= max(self.end, self.lsn + 1 if self.ordinal else self.lsn)

    @property
    def is_cut(self) -> bool:
        """Whether it stands inside a transaction, by the number of an event."""
        return self.ordinal > 0 and self.lsn >= self.end

    @property
    def offset(self) -> Offset:
        """How far it is."""
        return Offset(end=self.end, lsn=self.lsn, ordinal=self.ordinal)

    @property
    def identity(self) -> SlotIdentity:
        """The slot in which that means something."""
        return SlotIdentity(system=self.system, timeline=self.timeline, database=self.database, slot=self.slot)
