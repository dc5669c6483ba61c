"""The text of a Postgres array to a JSON array."""

import re
from collections.abc import Callable
from typing import Final

# An element with or without quotes, or what stands between elements. Postgres quotes whatever holds one of these
# characters or a blank, and the word NULL where it is text.
TOKEN: Final = re.compile(rb'"((?:[^"\\]|\\.)*)"|([^{}",\\\s]+)|([{},])', re.DOTALL)
# What needs no more than cutting: one dimension, nothing in quotes.
SIMPLE: Final = re.compile(rb'\{[^{}",\\\s]+(?:,[^{}",\\\s]+)*\}')
ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)
MOST_DIMENSIONS: Final = 6


class Unusual(Exception):
    """An array that is not to be told as one, such as one whose lower bound is not 1."""


def array_to_json(text: bytes, element: Callable[[bytes], bytes]) -> bytes:
    """The same array, each element made JSON by `element`; what is not a plain array is `Unusual`."""
    if SIMPLE.fullmatch(text):
        return b"[%b]" % b",".join([_element(None, bare, element) for bare in text[1:-1].split(b",")])
    return _token_by_token(text, element)


def _token_by_token(text: bytes, element: Callable[[bytes], bytes]) -> bytes:
    out: list[bytes] = []
    depth = at = 0
    # What may follow: an element or a nested array; at the beginning of an array also its end.
    value_follows, just_opened = True, False
    while at < len(text):
        token = TOKEN.match(text, at)
        if token is None:
            raise Unusual
        at = token.end()
        quoted, bare, mark = token.groups()
        if mark is None:
            if not value_follows or not depth:
                raise Unusual
            out.append(_element(quoted, bare, element))
            value_follows = False
        elif mark == b"{":
            if not value_follows or depth == MOST_DIMENSIONS:
                raise Unusual
            depth += 1
            out.append(b"[")
        elif mark == b"}":
            if value_follows and not just_opened:
                raise Unusual
            depth -= 1
            out.append(b"]")
            value_follows = False
            if not depth:
                break
        else:
            if value_follows:
                raise Unusual
            out.append(b",")
            value_follows = True
        just_opened = mark == b"{"
    if depth or at != len(text) or not out:
        raise Unusual
    return b"".join(out)


def _element(quoted: bytes | None, bare: bytes, element: Callable[[bytes], bytes]) -> bytes:
    if quoted is None:
        return b"null" if bare.upper() == b"NULL" else element(bare)
    return element(ESCAPED.sub(rb"\1", quoted) if b"\\" in quoted else quoted)
