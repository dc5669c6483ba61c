"""Whether items failed of a `_bulk`, by its answer."""

import re
from typing import Any

import msgspec

from strandline.errors import MalformedBody, MalformedHead
from strandline.json_decode import MalformedJson, decode
from strandline.wire.answers import Answer
from strandline.wire.body import unchunked, unpacked
from strandline.wire.head import Head

MAX_BULK = 100 << 20
# The answer to a `_bulk` says first of all whether any item failed, so one that is cut says it too.
BULK_BEGIN = re.compile(rb'\s*\{(?:\s*"\w+"\s*:\s*\d+\s*,)*\s*"errors"\s*:\s*(true|false)')


class _Bulk(msgspec.Struct):
    """As much as is needed of the answer to a `_bulk`."""

    errors: bool | None = None
    items: list[dict[str, dict[str, Any]]] = []


BULK = msgspec.json.Decoder(_Bulk)


def items_failed(answer: Answer) -> bool | None:
    """Whether any item of a `_bulk` failed; None where it cannot be known."""
    if answer.cut:
        found = BULK_BEGIN.match(answer.body)
        return None if found is None else found[1] == b"true"
    head = Head(answer.head)
    try:
        bulk = decode(unpacked(head, unchunked(head, answer.body), limit=MAX_BULK), BULK)
    except (MalformedHead, MalformedBody, MalformedJson):
        return None
    if bulk.errors is not None:
        return bulk.errors
    return any("error" in result for item in bulk.items for result in item.values())
