"""What one client saw of one partition, held against what was written: all of it, once, in order, or told as a gap."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Witness:
    """Notes what comes; `faults` are what must not have been."""

    start: int
    """The first offset that it is to see."""
    seen: list[int] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """From the first to the last offset of each."""
    faults: list[str] = field(default_factory=list)
    generation: int | None = None
    """Which of the logs of that name it has seen; None until something of it has come."""
    ended: int | None = None
    """Where it was told that the log was made anew."""

    @property
    def next(self) -> int:
        """The first offset that may come."""
        behind_seen = self.seen[-1] + 1 if self.seen else self.start
        return max(behind_seen, self.gaps[-1][1] + 1 if self.gaps else self.start)

    def saw(self, offset: int, generation: int = 0) -> None:
        """A record has come."""
        if self.generation is None:
            self.generation = generation
        if generation != self.generation:
            self.faults.append(f"offset {offset} came of another log, and nobody said that it was made anew")
        elif offset < self.next:
            what = "came twice" if offset in self.seen else "came out of order, or after it was told as a gap"
            self.faults.append(f"offset {offset} {what}")
        else:
            self.seen.append(offset)

    def missed(self, first: int, last: int) -> None:
        """A gap has been told."""
        if last < first or first < self.next:
            self.faults.append(f"a gap from {first} to {last} was told where {self.next} was next")
        else:
            self.gaps.append((first, last))

    def end(self, first: int) -> None:
        """The log was told to have been made anew: of this one nothing comes from an offset on."""
        if first < self.next:
            self.faults.append(f"the log was told to be made anew from {first} on where {self.next} was next")
        self.ended = first

    def check(self, written: Iterable[int], end: int, lost: Collection[int]) -> list[str]:
        """All faults, once everything before `end` must have come.

        `written` are the offsets of the records that were for this client, `lost` those that the log no longer has.
        """
        told = {offset for first, last in self.gaps for offset in range(first, last + 1)}
        known = told.union(self.seen)
        unknown = (offset for offset in written if self.start <= offset < end and offset not in known)
        faults = [*self.faults, *(f"offset {offset} was never seen, and told as no gap" for offset in unknown)]
        faults += [f"offset {offset} was told as a gap, and is there" for offset in sorted(told) if offset not in lost]
        return faults
