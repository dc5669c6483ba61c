"""Records as lines: of text, where no record can move a cursor or pass for two, and of JSON.

Bytes that are not UTF-8 are shown as `\\xff` in text, and are `{"base64": …}` in JSON.
"""

from base64 import b64encode
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from strandline.cli.escaping import escaped, json_escaped

NO_TIME = "-"
NULL = "NULL"
NOT_A_TIME = -(2**63)


class Record(NamedTuple):
    """One record, as its batch has it but for the time."""

    time: str
    """In ISO 8601, or `NO_TIME`."""
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None

    @property
    def place(self) -> str:
        return f"{self.topic}/{self.partition}@{self.offset}"


def records(batch: pa.RecordBatch) -> Iterator[Record]:
    """The rows of a batch."""
    names = ("topic", "partition", "offset", "key", "value")
    return map(Record._make, zip(_times(batch), *(batch[name].to_pylist() for name in names), strict=True))


def text_line(record: Record) -> str:
    """Time, place, key and value with tabs between; no tab and no end of line within any of them."""
    return "\t".join((record.time, record.place, shown(record.key), shown(record.value)))


def json_lines(batch: pa.RecordBatch) -> Iterator[str]:
    """One JSON object a row."""
    for record, headers in zip(records(batch), batch["headers"].to_pylist(), strict=True):
        line = msgspec.json.encode(
            {
                "time": None if record.time == NO_TIME else record.time,
                "topic": record.topic,
                "partition": record.partition,
                "offset": record.offset,
                "key": _json_value(record.key),
                "value": _json_value(record.value),
                "headers": [{"key": item["key"], "value": _json_value(item["value"])} for item in headers],
            }
        ).decode()
        yield json_escaped(line)


def shown(data: bytes | None) -> str:
    """A key or a value on one line."""
    return NULL if data is None else escaped(data.decode(errors="backslashreplace"))


def pretty_json(data: bytes | None) -> str | None:
    """An object or array of JSON over several lines, numbers and repeated keys as they are; None for anything else."""
    if data is None or not data.lstrip().startswith((b"{", b"[")):
        return None
    try:
        text = msgspec.json.format(data, indent=2).decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return "\n".join(map(json_escaped, text.split("\n")))


def _times(batch: pa.RecordBatch) -> list[str]:
    # By numpy: a record may have any time that 64 bits can hold, and Python's dates end in the year 9999.
    numbers = batch["timestamp"].cast(pa.int64()).fill_null(NOT_A_TIME).to_numpy()
    texts: list[str] = np.datetime_as_string(numbers.view("datetime64[ms]"), unit="ms", timezone="UTC").tolist()
    return [NO_TIME if text == "NaT" else text for text in texts]


def _json_value(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}
