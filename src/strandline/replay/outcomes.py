"""What became of a request, told as a result: the captured side, what was sent, and each attempt."""

from strandline.replay.results import Attempt, Message, Outcome
from strandline.replay.retries import same_body, verdict
from strandline.replay.work import NEVER, Work
from strandline.units import Nanos
from strandline.wire.answers import Answer


def outcome_of(work: Work, *, to_wall: Nanos, keep: int, digest: str | None = None) -> Outcome:
    """The outcome, its times by the clock on the wall: monotonic time plus `to_wall`.

    Of the captured body at most `keep` bytes are taken; for a longer one its SHA-256 is to be given.
    """
    transaction = work.transaction
    record = transaction.record
    spool = work.spool
    captured = len(transaction.head)
    length = spool.size - captured
    kept = spool.load(captured + keep)[captured:] if length else b""
    captured_request = Message(head=transaction.head, body=kept, length=length, sha256=digest)
    sent = None
    if work.attempts and work.body is None:
        sent = Message(head=work.head, body=kept, length=length, sha256=digest)
    elif work.attempts:
        sent = Message(head=work.head, body=work.body or b"")
    source, target = transaction.answer, work.answer
    return Outcome(
        partition=record.partition,
        offset=record.offset,
        ordinal=transaction.ordinal,
        connection=transaction.key.connection,
        node=transaction.key.node,
        generation=record.generation,
        records=[(held.partition, held.offset) for held in transaction.records],
        source_request=captured_request,
        source_response=_message(source),
        source_complete=source is not None and source.complete,
        target_request=sent,
        attempts=[
            Attempt(
                response=_message(attempt.answer),
                sent=Nanos(attempt.sent + to_wall),
                first_byte=None if attempt.answer is None else Nanos(attempt.answer.began + to_wall),
                end=Nanos(attempt.ended + to_wall),
                error=attempt.error,
            )
            for attempt in work.attempts
        ],
        source_time=transaction.began,
        source_end=None if source is None else source.ended,
        due=None if work.due == NEVER else Nanos(work.due + to_wall),
        verdict=verdict(source, target),
        same_body=same_body(source, target),
        error=work.error,
    )


def _message(answer: Answer | None) -> Message | None:
    if answer is None:
        return None
    return Message(head=answer.head, body=answer.body, length=answer.length, sha256=answer.digest, status=answer.status)
