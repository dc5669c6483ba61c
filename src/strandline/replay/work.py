"""A request on its way to the target, and what came of each sending."""

from strandline.replay.spool import Spool
from strandline.units import Nanos
from strandline.wire.answers import Answer
from strandline.wire.transactions import Transaction

NEVER = Nanos(0)


class Attempt:
    """One sending of a request; times of the monotonic clock."""

    __slots__ = ("answer", "ended", "error", "sent")

    def __init__(self, sent: Nanos, ended: Nanos, answer: Answer | None, error: str | None) -> None:
        self.sent = sent
        self.ended = ended
        self.answer = answer
        self.error = error


class Work:
    """A request on its way. Nothing that it holds leads back to it."""

    __slots__ = (
        "answer",
        "attempts",
        "body",
        "due",
        "error",
        "head",
        "is_left",
        "is_over",
        "refusals",
        "shortages",
        "spool",
        "transaction",
    )

    def __init__(
        self, transaction: Transaction, spool: Spool, *, error: str | None = None, is_left: bool = False
    ) -> None:
        self.transaction = transaction
        self.spool = spool
        """The captured bytes."""
        self.due = NEVER
        self.head = b""
        """As it is sent."""
        self.body: bytes | None = None
        """As it is sent, None where it is the captured one."""
        self.attempts: list[Attempt] = []
        self.answer: Answer | None = None
        """The target's last answer, if it is whole."""
        self.refusals = 0
        """How often the target did not take a connection for it."""
        self.shortages = 0
        """How often this machine could not make one."""
        self.error = error
        self.is_over = False
        self.is_left = is_left
        """Whether its records are kept for another run, whatever became of it in this one."""
