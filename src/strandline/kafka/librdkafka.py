"""Clients of librdkafka made from a user's settings, and its errors as ours."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Timer
from types import MappingProxyType
from typing import Any, TypeVar

from confluent_kafka import KafkaError as Code
from confluent_kafka import KafkaException

from strandline.errors import AuthenticationFailed, BrokerRefused, KafkaError, NoBroker, OptionError
from strandline.kafka.listener import explained

Client = TypeVar("Client")

# What every producer of ours has: a record is reported safe when all replicas have it, once.
SAFE: dict[str, str | int | float | bool] = {
    "acks": "all",
    "enable.idempotence": True,
    # With more, the first record of a new topic may be reported safe and be lost (KAFKA-15591).
    "max.in.flight.requests.per.connection": 1,
}
# They say that somebody is not to be reached now, which passes.
AWAY = frozenset({Code._ALL_BROKERS_DOWN, Code._TRANSPORT, Code._RESOLVE, Code._TIMED_OUT})

# Whoever has waited for so long wants to know what for.
PATIENCE_S = 3.0

log = logging.getLogger(__name__)


def client(make: Callable[[dict[str, Any]], Client], settings: Mapping[str, object]) -> Client:
    """Make a client that logs nothing by itself."""
    try:
        return make({**settings, "log_level": 0})
    except KafkaException as error:
        raise OptionError(_masked(error.args[0].str().strip(), settings)) from None
    except (TypeError, ValueError) as error:
        raise OptionError(_masked(str(error), settings)) from None


def _masked(text: str, settings: Mapping[str, object]) -> str:
    """An error without the values that it quotes: any of them may be a secret."""
    for value in sorted((str(value) for value in settings.values()), key=len, reverse=True):
        # A short one may be part of any word.
        text = text.replace(value if len(value) >= 4 else f'"{value}"', "***")
    return text


@contextmanager
def asking(address: str, settings: Mapping[str, object] = MappingProxyType({})) -> Iterator[None]:
    """Around what waits for an answer of librdkafka: that it is waited for is logged, and its errors become ours.

    With the settings of the client, also a listener that they do not fit is told.
    """
    waiting = Timer(PATIENCE_S, log.warning, ["waiting for Kafka at %s ...", address])
    waiting.daemon = True
    waiting.start()
    try:
        yield
    except KafkaException as error:
        raise explained(translated(error.args[0], address), settings) from None
    except TimeoutError:
        raise explained(NoBroker(address, "timed out"), settings) from None
    finally:
        waiting.cancel()


def translated(error: Code, where: object, address: str | None = None) -> KafkaError:
    """An error of librdkafka or of a broker as one of ours; `address` is Kafka's, where `where` is something in it."""
    if error.code() in {Code._AUTHENTICATION, Code._SSL, Code.SASL_AUTHENTICATION_FAILED}:
        return AuthenticationFailed(error.str())
    if error.code() in AWAY:
        # Behind what was asked for, which says nothing of why.
        return NoBroker(address or str(where), error.str().rpartition(": ")[2])
    return BrokerRefused(error.name(), where)
