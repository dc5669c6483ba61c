"""Requests and answers of Kafka made up by chance from the fields of kio's types, and such as newer ones might be."""

import random
from collections.abc import Callable, Iterator
from dataclasses import MISSING, field, fields, is_dataclass, make_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from io import BytesIO
from typing import Any, get_args, get_type_hints
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map
from kio.serial import entity_writer
from kio.static.primitive import TZAware, f64, i32Timedelta, i64Timedelta, uvarlong

from strandline.wire.kafka_frames import SIZE, answer_type, request_type, versions_known

TEXTS = ("", "a", "eu.orders", "orders", "名", "x" * 200)
BLOBS = (b"", b"\0", b"\xff" * 5, b"records" * 40)
UNKNOWN_TAGS = {"unknown": 90, "unknown_too": 300}

REQUESTS = [(key, version) for key in sorted(api_key_map) for version in versions_known(key)]


def every_type() -> Iterator[Any]:
    """Each type of a request or an answer."""
    for key, version in REQUESTS:
        yield request_type(key, version)
        yield answer_type(key, version)


def parts(hint: Any) -> set[Any]:
    """The types that a type is made of."""
    arguments = get_args(hint)
    return set().union(*map(parts, arguments)) if arguments else {hint}


@cache
def hints(kind: Any) -> dict[str, Any]:
    """The types of the fields of an entity."""
    return get_type_hints(kind)


def entity(kind: Any, chance: random.Random, *, most: int = 2, **given: Callable[[random.Random], Any]) -> Any:
    """An entity of a type, with up to so many items in each list; fields of given names are made as is said."""
    values = {}
    for each in fields(kind):
        if each.name in given:
            values[each.name] = given[each.name](chance)
        elif "tag" in each.metadata and each.default is not MISSING and chance.random() < 0.5:
            values[each.name] = each.default
        else:
            values[each.name] = _value(hints(kind)[each.name], chance, most, given, tagged="tag" in each.metadata)
    return kind(**values)


def _value(hint: Any, chance: random.Random, most: int, given: dict[str, Any], *, tagged: bool = False) -> Any:
    inner = parts(hint) - {type(None), Ellipsis}
    (kind,) = inner
    many = "tuple[" in str(hint)
    # A null UUID is written as zeros, also within a list; a field with a tag is left out instead.
    may_be_null = type(None) in parts(hint) and not tagged and not (many and kind is UUID)
    if may_be_null and chance.random() < 0.25:
        return None
    if many:
        return tuple(_one(kind, chance, most, given) for _ in range(chance.randrange(most + 1)))
    return _one(kind, chance, most, given)


def _one(kind: Any, chance: random.Random, most: int, given: dict[str, Any]) -> Any:
    if is_dataclass(kind):
        return entity(kind, chance, most=most, **given)
    for base, make in MAKERS.items():
        if issubclass(kind, base):
            return make(chance)
    return chance.choice((kind.__low__, -1, 0, 1, 7, kind.__high__) if kind.__low__ else (0, 1, kind.__high__))


def _since(chance: random.Random) -> Any:
    return TZAware.parse(datetime.fromtimestamp(chance.randrange(1 << 32), UTC))


MAKERS: dict[type, Callable[[random.Random], Any]] = {
    ErrorCode: lambda chance: chance.choice(tuple(ErrorCode)),
    bool: lambda chance: chance.random() < 0.5,
    str: lambda chance: chance.choice(TEXTS),
    bytes: lambda chance: chance.choice(BLOBS),
    UUID: lambda chance: UUID(int=chance.randrange(1, 1 << 128)),
    i32Timedelta: lambda chance: i32Timedelta.parse(timedelta(milliseconds=chance.randrange(1 << 20))),
    i64Timedelta: lambda chance: i64Timedelta.parse(timedelta(milliseconds=chance.randrange(1 << 20))),
    f64: lambda chance: chance.randrange(100) / 4,
    TZAware: _since,
    uvarlong: lambda chance: chance.choice((0, 1, 60_000)),
}


def with_unknown_tags(whole: Any, chance: random.Random) -> Any:
    """The same as a newer version might send it: with tagged fields in every part that nobody here knows."""
    return _as_newer(whole, lambda: chance.choice((None, *BLOBS)))


def _as_newer(value: Any, unknown: Callable[[], bytes | None]) -> Any:
    if isinstance(value, tuple):
        return tuple(_as_newer(one, unknown) for one in value)
    if not is_dataclass(value):
        return value
    known: Any = type(value)
    kind = _newer(known)
    values = {each.name: _as_newer(getattr(value, each.name), unknown) for each in fields(value)}
    return kind(**values, **({name: unknown() for name in UNKNOWN_TAGS} if kind.__flexible__ else {}))


@cache
def _newer(kind: Any) -> Any:
    known: list[Any] = []
    for each in fields(kind):
        hint = hints(kind)[each.name]
        nested: list[Any] = [part for part in parts(hint) if is_dataclass(part)]
        for part in nested:
            newer: Any = _newer(part)
            hint = tuple[newer, ...] if "tuple[" in str(hint) else newer
            hint = hint | None if type(None) in parts(hints(kind)[each.name]) else hint
        default = _as_newer(each.default, lambda: None)
        known.append((each.name, hint, field(metadata=each.metadata, default=default)))
    if kind.__flexible__:
        known += [
            (name, bytes | None, field(metadata={"tag": tag, "kafka_type": "bytes"}, default=None))
            for name, tag in UNKNOWN_TAGS.items()
        ]
    return make_dataclass(
        kind.__name__, known, namespace={"__flexible__": kind.__flexible__}, frozen=True, kw_only=True
    )


def written(*entities: Any) -> bytes:
    """Entities as bytes, one behind the other."""
    out = BytesIO()
    for one in entities:
        entity_writer(type(one))(out, one)
    return out.getvalue()


def framed(*entities: Any) -> bytes:
    """Entities as a frame."""
    body = written(*entities)
    return SIZE.pack(len(body)) + body
