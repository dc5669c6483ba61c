"""Faults that the endpoint commits on request, as values, and when each strikes: by a seed, the same every time."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

Share = Annotated[float, Meta(ge=0, le=1)]
Times = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0, le=600)]

SERVER_ERRORS: Final = {"InternalFailure": 500, "InternalFailureException": 500, "ServiceUnavailable": 503}
PUTS: Final = ("PutRecord", "PutRecords")


class _Fault(Struct, frozen=True, kw_only=True, tag_field="fault", forbid_unknown_fields=True):
    """What all have in common is how they are written."""


class Throttle(_Fault, frozen=True, kw_only=True, tag="throttle"):
    """Every shard takes so much a second; a record beyond that is not taken."""

    records_per_s: Annotated[int, Meta(ge=1)] = 1000
    bytes_per_s: Annotated[int, Meta(ge=1)] = 1 << 20


class FailRecords(_Fault, frozen=True, kw_only=True, tag="fail_records"):
    """A share of the records is not taken, each by chance, in the first so many requests or in all."""

    share: Share
    code: Literal["InternalFailure", "ProvisionedThroughputExceededException"] = "InternalFailure"
    times: Times | None = None


class Shuffle(_Fault, frozen=True, kw_only=True, tag="shuffle"):
    """The records of a request are taken in any order: Kinesis promises none inside a request."""

    times: Times | None = None


class Refuse(_Fault, frozen=True, kw_only=True, tag="refuse"):
    """A share of the requests is answered with an error, and nothing of them taken. Without a code: a bare status."""

    code: Annotated[str, Meta(max_length=128)]
    status: Annotated[int, Meta(ge=400, le=599)] | None = None
    share: Share = 1.0
    times: Times | None = None

    @property
    def answered(self) -> int:
        """The status of the answer."""
        return self.status or SERVER_ERRORS.get(self.code, 400 if self.code else 500)


class TimeOut(_Fault, frozen=True, kw_only=True, tag="time_out"):
    """A share of the requests is never answered: taken nevertheless or not, and the connection closed after a time."""

    accepts: bool
    closes_after_s: Seconds = 600
    share: Share = 1.0
    times: Times | None = None


class Slow(_Fault, frozen=True, kw_only=True, tag="slow"):
    """A share of the requests is answered so much later; what they bring is taken at once."""

    seconds: Seconds
    share: Share = 1.0
    times: Times | None = None


Fault = Throttle | FailRecords | Shuffle | Refuse | TimeOut | Slow


class Orders(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The faults of one stream, in place of all that it had, and the actions that they hit."""

    stream: Annotated[str, Meta(min_length=1, max_length=128)]
    faults: Annotated[list[Fault], Meta(max_length=16)]
    seed: int = 0
    actions: Annotated[tuple[str, ...], Meta(max_length=16)] = PUTS


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of one request."""

    refuse: Refuse | None = None
    time_out: TimeOut | None = None
    delay_s: float = 0.0
    failing: tuple[FailRecords, ...] = ()
    shuffles: bool = False


SPARED: Final = Fate()


class Chance:
    """Draws the fate of each request, in the order in which they come."""

    def __init__(self, faults: Sequence[Fault], *, seed: int) -> None:
        self.throttle = next((fault for fault in faults if isinstance(fault, Throttle)), None)
        self._faults = [fault for fault in faults if not isinstance(fault, Throttle)]
        self._left = [fault.times for fault in self._faults]
        self._random = random.Random(seed)  # noqa: S311  (it is to be the same again)

    def next(self) -> Fate:
        """The fate of the next request. Of two that end it, the first counts."""
        if not self._faults:
            return SPARED
        refuse: Refuse | None = None
        time_out: TimeOut | None = None
        delay = 0.0
        failing: list[FailRecords] = []
        shuffles = False
        for index, fault in enumerate(self._faults):
            if not self._strikes(index, fault):
                continue
            match fault:
                case FailRecords():
                    failing.append(fault)
                case Shuffle():
                    shuffles = True
                case Slow():
                    delay += fault.seconds
                case Refuse() if time_out is None:
                    refuse = refuse or fault
                case TimeOut() if refuse is None:
                    time_out = time_out or fault
        return Fate(refuse, time_out, delay, tuple(failing), shuffles)

    def fails(self, failing: Sequence[FailRecords]) -> str | None:
        """The code with which the next record of a request fails, or None."""
        return next((fault.code for fault in failing if self._random.random() < fault.share), None)

    def shuffle(self, records: list[int]) -> None:
        """Bring the records of a request into another order."""
        self._random.shuffle(records)

    def _strikes(self, index: int, fault: FailRecords | Shuffle | Refuse | TimeOut | Slow) -> bool:
        left = self._left[index]
        # The share of failing records is drawn for each record, not for the request.
        is_spared = isinstance(fault, Refuse | TimeOut | Slow) and self._random.random() >= fault.share
        if left == 0 or is_spared:
            return False
        if left is not None:
            self._left[index] = left - 1
        return True
