"""One row is left of each request, however often it was sent and however its rows are cut into batches."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from strandline.spark.comparing import ARROW as COMPARED
from strandline.spark.gathering import _gathering

SENDING = st.tuples(st.booleans(), st.none() | st.integers(0, 50), st.booleans())
"""Whether it was answered, when it was sent, whether it has an example."""
REQUESTS = st.lists(st.tuples(st.sampled_from("abc"), st.lists(SENDING, min_size=1, max_size=3)), max_size=12)
NOTHING: dict[str, Any] = dict.fromkeys(COMPARED.names)


def rows_of(requests: Sequence[tuple[str, Sequence[tuple[bool, int | None, bool]]]]) -> list[dict[str, Any]]:
    """The rows of requests as Spark sorts them."""
    rows = [
        NOTHING
        | {"connection": connection, "partition": 0, "offset": offset, "ordinal": 0, "id": f"0-{offset}.0"}
        | {"answered": answered, "sent_us": sent, "example": b"x" if is_example else None, "shape": "GET /known"}
        for offset, (connection, sendings) in enumerate(requests)
        for answered, sent, is_example in sendings
    ]
    return sorted(rows, key=lambda row: (row["connection"], row["offset"]))


@given(REQUESTS, st.data())
def test_each_request_is_one_row_and_looks_back_at_the_one_before_it(
    requests: list[tuple[str, list[tuple[bool, int | None, bool]]]], data: st.DataObject
) -> None:
    rows = rows_of(requests)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    batches = [
        pa.RecordBatch.from_pylist(rows[begin:end], COMPARED)
        for begin, end in zip([0, *cuts], [*cuts, len(rows)], strict=True)
    ]
    gathered = [row for batch in _gathering({"GET /known": "known"})(iter(batches)) for row in batch.to_pylist()]
    expected = []
    last: dict[str, int | None] = {}
    for offset, (connection, sendings) in sorted(enumerate(requests), key=lambda pair: (pair[1][0], pair[0])):
        best = min(sendings, key=lambda one: (not one[0], one[1] is None, one[1] or 0))
        sent = max((one[1] for one in sendings if one[1] is not None), default=None)
        before = last.get(connection)
        expected.append(
            {
                "id": f"0-{offset}.0",
                "answered": best[0],
                "sent_us": best[1],
                "endpoint": "known",
                "has_example": any(one[2] for one in sendings),
                "opens": connection not in last,
                "out_of_order": before is not None and sent is not None and before > sent,
            }
        )
        last[connection] = sent
    assert [{name: row[name] for name in expected[0]} for row in gathered] == expected if expected else not gathered
