"""A request or an answer of Kafka as kio can be trusted with it: every length is true, every tagged field known.

kio makes room for as many items as a length promises before it looks at the first, and a process that asks for more
memory than there is ends at once. Tagged fields that it does not know, it refuses; to the protocol they are what newer
clients and brokers may send to older ones, who leave them out.
"""

import struct
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Final, get_args, get_type_hints

from strandline.errors import MalformedFrame


class Cuts(list[tuple[int, int, bytes]]):
    """From where to where something else stands, and what; and how many items there may be yet."""

    __slots__ = ("room",)

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room


Walk = Callable[[memoryview, int, Cuts], int]
"""From where a value begins to where it ends."""

I16: Final = struct.Struct(">h")
I32: Final = struct.Struct(">i")
NULL_ENTITY: Final = 0xFF
# Each takes two bytes at least in a frame, and fifty times as much in a list.
MOST_CUTS: Final = 100_000
# An answer of a broker may be as long as it is: only as many items as it has bytes can be true.
NO_LIMIT: Final = 1 << 31
NOT_WHOLE: Final = "it ends in the middle of a field"
SIZES: Final = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "uuid": 16,
}


def vetted(kind: Any, frame: memoryview, at: int, most_items: int = NO_LIMIT) -> tuple[memoryview, int]:
    """The bytes of the entity of a type that begins here, without what is not known of it; and where it ends.

    An item of a list may take two bytes here and a hundred as a value, so whoever trusts nobody says how many there
    may be in all.
    """
    walk = _entity(kind)
    cuts = Cuts(most_items)
    try:
        end = at + walk if isinstance(walk, int) else walk(frame, at, cuts)
    except (IndexError, struct.error):
        raise MalformedFrame(NOT_WHOLE) from None
    if end > len(frame):
        raise MalformedFrame(NOT_WHOLE)
    if not cuts:
        return frame[at:end].toreadonly(), end
    kept: list[bytes | memoryview] = []
    for start, stop, instead in sorted(cuts):
        kept += (frame[at:start], instead)
        at = stop
    return memoryview(b"".join((*kept, frame[at:end]))), end


def uvarint(frame: memoryview, at: int) -> tuple[int, int] | None:
    """A number of variable length and where it ends; None while not all of it has come."""
    value = 0
    for place in range(5):
        if at + place >= len(frame):
            return None
        byte = frame[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at + place + 1
    raise MalformedFrame("a number of more than five bytes")


@cache
def _entity(kind: Any) -> int | Walk:
    """How an entity is walked over; its size, where it has always the same."""
    hints = get_type_hints(kind)
    steps: list[int | Walk] = [0]
    tagged: dict[int, int | Walk] = {}
    for each in fields(kind):
        step = _field(hints[each.name], each.metadata.get("kafka_type"), kind.__flexible__, "tag" in each.metadata)
        if "tag" in each.metadata:
            tagged[each.metadata["tag"]] = step
        elif isinstance(step, int) and isinstance(steps[-1], int):
            steps[-1] += step
        else:
            steps.append(step)
    if kind.__flexible__:
        steps.append(_tags(tagged))
    if len(steps) == 1:
        return steps[0]

    def walk(frame: memoryview, at: int, cuts: Cuts) -> int:
        for step in steps:
            at = at + step if isinstance(step, int) else step(frame, at, cuts)
        return at

    return walk


def _field(hint: Any, kafka_type: str | None, is_flexible: bool, is_tagged: bool) -> int | Walk:
    parts = _parts(hint)
    entity: Any = next((part for part in parts if is_dataclass(part)), None)
    if entity is not None:
        one = _entity(entity)
    elif kafka_type in SIZES:
        one = SIZES[kafka_type]
    else:
        one = _text if is_flexible else _short_text if kafka_type == "string" else _bytes
    if Ellipsis in parts:
        return _array(one, is_flexible)
    return _or_null(one) if entity is not None and type(None) in parts and not is_tagged else one


def _array(item: int | Walk, is_flexible: bool) -> Walk:
    def walk(frame: memoryview, at: int, cuts: Cuts) -> int:
        if is_flexible:
            count, at = number(frame, at)
            count -= 1
        else:
            (count,) = I32.unpack_from(frame, at)
            at += I32.size
        # Every item takes a byte at least.
        if count > len(frame) - at:
            raise MalformedFrame(f"{count:,} items in {len(frame) - at:,} bytes")
        cuts.room -= max(count, 0)
        if cuts.room < 0:
            raise MalformedFrame("too many items")
        if isinstance(item, int):
            return at + max(count, 0) * item
        for _ in range(count):
            at = item(frame, at, cuts)
        return at

    return walk


def _tags(known: dict[int, int | Walk]) -> Walk:
    def walk(frame: memoryview, at: int, cuts: Cuts) -> int:
        begin = at
        count, at = number(frame, at)
        behind = at
        found: set[int] = set()
        for _ in range(count):
            start = at
            tag, at = number(frame, at)
            size, at = number(frame, at)
            if tag not in known:
                at += size
                cuts.append((start, at, b""))
                if len(cuts) > MOST_CUTS:
                    raise MalformedFrame(f"more than {MOST_CUTS:,} tagged fields that are not known")
                continue
            field = known[tag]
            end = at + field if isinstance(field, int) else field(frame, at, cuts)
            # kio goes by the field, and others by its size.
            if end != at + size or tag in found:
                raise MalformedFrame(f"tagged field {tag} takes {end - at} bytes and not {size}, or is there twice")
            found.add(tag)
            at = end
        if len(found) < count:
            cuts.append((begin, behind, bytes([len(found)])))
        return at

    return walk


def _or_null(entity: int | Walk) -> Walk:
    def walk(frame: memoryview, at: int, cuts: Cuts) -> int:
        if frame[at] == NULL_ENTITY:
            return at + 1
        return at + 1 + entity if isinstance(entity, int) else entity(frame, at + 1, cuts)

    return walk


def number(frame: memoryview, at: int) -> tuple[int, int]:
    """A number of variable length in a frame that is whole, and where it ends; IndexError if that is not in it."""
    byte = frame[at]
    if byte < 0x80:
        return byte, at + 1
    found = uvarint(frame, at)
    if found is None:
        raise MalformedFrame(NOT_WHOLE)
    return found


def _text(frame: memoryview, at: int, _: Cuts) -> int:
    size, at = number(frame, at)
    return at + max(size - 1, 0)


def _short_text(frame: memoryview, at: int, _: Cuts) -> int:
    (size,) = I16.unpack_from(frame, at)
    return at + I16.size + max(int(size), 0)


def _bytes(frame: memoryview, at: int, _: Cuts) -> int:
    (size,) = I32.unpack_from(frame, at)
    return at + I32.size + max(int(size), 0)


def _parts(hint: Any) -> set[Any]:
    arguments = get_args(hint)
    return set().union(*map(_parts, arguments)) if arguments else {hint}
