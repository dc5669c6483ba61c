"""The session beside a stream of changes: what the slot needs to be written to Postgres while it is read."""

import logging

from strandline.cdc.acknowledged import acknowledge
from strandline.cdc.session import Session
from strandline.cdc.slot import SlotIdentity, heartbeat
from strandline.errors import PostgresError, PostgresHindered, PostgresRefused

log = logging.getLogger(__name__)


class Keeper:
    """Opens its session when it is needed first. Without a leadership it notes nothing: there is no standby to tell."""

    def __init__(self, dsn: str, identity: SlotIdentity, leadership: int | None) -> None:
        self._dsn = dsn
        self._identity = identity
        self._leadership = leadership
        self._noted = 0
        self._beats = True
        self._session: Session | None = None

    def note(self, end: int) -> None:
        """Write that all up to here was delivered. To be called before the slot is told."""
        if self._leadership is not None and end > self._noted:
            try:
                acknowledge(self._open(), self._identity, end, self._leadership)
            except PostgresError:
                self.close()
                raise
            self._noted = end

    def beat(self, end: int) -> None:
        """Write a heartbeat, where the log has grown beyond `end`. A server that takes none is asked once."""
        if not self._beats:
            return
        try:
            heartbeat(self._open(), beyond=end)
        except PostgresError as error:
            if isinstance(error, PostgresRefused) and not isinstance(error, PostgresHindered):
                self._beats = False
                told = "no heartbeats: %s; the slot moves on only as far as the server tells by itself"
                log.warning(told, error.problem)
                return
            self.close()
            raise

    def _open(self) -> Session:
        self._session = self._session or Session(self._dsn)
        return self._session

    def close(self) -> None:
        """End the session."""
        session, self._session = self._session, None
        if session is not None:
            session.close()
