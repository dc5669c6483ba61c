"""How far a client's connection and its broker's have come, as tables: what is not in them cannot happen."""

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Final, TypeVar


class Client(Enum):
    """A connection of a client."""

    GREETING = auto()
    """Has to sign in; until then only versions are told."""
    SIGNING_IN = auto()
    ROUTING = auto()
    DRAINING = auto()
    """Reads nothing more; what was asked is still answered."""
    CLOSED = auto()


class ClientEvent(Enum):
    """What happens to it."""

    SHAKE = auto()
    SIGNED_IN = auto()
    DRAIN = auto()
    CLOSE = auto()


class Broker(Enum):
    """The connection to a broker that belongs to it."""

    CREATED = auto()
    CONNECTING = auto()
    CONNECTED = auto()
    FAILED = auto()
    CLOSED = auto()


class BrokerEvent(Enum):
    """What happens to it."""

    NEEDED = auto()
    OPENED = auto()
    REFUSED = auto()
    CLOSE = auto()


CLIENT: Final[Mapping[tuple[Client, ClientEvent], Client]] = MappingProxyType(
    {
        (Client.GREETING, ClientEvent.SHAKE): Client.SIGNING_IN,
        (Client.SIGNING_IN, ClientEvent.SHAKE): Client.SIGNING_IN,
        (Client.SIGNING_IN, ClientEvent.SIGNED_IN): Client.ROUTING,
        # A client signs in anew before its session ends (KIP-368).
        (Client.ROUTING, ClientEvent.SHAKE): Client.ROUTING,
        (Client.ROUTING, ClientEvent.SIGNED_IN): Client.ROUTING,
        # What had begun to come when it was to end is still answered.
        (Client.DRAINING, ClientEvent.SHAKE): Client.DRAINING,
        (Client.DRAINING, ClientEvent.SIGNED_IN): Client.DRAINING,
        **{(state, ClientEvent.DRAIN): Client.DRAINING for state in Client if state is not Client.CLOSED},
        **{(state, ClientEvent.CLOSE): Client.CLOSED for state in Client},
    }
)
BROKER: Final[Mapping[tuple[Broker, BrokerEvent], Broker]] = MappingProxyType(
    {
        (Broker.CREATED, BrokerEvent.NEEDED): Broker.CONNECTING,
        (Broker.CONNECTING, BrokerEvent.NEEDED): Broker.CONNECTING,
        (Broker.CONNECTED, BrokerEvent.NEEDED): Broker.CONNECTED,
        (Broker.CONNECTING, BrokerEvent.OPENED): Broker.CONNECTED,
        (Broker.CONNECTING, BrokerEvent.REFUSED): Broker.FAILED,
        **{(state, BrokerEvent.CLOSE): Broker.CLOSED for state in Broker},
    }
)

State = TypeVar("State", Client, Broker)
Event = TypeVar("Event", ClientEvent, BrokerEvent)


def after(table: Mapping[tuple[State, Event], State], state: State, event: Event) -> State:
    """The state behind an event."""
    try:
        return table[state, event]
    except KeyError:
        raise RuntimeError(f"{event.name} in state {state.name}") from None
