"""The answer to a request that is refused: an error on everything that was asked for, in the shape of its API."""

from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, get_args, get_type_hints

from kio.schema.errors import ErrorCode
from kio.static.primitive import TZAware, i32Timedelta

from strandline.wire.kafka_frames import answer_type

NO_TIME = i32Timedelta.parse(timedelta(0))
LONG_AGO = TZAware.parse(datetime.fromtimestamp(0, UTC))
# What a list of an answer is called in its request, where the names differ.
ASKED_AS = {
    "responses": ("topic_data", "resources", "topics", "topic_names"),
    "partition_responses": ("partition_data",),
    "partitions": ("partition_indexes",),
    "results": ("resources", "topics", "groups_names", "creations"),
    "filter_results": ("filters",),
    "groups": ("group_ids",),
    "transaction_states": ("transactional_ids",),
    "replica_election_results": ("topic_partitions",),
    "partition_result": ("partitions",),
    "coordinators": ("coordinator_keys",),
    "results_by_topic_v3_and_below": ("v3_and_below_topics",),
    "results_by_transaction": ("transactions",),
    "topic_results": ("topics",),
    "results_by_partition": ("partitions",),
}
# The same for what an item is known by.
CALLED = {"partition_index": "partition", "topic_name": "name", "user": "name"}
NAMES = ("name", "group_id", "transactional_id", "topic", "key")
NUMBERS = ("partition_index", "partition_id", "index")
NOT_KNOWN = -1
NOTHING = {bool: False, str: "", bytes: b"", timedelta: NO_TIME, TZAware: LONG_AGO}


def refused(request: Any, code: ErrorCode, reason: str | None = None) -> Any:
    """The answer that refuses a request as a whole."""
    return refused_part(answer_type(request.__api_key__, request.__version__), request, code, reason)


def refused_part(kind: Any, asked: Any, code: ErrorCode, reason: str | None = None) -> Any:
    """A part of an answer that refuses a part of a request: an entity, a name or a number."""
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for each in fields(kind):
        hint = hints[each.name]
        if hint is ErrorCode or (each.name.endswith("error_code") and each.default is MISSING):
            values[each.name] = code
        elif each.name == "error_message":
            values[each.name] = reason
        elif (item := item_type(kind, each.name)) is not None:
            listed = _listed(asked, each.name) if _can_refuse(item) else ()
            values[each.name] = tuple(refused_part(item, one, code, reason) for one in listed)
        elif (isinstance(asked, str) and each.name in NAMES) or (type(asked) is int and each.name in NUMBERS):
            values[each.name] = asked
        elif (found := _asked_for(asked, each.name)) is not None:
            values[each.name] = found
        elif each.default is MISSING:
            values[each.name] = refused_part(hint, None, code) if is_dataclass(hint) else _nothing(hint)
    return kind(**values)


@cache
def item_type(kind: Any, field: str) -> Any:
    """The type of the entities in a field of many; None for any other field."""
    hint = get_type_hints(kind)[field]
    found = [part for part in _flat(hint) if hasattr(part, "__version__")]
    return found[0] if found and "tuple" in str(hint) else None


@cache
def _can_refuse(kind: Any) -> bool:
    """Whether a part of an answer has a place for an error. One without would say that there is such a thing."""
    parts = [part for hint in get_type_hints(kind).values() for part in _flat(hint)]
    nested: list[Any] = [part for part in parts if is_dataclass(part)]
    return ErrorCode in parts or any(map(_can_refuse, nested))


def _asked_for(asked: Any, name: str) -> Any:
    for candidate in (name, CALLED.get(name, name)):
        value = getattr(asked, candidate, None)
        if value is not None and not isinstance(value, tuple):
            return value
    return None


def _listed(asked: Any, name: str) -> tuple[Any, ...]:
    if hasattr(asked, "dirs"):
        return tuple(topic for each in asked.dirs for topic in each.topics)
    if hasattr(asked, "upsertions"):
        # A user may stand in both lists, and with several mechanisms; the answer has each once.
        return tuple({each.name: each for each in (*asked.deletions, *asked.upsertions)}.values())
    for candidate in (name, *ASKED_AS.get(name, ())):
        value = getattr(asked, candidate, None)
        if isinstance(value, tuple):
            return value
    return ()


def _flat(hint: Any) -> list[Any]:
    arguments = get_args(hint)
    return [part for argument in arguments for part in _flat(argument)] if arguments else [hint]


def _nothing(hint: Any) -> Any:
    parts = _flat(hint)
    if type(None) in parts:
        return None
    if str(hint).startswith("tuple"):
        return ()
    kind = parts[0]
    found = [nothing for known, nothing in NOTHING.items() if issubclass(kind, known)]
    return found[0] if found else NOT_KNOWN
