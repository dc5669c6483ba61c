"""`strandline cdc run` without Spark, which takes a minute to start: lease, fence, slot, epochs, as a program.

It keeps its epochs as Spark does: each is noted in a file of its own before it is read, and in another when it is done,
and whoever finds that file there already has been overtaken.
"""

import json
import logging
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from strandline.cdc.fence import Fence
from strandline.cdc.kinesis import Sender
from strandline.cdc.lease import acquire
from strandline.cdc.limits import SendOptions
from strandline.cdc.session import Session
from strandline.cdc.slot import take_over
from strandline.errors import (
    ChangesLost,
    ConnectionLost,
    NotLeading,
    PostgresHindered,
    PostgresUnreachable,
    SlotBusy,
)
from strandline.spark.postgres_wal import WalReader
from strandline.spark.wal_options import WalOptions
from tests.cdc.epochs import Checkpoint, Query

ASK_EVERY = timedelta(seconds=5)
LEASE = timedelta(seconds=2)
GRANT = timedelta(seconds=1)
PASSING = (NotLeading, ConnectionLost, PostgresHindered, PostgresUnreachable, SlotBusy, FileExistsError)

log = logging.getLogger(__name__)


class Directory(Checkpoint):
    """A checkpoint that instances share."""

    def __init__(self, path: Path) -> None:
        self._path = path
        numbers = sorted(int(file.name) for file in (path / "planned").iterdir() if file.name.isdigit())
        planned = [json.loads((path / "planned" / str(number)).read_text()) for number in numbers]
        super().__init__(planned, sum(file.name.isdigit() for file in (path / "done").iterdir()))

    def plan(self, end: dict[str, Any]) -> None:
        self._note("planned", len(self.planned), json.dumps(end))
        super().plan(end)

    def finish(self) -> None:
        self._note("done", self.done, "")
        super().finish()

    def _note(self, kind: str, number: int, text: str) -> None:
        """All of it at once, and only if it is not there."""
        fresh = self._path / kind / f"{number}.{os.getpid()}"
        fresh.write_text(text)
        try:
            os.link(fresh, self._path / kind / str(number))
        finally:
            fresh.unlink()


def main(stream: str, checkpoint: str, *source: str) -> NoReturn:
    """Lead whenever it can."""
    logging.basicConfig(level=logging.WARNING)
    dsn, slot, publication, epoch_rows = source
    options = WalOptions.parse({
        "dsn": dsn, "slot": slot, "publications": publication, "splitKeyChanges": "true",
        "maxRowsPerEpoch": epoch_rows, "idleEvery": "200ms",
    })  # fmt: skip
    sender = Sender(stream, options=SendOptions(max_request_records=50))
    while True:
        try:
            lead(options, sender, Path(checkpoint))
        except PASSING as error:
            log.warning("%s", error)


def lead(options: WalOptions, sender: Sender, checkpoint: Path) -> None:
    """Epoch after epoch, for as long as it leads."""
    dsn, slot = options.dsn, options.slot
    leadership = acquire(dsn, slot, f"test:{os.getpid()}", wait=ASK_EVERY, term=LEASE)
    if leadership is None:
        return
    with leadership:
        with Session(dsn) as session:
            take_over(session, slot)
        number = leadership.number
        log.warning("leading '%s', number %d", slot, number)
        query = Query(
            lambda: WalReader(options),
            sender,
            Directory(checkpoint),
            leadership=number,
            fenced=lambda epoch: Fence(dsn, slot, number, epoch, 0, grant=GRANT),
        )
        try:
            while True:
                leadership.check()
                try:
                    query.epoch()
                except ChangesLost:
                    # As `watch` does: where we stood still meanwhile, it is what another leader has read.
                    leadership.check(once=True)
                    raise
        finally:
            query.reader.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
