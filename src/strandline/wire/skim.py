"""Answers to Fetch and Produce, looked over while they pass: node ids are shifted in place, records not touched.

An answer to Fetch may be larger than memory is meant to hold, so it is not gathered: what has come of it is looked at,
changed in place and sent on, but for the few bytes of a field that has not come whole. Its size goes first, so nothing
here changes how long it is. The one field whose length would change, the addresses of new leaders (KIP-951), is given a
number that no client knows; a client that finds no address asks for metadata.

What an answer to Fetch is made of is written as a generator: `yield n` waits for n bytes and gives them to look at,
`yield -n` lets n bytes pass. An answer to Produce is short, and there are many of them: it is looked over whole, by a
function, in a quarter of the time.
"""

import struct
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Final

from strandline.errors import MalformedFrame
from strandline.wire.vetted import NOT_WHOLE, number

Steps = Generator[int, memoryview, None]
Number = Generator[int, memoryview, int]

I16: Final = struct.Struct(">h")
I32: Final = struct.Struct(">i")
# Kafka's own tags count up from 0. This one takes as many bytes as 0 does.
UNKNOWN_TAG: Final = 127
LONGEST_TAG: Final = 4096
LARGEST_NODE: Final = 0x7FFF_FFFF
# Where the body of an answer begins: behind its size and its correlation id.
BODY: Final = 8
# How a partition ends in an answer to Produce: no record refused, no message, no tagged field.
ALL_WELL: Final = b"\x01\x00\x00"


@dataclass(slots=True)
class Seen:
    """What is added to node ids, and which errors were seen in passing."""

    shift: int
    errors: set[int] = field(default_factory=set)

    def error(self, where: memoryview, at: int) -> None:
        """Remember an error that stands here, if one does."""
        (code,) = I16.unpack_from(where, at)
        if code:
            self.errors.add(code)

    def node(self, where: memoryview, at: int = 0) -> None:
        """Shift the id of a node that stands here, if one does."""
        (node,) = I32.unpack_from(where, at)
        if node > LARGEST_NODE - self.shift:
            raise MalformedFrame(f"node {node} has no place behind {self.shift:,}")
        if node >= 0:
            I32.pack_into(where, at, node + self.shift)


class Skim:
    """Follows one answer, from behind its correlation id on; or one request."""

    __slots__ = ("_steps", "_want", "skip")

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        first = next(steps)
        self.skip, self._want = max(-first, 0), max(first, 0)

    @property
    def is_done(self) -> bool:
        """Whether all that was to come has come."""
        return not self.skip and not self._want

    def feed(self, view: memoryview) -> int:
        """Look at what comes next; how many of these bytes may be sent on. The others must come again, with more."""
        at, end = 0, len(view)
        steps, skip, want = self._steps, self.skip, self._want
        try:
            while True:
                if skip > end - at:
                    skip -= end - at
                    at = end
                    break
                if want > end - at:
                    break
                at += skip
                found = view[at : at + want]
                at += want
                step = steps.send(found)
                skip, want = (-step, 0) if step < 0 else (0, step)
        except StopIteration:
            if at < end:
                raise MalformedFrame(f"{end - at} bytes behind the end") from None
            skip = want = 0
        self.skip, self._want = skip, want
        return at


class _Legacy:
    """How lengths are written in versions before the flexible ones."""

    @staticmethod
    def count() -> Number:
        (count,) = I32.unpack((yield 4))
        return max(int(count), 0)

    blob = count

    @staticmethod
    def string() -> Steps:
        (size,) = I16.unpack((yield 2))
        if size > 0:
            yield -size

    @staticmethod
    def tags(seen: Seen, *, node: int | None = None, hidden: int | None = None) -> Steps:
        del seen, node, hidden
        yield from ()


class _Flexible:
    """How lengths are written in flexible versions."""

    @staticmethod
    def count() -> Number:
        return max((yield from uvarint_steps()) - 1, 0)

    blob = count

    @staticmethod
    def string() -> Steps:
        size = (yield from uvarint_steps()) - 1
        if size > 0:
            yield -size

    @staticmethod
    def tags(seen: Seen, *, node: int | None = None, hidden: int | None = None) -> Steps:
        """Tagged fields: the one in which a node's id stands first, and the one that is not for clients."""
        for _ in range((yield from uvarint_steps())):
            tag = yield 1
            number = tag[0]
            if number == hidden:
                tag[0] = UNKNOWN_TAG
            if number & 0x80:
                yield from uvarint_steps()
            size = yield from uvarint_steps()
            if number == node:
                if not I32.size <= size <= LONGEST_TAG:
                    raise MalformedFrame(f"a node in a field of {size} bytes")
                seen.node((yield size))
            elif size:
                yield -size


