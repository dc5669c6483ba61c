"""The fence: whether a task may send, asked where the records are sent.

A task may live on when its leader is gone, or when another attempt at its batch has begun. So it asks Postgres and not
its leader, and counts down on its own clock what that has granted.
"""

import threading
from datetime import timedelta
from types import TracebackType
from typing import Self

from strandline.cdc.lease import AGAIN, ANSWER, MARGIN, change_lease
from strandline.cdc.session import Session
from strandline.clock import AwakeClock, Clock
from strandline.core import lease as core
from strandline.core.lease import Claim, Refused
from strandline.errors import NotLeading, PostgresError
from strandline.units import Nanos, nanos

GRANT = timedelta(seconds=3)


class Fence:
    """Where records are sent: whether this task may send, asked before every request.

    Its making claims (batch, attempt) in the name of a leadership, and waits until no other task can still send under
    an older claim. A thread renews the grant; `left` looks at our own clock alone.
    """

    def __init__(
        self,
        dsn: str,
        name: str,
        leadership: int,
        batch: int,
        attempt: int,
        *,
        is_shared: bool = False,
        grant: timedelta = GRANT,
        clock: Clock | None = None,
    ) -> None:
        """A claim that is shared is made by several tasks at once. None of them gives it back for all."""
        self.name = name
        self.leadership = leadership
        self.claim = Claim(batch, attempt)
        self._is_shared = is_shared
        self._grant = nanos(grant)
        self._clock = clock or AwakeClock()
        self._until = Nanos(0)
        self._failure: NotLeading | None = None
        self._ended = threading.Event()
        self._session = Session(dsn, timeout=max(grant.total_seconds(), 1.0))
        try:
            wait = self._renew()
            if wait:
                self._ended.wait(wait / 1e9)
                self._renew()
            if self._failure is not None:
                raise self._failure
        except (PostgresError, NotLeading):
            self._session.close()
            raise
        self._thread = threading.Thread(target=self._keep, name="strandline-fence", daemon=True)
        self._thread.start()

    def left(self) -> Nanos:
        """For how long records may be sent without another word from Postgres; raises NotLeading when they may not."""
        left = self._until - self._clock.monotonic()
        if self._failure is None and left <= 0:
            self._failure = NotLeading(self.name, "the leave to send ran out before it could be renewed")
        if self._failure is not None:
            raise self._failure
        return Nanos(left)

    __call__ = left

    def _keep(self) -> None:
        while not self._ended.wait(self._grant / 1e9 / AGAIN) and self._failure is None:
            try:
                self._renew()
            except PostgresError as error:
                self._failure = NotLeading(self.name, f"its lease cannot be read: {error}")

    def _renew(self) -> Nanos:
        asked = self._clock.monotonic()
        granted, now = change_lease(
            self._session,
            self.name,
            lambda found, now: core.claim(found, self.leadership, self.claim, now=now, grant=self._grant),
        )
        if isinstance(granted, Refused):
            self._failure = NotLeading(self.name, granted.reason)
            return Nanos(0)
        self._until = core.countdown(asked, Nanos(granted.lease.granted - now), nanos(MARGIN))
        return granted.wait

    def close(self) -> None:
        """Nothing more is sent: whoever comes next need not wait."""
        self._ended.set()
        self._thread.join(ANSWER * 2)
        try:
            if not self._thread.is_alive() and not self._is_shared:
                change_lease(
                    self._session,
                    self.name,
                    lambda found, now: core.finish(found, self.leadership, self.claim, now=now),
                )
        except PostgresError:
            pass  # It runs out by itself.
        finally:
            self._failure = self._failure or NotLeading(self.name, "the task has ended")
            self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
