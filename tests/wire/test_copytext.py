"""Lines of COPY: what was written is what is read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import MalformedChange
from strandline.wire.copytext import copied

ESCAPES = {"\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}
texts = st.text(st.sampled_from("\\\b\f\n\r\t\vN.nx ü") | st.characters(blacklist_categories=["Cs"]), max_size=9)


def line(values: list[str | None]) -> bytes:
    """As Postgres writes it."""
    fields = ("\\N" if value is None else "".join(ESCAPES.get(c, c) for c in value) for value in values)
    return ("\t".join(fields) + "\n").encode()


@given(st.lists(st.none() | texts, min_size=1, max_size=6))
def test_a_line_gives_back_the_values_that_were_written(values: list[str | None]) -> None:
    assert copied(line(values)) == [None if value is None else value.encode() for value in values]


def test_a_line_without_its_end_is_refused() -> None:
    with pytest.raises(MalformedChange, match="ends early, after 3 bytes"):
        copied(b"1\t2")