def fetched(version: int, seen: Seen) -> Steps:
    """An answer to Fetch."""
    form = _Flexible if version >= 12 else _Legacy
    yield from form.tags(seen)
    if version >= 7:
        seen.error((yield 10), 4)
    else:
        yield -4
    for _ in range((yield from form.count())):
        yield from _topic(form, by_id=version >= 13)
        for _ in range((yield from form.count())):
            seen.error((yield 30 if version >= 5 else 22), 4)
            for _ in range((yield from form.count())):  # aborted transactions
                yield -16
                yield from form.tags(seen)
            if version >= 11:
                seen.node((yield 4))
            size = yield from form.blob()
            if size:
                yield -size
            yield from form.tags(seen, node=1)
        yield from form.tags(seen)
    yield from form.tags(seen, hidden=0)


def _topic(form: type[_Legacy | _Flexible], *, by_id: bool) -> Steps:
    if by_id:
        yield -16
    else:
        yield from form.string()


def uvarint_steps() -> Number:
    """A number of variable length."""
    value = shift = 0
    while True:
        byte = (yield 1)[0]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
        shift += 7
        if shift > 28:
            raise MalformedFrame("a number of more than five bytes")


def produced(answer: memoryview, version: int, seen: Seen) -> None:
    """Look over an answer to Produce, a whole frame."""
    try:
        end = _compact(answer, version, seen) if version >= 9 else _plain(answer, version, seen)
    except (IndexError, struct.error):
        raise MalformedFrame(NOT_WHOLE) from None
    if end > len(answer):
        raise MalformedFrame(NOT_WHOLE)
    if end < len(answer):
        raise MalformedFrame(f"{len(answer) - end} bytes behind the end of an answer")


def _compact(answer: memoryview, version: int, seen: Seen) -> int:
    """An answer to Produce of a flexible version; where it ends."""
    topics, at = number(answer, _tags(answer, BODY, seen))
    for _ in range(topics - 1):
        at = at + 16 if version >= 13 else _text(answer, at)
        partitions, at = number(answer, at)
        for _ in range(partitions - 1):
            seen.error(answer, at + 4)
            at += 30
            if bytes(answer[at : at + len(ALL_WELL)]) == ALL_WELL:
                at += len(ALL_WELL)
                continue
            refused, at = number(answer, at)
            for _ in range(refused - 1):
                at = _tags(answer, _text(answer, at + 4), seen)
            at = _tags(answer, _text(answer, at), seen, node=0)
        at = _tags(answer, at, seen)
    return _tags(answer, at + 4, seen, hidden=0)


def _plain(answer: memoryview, version: int, seen: Seen) -> int:
    """An answer to Produce of a version before the flexible ones; where it ends."""
    (topics,) = I32.unpack_from(answer, BODY)
    at = BODY + I32.size
    for _ in range(topics):
        at = _short_text(answer, at)
        (partitions,) = I32.unpack_from(answer, at)
        at += I32.size
        for _ in range(partitions):
            seen.error(answer, at + 4)
            at += 30 if version >= 5 else 22
            if version >= 8:
                (refused,) = I32.unpack_from(answer, at)
                at += I32.size
                for _ in range(refused):
                    at = _short_text(answer, at + 4)
                at = _short_text(answer, at)
    return at + 4


def _text(answer: memoryview, at: int) -> int:
    size, at = number(answer, at)
    return at + max(size - 1, 0)


def _short_text(answer: memoryview, at: int) -> int:
    (size,) = I16.unpack_from(answer, at)
    return at + I16.size + max(int(size), 0)


def _tags(answer: memoryview, at: int, seen: Seen, *, node: int | None = None, hidden: int | None = None) -> int:
    """Tagged fields, as `_Flexible.tags` has them; where they end."""
    count, at = number(answer, at)
    for _ in range(count):
        tag = answer[at]
        if tag == hidden:
            answer[at] = UNKNOWN_TAG
        _, at = number(answer, at)
        size, at = number(answer, at)
        if tag == node:
            if size < I32.size:
                raise MalformedFrame(f"a node in a field of {size} bytes")
            seen.node(answer, at)
        at += size
    return at
