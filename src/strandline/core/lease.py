"""Who may publish, and until when: the decisions over a lease that several instances share.

The lease is one row, changed by comparing and setting: somebody reads it together with the time of the place where it
lies, decides here, and writes if nobody else has written meanwhile. All times in it are of that one clock.

- A *leadership* is a number that only rises. It is taken when the lease before it is over, and renewed before it is.
- A *claim* is made by each task that sends records, in the name of a leadership. The newest (batch, attempt) counts. It
  is granted for a short time, never beyond the lease, and again and again. Whoever supersedes a claim waits until its
  grant is over, for its owner may be frozen in the belief that it has it.
"""

from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from strandline.units import Nanos

NOBODY = -1


class Claim(NamedTuple):
    """Which task sends: the batch that it belongs to, and which attempt at it this is."""

    batch: int
    attempt: int


NO_CLAIM = Claim(NOBODY, NOBODY)
SNAPSHOT = Claim(NOBODY, 0)
"""Of all tasks of a snapshot together, below every batch. It is not finished: the first batch waits its grant out."""


class Lease(Struct, frozen=True, kw_only=True):
    """The row."""

    leadership: int
    holder: str
    expires: Nanos
    claim: Claim
    granted: Nanos
    """Until when whoever made the claim may send."""


class Refused(Struct, frozen=True):
    """Why not, and after how long it is worth another look (None: never)."""

    reason: str
    wait: Nanos | None = None


class Granted(Struct, frozen=True):
    """The row with the claim in it, and how long to wait before anything is sent."""

    lease: Lease
    wait: Nanos


def take(found: Lease | None, holder: str, *, now: Nanos, term: Nanos) -> Lease | Refused:
    """Begin the next leadership."""
    if found is not None and now < found.expires:
        return Refused(f"led by {found.holder}", Nanos(found.expires - now))
    number = 1 if found is None else found.leadership + 1
    return Lease(leadership=number, holder=holder, expires=Nanos(now + term), claim=NO_CLAIM, granted=now)


def renew(found: Lease | None, leadership: int, *, now: Nanos, term: Nanos) -> Lease | Refused:
    """Go on leading. A lease that has run out is not taken up again, even if nobody else has taken it."""
    refusal = _not_led(found, leadership, now)
    if found is None or refusal is not None:
        return refusal or Refused("its row is gone")
    return replace(found, expires=Nanos(max(found.expires, now + term)))


def release(found: Lease | None, leadership: int, *, now: Nanos) -> Lease | Refused:
    """End a leadership before its time: as soon as nobody who sends in its name may still believe in it."""
    refusal = _not_led(found, leadership, now)
    if found is None or refusal is not None:
        return refusal or Refused("its row is gone")
    return replace(found, expires=Nanos(min(found.expires, max(now, found.granted))))


def claim(found: Lease | None, leadership: int, wanted: Claim, *, now: Nanos, grant: Nanos) -> Granted | Refused:
    """Claim, or go on with a claim, in the name of a leadership."""
    refusal = _not_led(found, leadership, now)
    if found is None or refusal is not None:
        return refusal or Refused("its row is gone")
    if wanted < found.claim:
        return Refused(
            f"batch {found.claim.batch}, attempt {found.claim.attempt}, has taken over from {_named(wanted)}"
        )
    wait = 0 if wanted == found.claim else max(0, found.granted - now)
    # Not before the one it takes over from has ended, and never beyond the lease.
    until = min(found.expires, max(now + grant, found.granted))
    return Granted(replace(found, claim=wanted, granted=Nanos(until)), Nanos(wait))


def finish(found: Lease | None, leadership: int, wanted: Claim, *, now: Nanos) -> Lease | Refused:
    """Give a grant back: nothing more is sent under this claim."""
    if found is None or found.leadership != leadership or found.claim != wanted:
        return Refused("another has taken over")
    return replace(found, granted=Nanos(min(found.granted, now)))


def countdown(asked: Nanos, left: Nanos, margin: Nanos) -> Nanos:
    """Until when, on one's own clock, to believe what was `left` when the answer was made.

    The answer was made after the question was asked, so counting from the question never counts too long; the margin is
    for clocks that do not run alike.
    """
    return Nanos(asked + left - margin)


def _not_led(found: Lease | None, leadership: int, now: Nanos) -> Refused | None:
    if found is None:
        return None
    if found.leadership != leadership:
        return Refused(f"{found.holder} leads since, with number {found.leadership} against {leadership}")
    if now >= found.expires:
        return Refused(f"the lease of leadership {leadership} ran out {(now - found.expires) / 1e9:.1f} s ago")
    return None


def _named(wanted: Claim) -> str:
    return f"batch {wanted.batch}, attempt {wanted.attempt}"
