"""Whether the target can be reached. While it cannot, the clock stands still and connections are tried one by one.

A connection that this machine cannot make, for want of file descriptors or ports, says nothing about the target. The
clock runs on then: connections that the source closes are closed, and make room.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from datetime import timedelta
from enum import Enum

from strandline import tls
from strandline.core.retry import Backoff
from strandline.errors import StrandlineError, TargetDown, TargetRefused
from strandline.replay.leave import Leave, Reason
from strandline.replay.target import Target
from strandline.replay.timeline import Timeline
from strandline.units import Nanos

BACKOFF = Backoff(first=Nanos(100_000_000), ceiling=Nanos(2_000_000_000), jitter=0)
MOST_REFUSALS = 4
"""So often a request may be refused a connection, where the clock runs on, before it has failed."""
OURS = {errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL}
"""What is wrong with this machine, and not with the target."""

HOST_MISMATCH = {62, 64}
"""OpenSSL's codes of a certificate that does not name the host, or the address, that was asked for."""
OUT_OF_DATE = {9, 10}
"""OpenSSL's codes of a certificate that is not valid yet, or no more."""

REMEDY = "raise the limit on open files (ulimit -n) or on local ports"

log = logging.getLogger(__name__)


def is_ours(error: OSError | TimeoutError) -> bool:
    """Whether a connection could not be made because of this machine."""
    if isinstance(error, socket.gaierror):
        # Without a descriptor no name can be looked up either, and the error does not tell that from a wrong name.
        try:
            socket.socket().close()
        except OSError as cause:
            error = cause
    return error.errno in OURS


def _certificate_remedy(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code in HOST_MISMATCH:
        return "write a --target whose host the certificate names"
    if error.verify_code in OUT_OF_DATE:
        return "renew it, or set the clock of this machine right"
    return "name its authority with --target-ca"


class WhenDown(Enum):
    """What happens to the clock while the target cannot be reached."""

    PAUSE = "pause"
    """It stops, and goes on when the target is back."""
    FAIL = "fail"
    """It runs on, and requests fail."""


class Refused(Enum):
    """What to do with a request whose connection could not be made, other than to wait and try again."""

    PARK = "wait until the target is back"
    FAIL = "give it up"


class Health:
    """Told of every connection that was refused; stops and restarts the clock."""

    def __init__(
        self,
        target: Target,
        timeline: Timeline,
        leave: Leave,
        fail: Callable[[StrandlineError], None],
        *,
        when_down: WhenDown,
        patience: timedelta,
        sendings: Callable[[], int],
    ) -> None:
        self._target = target
        self._timeline = timeline
        self._leave = leave
        self._fail = fail
        self._when_down = when_down
        self._patience = patience
        self._sendings = sendings
        # Only a request that goes out ends the time of being down: to be reached now and then is not enough.
        self._sent_before = -1
        self._down_since = 0.0
        self._probing: asyncio.Task[None] | None = None
        self._is_short = False

    def refused(self, refusals: int, error: OSError | TimeoutError) -> Nanos | Refused:
        """A request was refused a connection, so often by now: how long to wait, or what else to do."""
        if isinstance(error, ssl.SSLCertVerificationError):
            problem = f"its certificate is not taken ({error.verify_message}); {_certificate_remedy(error)}"
            self._fail(TargetRefused(self._target.url, problem))
            return Refused.PARK
        if self._is_wrong_use(error):
            return Refused.PARK
        if self._when_down is WhenDown.FAIL:
            return Refused.FAIL if refusals >= MOST_REFUSALS else BACKOFF.delay(refusals, 0)
        if self._probing is None:
            log.warning("%s cannot be reached (%s): the clock stands still until it can", self._target.url, error)
            self._timeline.stop()
            loop = asyncio.get_running_loop()
            if self._sendings() > self._sent_before:
                self._sent_before, self._down_since = self._sendings(), loop.time()
            self._leave.withdraw(Reason.TARGET_DOWN)
            self._probing = loop.create_task(self._probe(str(error)))
        return Refused.PARK

    def _is_wrong_use(self, error: OSError | TimeoutError) -> bool:
        """End the replay where no TLS is spoken to who asks for it. Of a target that took requests, that passes."""
        if self._sendings() or not tls.is_answered_without(error):
            return False
        problem = f"the target does not speak TLS on this port; write http://{self._target.authority}, or another port"
        self._fail(TargetRefused(self._target.url, problem))
        return True

    def short(self, times: int, error: OSError | TimeoutError) -> Nanos | Refused:
        """This machine could not make a request's connection, so often by now: how long to wait, or what else to do."""
        if times * BACKOFF.ceiling / 1e9 > self._patience.total_seconds():
            problem = f"no connection could be made from here in {times} attempts ({error}); {REMEDY}"
            self._fail(TargetRefused(self._target.url, problem))
            return Refused.PARK
        if not self._is_short:
            self._is_short = True
            log.warning("no more connections to %s can be made for now (%s); %s", self._target.url, error, REMEDY)
        return BACKOFF.delay(times, 0)

    async def _probe(self, problem: str) -> None:
        now = "can be reached"
        try:
            async with asyncio.timeout_at(self._down_since + self._patience.total_seconds()):
                attempt = 1
                while True:
                    await asyncio.sleep(BACKOFF.delay(attempt, 0) / 1e9)
                    attempt += 1
                    try:
                        await self._target.try_connection()
                        break
                    except OSError as error:
                        if is_ours(error):
                            # Nothing makes room while the clock stands still.
                            now = "is tried"
                            break
                        if self._is_wrong_use(error):
                            return
                        problem = str(error)
        except TimeoutError:
            self._fail(TargetDown(self._target.url, self._patience, problem))
            return
        stood = self._timeline.go_on()
        log.warning("%s %s again; the clock stood still for %.1f s", self._target.url, now, stood / 1e9)
        self._probing = None
        self._leave.restore(Reason.TARGET_DOWN)

    def close(self) -> None:
        """Try no more."""
        if self._probing is not None:
            self._probing.cancel()
