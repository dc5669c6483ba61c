"""What a person is told on stderr of records that are read: how it goes, and a summary."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.counts import counted


def summary(read: int, kept: int, seconds: float, losses: int, *, is_whole: bool = True) -> str:
    """The last line: how many records, in what time, and what is missing."""
    records = counted(kept, "record") if kept == read else f"{kept:,} of {read:,} records"
    lost = f"; ranges of offsets lost, named above: {losses}" if losses else ""
    cut = "" if is_whole else "; stopped before the end"
    return f"{records} in {seconds:.1f} s ({read / max(seconds, 0.001):,.0f} a second){lost}{cut}"


def progress_line(read: int, seconds: float, reached: int | None, partitions: pa.Table) -> str:
    """How fast it goes, the time in milliseconds of the last record, and how much there may be still."""
    parts = [counted(read, "record"), f"{read / max(seconds, 0.001):,.0f} a second"]
    if reached is not None:
        parts.append(f"at {np.datetime_as_string(np.datetime64(reached, 'ms'), unit='s', timezone='UTC')}")
    parts.append(f"{to_go(partitions):,} to go")
    return "   ".join(parts)


def to_go(partitions: pa.Table) -> int:
    """The offsets that have not been read, and the rows that have been and wait."""
    unread = pc.max_element_wise(pc.subtract(partitions["end"], partitions["position"]), 0)
    return int((pc.sum(unread).as_py() or 0) + (pc.sum(partitions["held_rows"]).as_py() or 0))
