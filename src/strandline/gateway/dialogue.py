"""What a client says, and what is done about it: all of a message is checked before anything of it is done."""

import asyncio
import logging
from collections.abc import Sequence

from websockets.frames import CloseCode

from strandline.errors import KafkaError
from strandline.gateway.session import Refused, Replay, Session
from strandline.gateway.whereabouts import NotHere, as_text
from strandline.wire.asked import (
    ERROR,
    RECONNECT_ERROR,
    Ack,
    Auth,
    Going,
    Missed,
    NotUnderstood,
    Ping,
    Reconnect,
    Resume,
    Said,
    Subscribe,
    Unsubscribe,
    partitions_of,
    positions_of,
)
from strandline.wire.resume_token import BadToken, Position, Positions

# How long a client waits for what Kafka says of a topic that it knows and this process does not.
LOOK_S = 5.0
# When it may ask again, where that was not to be learned.
AGAIN_S = 1.0
# What a client may say meanwhile, and is done behind it.
MOST_HELD = 64

log = logging.getLogger(__name__)


class NotSeenYet(Exception):
    """Something that another process may have seen before this one."""


def do(session: Session, message: Said) -> None:
    """Do what a message asks for, behind all that came before it, or tell the client why not."""
    if session.held is None or isinstance(message, Ping):
        _do(session, message)
    elif len(session.held) < MOST_HELD:
        session.held.append(message)
    else:
        _put_off(session, message)


def _do(session: Session, message: Said, *, has_looked: bool = False) -> None:
    try:
        _act(session, message, has_looked)
    except (NotHere, NotSeenYet) as error:
        if not has_looked:
            session.hold(_look(session, message))
        elif isinstance(error, NotHere) and not error.is_signed:
            session.tell_error(error.code, str(error), answer=_answer(message))
        else:
            _put_off(session, message)
    except NotUnderstood as error:
        session.tell_error(error.code, str(error), answer=_answer(message))
    except Refused as error:
        session.tell_error(error.code, str(error), error.retry_after)


def _act(session: Session, message: Said, has_looked: bool) -> None:
    match message:
        case Subscribe(data=data):
            _subscribe(session, data.channels)
        case Unsubscribe(data=data):
            session.forgo(data.channels)
        case Reconnect(data=missed):
            _reconnect(session, missed)
        case Resume(data=going):
            _resume(session, going, has_looked=has_looked)
        case Ack(data=more):
            session.give_credit(more.credit)
        case Auth(data=fresh):
            _show(session, fresh.token)
        case Ping():
            session.tell({"type": "pong"})


async def _look(session: Session, message: Said) -> None:
    """Look what Kafka has now before something is said to be gone, or never to have been; then do the message."""
    try:
        async with asyncio.timeout(LOOK_S):
            await session.server.look()
    except (KafkaError, TimeoutError):
        _put_off(session, message)
    except Exception:
        log.exception("what Kafka has could not be looked up")
        session.close(CloseCode.INTERNAL_ERROR, "the gateway has failed; resume from where you are")
    else:
        _do(session, message, has_looked=True)
    held, session.held = session.held or [], None
    for waiting in held:
        do(session, waiting)


def _put_off(session: Session, message: Said) -> None:
    text = "what Kafka has of the topic is not known now"
    session.tell_error("unavailable", text, AGAIN_S, answer=_answer(message))


def _answer(message: Said) -> str:
    return RECONNECT_ERROR if isinstance(message, Reconnect) else ERROR


def _subscribe(session: Session, channels: Sequence[str]) -> None:
    session.want(_allowed(session, channels))
    if session.missed is not None:
        missed, session.missed = session.missed, None
        try:
            _reconnect(session, missed)
        except NotUnderstood as error:
            session.tell_error(error.code, str(error), answer=RECONNECT_ERROR)
    session.at.begin_live()
    told = {"type": "subscribed", "channels": list(channels), "positions": as_text(session.positions())}
    # Positions do not tell a topic from another of its name; a token does.
    session.tell({**told, "token": session.server.token(session)})


def _reconnect(session: Session, missed: Missed) -> None:
    places = session.at.places(positions_of(missed))
    if not session.wanted:
        session.missed = missed
        # Nothing is complete yet, and who waits for an answer before it subscribes is not to wait for ever.
        told = {"status": "partial", "messages_replayed": 0, "message": "Subscribe, and what you missed comes first"}
        following = session.server.token(session, session.at.positions_of(places))
        session.tell({"type": "reconnect_ack", **told, "next": following})
        return
    replay = Replay("reconnect_ack", session.server.limits.page, waits=False, client_id=missed.client_id)
    session.go_behind(places, replay)


def _resume(session: Session, going: Going, *, has_looked: bool) -> None:
    if going.since is not None and (going.token is not None or going.positions is not None):
        raise NotUnderstood("bad_message", "a time, or a token and positions, not both")
    fresh = _allowed(session, going.channels)
    if not session.wanted and not fresh:
        raise NotUnderstood("no_channels", "nothing is subscribed to: name channels")
    wished = _wished(session, going)
    if session.at.is_of_another_log(wished) and not has_looked:
        raise NotSeenYet
    is_known = going.token is not None or not wished.keys().isdisjoint(session.server.hub.topics())
    # Who names nothing that there is has the wrong gateway, or a wrong name.
    gone = session.at.take_gone(wished) if is_known else []
    places = session.at.places(wished) if going.since is None else session.at.places_at(going.since)
    session.want(fresh)
    for partition, gap in gone:
        session.tell_gaps(partition, [gap])
    credit = going.credit or session.server.limits.page
    session.go_behind(places, Replay("resume_ack", credit, waits=True, client_id=going.client_id))
    session.at.begin_live()


def _wished(session: Session, going: Going) -> Positions:
    """Where it wants to go on; positions are newer than the token that they come with."""
    places: Positions = {}
    if going.token is not None:
        server = session.server
        try:
            places = server.signer.read(going.token, session.identity.subject, server.now())
        except BadToken as error:
            raise NotUnderstood(error.fault.value, "the token is not taken; resume by positions") from None
    for topic, numbers in (going.positions or {}).items():
        known = places.setdefault(topic, {})
        for number, offset in partitions_of(topic, numbers).items():
            before = known.get(number)
            if before is None:
                known[number] = Position(offset)
            elif offset > before.offset:
                known[number] = Position(offset, before.topic_id, before.epoch, before.offset)
    return places


def _show(session: Session, token: str) -> None:
    """Go on as the same client for longer; what a newer token does not allow is unsubscribed."""
    identity = session.server.identify(token)
    if identity.subject != session.identity.subject:
        raise Refused("not_allowed", f"the token is not of {session.identity.subject}")
    session.identity = identity
    allowed = identity.allowed
    gone = [] if allowed is None else [pattern for pattern in session.wanted if not allowed.covers(pattern)]
    session.tell({"type": "authenticated", "expires": identity.expires})
    if gone:
        session.forgo(gone)


def _allowed(session: Session, channels: Sequence[str]) -> list[str]:
    """Those of the channels that are new to it, where it may have all of them."""
    allowed = session.identity.allowed
    if allowed is not None:
        refused = next((channel for channel in channels if not allowed.covers(channel)), None)
        if refused is not None:
            raise Refused("not_allowed", f"channel '{refused}' is not for {session.identity.subject}")
    fresh = [channel for channel in dict.fromkeys(channels) if channel not in session.wanted]
    most = session.server.limits.subscriptions
    if len(session.wanted) + len(fresh) > most:
        raise Refused("too_many_subscriptions", f"at most {most} channels")
    return fresh
