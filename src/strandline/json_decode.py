"""JSON from outside, decoded in one place: whatever is wrong with the bytes is one error, `MalformedJson`.

msgspec raises `DecodeError` for what is not JSON, `UnicodeDecodeError` for a string that is not UTF-8, `RecursionError`
for a document that is nested too deeply, and whatever a hook raises, such as `decimal.InvalidOperation` for an exponent
of 20 digits. Code that decodes by itself has to know all of them, and a record that it did not foresee stops a server.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

ANYTHING: "msgspec.json.Decoder[Any]" = msgspec.json.Decoder()


class MalformedJson(ValueError):
    """The bytes are not the JSON that was expected; the message says what is wrong with them."""


def decode(data: bytes | str | msgspec.Raw, decoder: "msgspec.json.Decoder[T]" = ANYTHING) -> T:
    """Decode one document, or raise `MalformedJson`."""
    return _decoded(decoder.decode, data)


def decode_lines(data: bytes | str, decoder: "msgspec.json.Decoder[T]" = ANYTHING) -> list[T]:
    """Decode one document per line, or raise `MalformedJson`."""
    return _decoded(decoder.decode_lines, data)


def _decoded(decode_: Callable[[Any], T], data: object) -> T:
    try:
        return decode_(data)
    except RecursionError:
        problem = "it is nested too deeply"
    except UnicodeDecodeError as error:
        problem = f"a string is not UTF-8: {error.reason}"
    except ArithmeticError:
        problem = "a number is out of range"
    except ValueError as error:  # msgspec.DecodeError is one
        problem = str(error)
    raise MalformedJson(problem)
