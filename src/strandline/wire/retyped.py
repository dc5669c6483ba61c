"""Node ids and topic names in any request or answer of Kafka, changed wherever they stand, found by their types."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, partial
from types import MappingProxyType
from typing import Any, get_args, get_type_hints

from kio.schema.types import BrokerId, TopicName

Change = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Changes:
    """What becomes of a node's id and of a topic's name."""

    node: Change
    topic: Change


def retyped(entity: Any, changes: Changes) -> Any:
    """The same with its node ids and topic names changed."""
    kind: Any = type(entity)
    found = _places(kind)
    if not found:
        return entity
    new = {name: _changed(getattr(entity, name), how, changes) for name, how in found.items()}
    return replace(entity, **new)


@cache
def names_topics(kind: Any) -> bool:
    """Whether topics are named in a request or an answer."""
    return _has(kind, "topic")


@cache
def names_nodes(kind: Any) -> bool:
    """Whether nodes are named in a request or an answer."""
    return _has(kind, "node")


def _has(kind: Any, what: str) -> bool:
    hints = get_type_hints(kind)
    for name, how in _places(kind).items():
        if how == what:
            return True
        if how == "entity" and any(_has(part, what) for part in _parts(hints[name]) if is_dataclass(part)):
            return True
    return False


def _changed(value: Any, how: str, changes: Changes) -> Any:
    if value is None:
        return None
    change = partial(retyped, changes=changes) if how == "entity" else getattr(changes, how)
    return tuple(map(change, value)) if isinstance(value, tuple) else change(value)


@cache
def _places(kind: Any) -> Mapping[str, str]:
    """The fields of a type in which something is to be changed, and what."""
    hints = get_type_hints(kind)
    found = {}
    for each in fields(kind):
        inner = _parts(hints[each.name])
        nested: list[Any] = [part for part in inner if is_dataclass(part)]
        # The leader in answers to ShareFetch and ShareAcknowledge is a plain number to kio.
        if BrokerId in inner or each.name == "leader_id":
            found[each.name] = "node"
        elif TopicName in inner:
            found[each.name] = "topic"
        elif any(_places(part) for part in nested):
            found[each.name] = "entity"
    return MappingProxyType(found)


def _parts(hint: Any) -> set[Any]:
    arguments = get_args(hint)
    return set().union(*map(_parts, arguments)) if arguments else {hint}
