"""What holds a frontier back."""

from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

from strandline.units import Nanos


class Ordered(Protocol):
    """Anything with an order of its own: Kafka offsets, (commit LSN, ordinal) pairs, ..."""

    def __lt__(self, other: Self, /) -> bool: ...


P = TypeVar("P", bound=Ordered)


@dataclass(frozen=True, slots=True)
class Oldest(Generic[P]):
    """The unfinished item that holds the frontier back, and for how long it has been in flight."""

    position: P
    age: Nanos
