"""Laws of what goes out for a captured request, and of the place where its bytes wait."""

from collections.abc import Callable, Sequence
from pathlib import Path
from resource import RLIMIT_FSIZE, getrlimit, setrlimit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import SpoolFailed
from strandline.replay.outgoing import CapturedBody, outgoing
from strandline.replay.spool import OVERHEAD, Spool, Spools
from strandline.units import Nanos


@st.composite
def captured(draw: st.DrawFn, max_bytes: int | None = None) -> tuple[Spool, Spools, bytes, int]:
    """A request in its pieces, all of it, and the length of its head."""
    content = draw(st.binary(min_size=1, max_size=60))
    cuts = sorted(draw(st.sets(st.integers(1, len(content) - 1)))) if len(content) > 1 else []
    bound = draw(st.integers(0, 80)) + OVERHEAD if max_bytes is None else max_bytes
    spools = Spools(bound)
    spool = spools.make()
    at = 0
    for start, stop in zip([0, *cuts], [*cuts, len(content)], strict=True):
        at += draw(st.integers(0, 10))
        spool.add(Nanos(at), content[start:stop])
    return spool, spools, content, draw(st.integers(1, len(content)))


def sent(first: bytes, later: Sequence[tuple[Nanos, Callable[[], bytes]]]) -> bytes:
    return first + b"".join(load() for _, load in later)


@given(captured(), st.binary(min_size=1, max_size=60), st.none() | st.binary(max_size=60))
def test_any_cut_with_a_new_head_or_body_goes_out_as_the_new_bytes_exactly(
    request: tuple[Spool, Spools, bytes, int], head: bytes, body: bytes | None
) -> None:
    spool, _, content, captured_head = request
    first, later = outgoing(spool.pieces, captured_head, head, body, lambda at: at)
    assert sent(first, later) == head + (content[captured_head:] if body is None else body)


@given(captured(), st.binary(min_size=1, max_size=60), st.none() | st.binary(max_size=60))
def test_no_piece_is_due_before_its_time_and_none_before_the_one_before_it(
    request: tuple[Spool, Spools, bytes, int], head: bytes, body: bytes | None
) -> None:
    spool, _, content, captured_head = request
    _, later = outgoing(spool.pieces, captured_head, head, body, lambda at: Nanos(at + 1000))
    dues = [due for due, _ in later]
    assert dues == sorted(dues)
    assert set(dues) <= {piece.at + 1000 for piece in spool.pieces}
    if body is None and captured_head < len(content):
        # What is not rewritten leaves when it came: so many bytes are left when the pieces of a time are out.
        left = len(content) - captured_head
        by_end = [(piece.at + 1000, piece.size) for piece in reversed(spool.pieces)]
        for (due, load), (at, size) in zip(reversed(later), by_end, strict=False):
            if size > left:
                break
            assert (due, len(load())) == (at, size)
            left -= size


@given(captured())
def test_a_request_that_is_not_changed_goes_out_in_the_pieces_in_which_it_came(
    request: tuple[Spool, Spools, bytes, int],
) -> None:
    spool, _, content, captured_head = request
    first, later = outgoing(spool.pieces, captured_head, content[:captured_head], None, lambda at: at)
    assert [first, *(load() for _, load in later)] == [piece.load() for piece in spool.pieces]
    assert [due for due, _ in later] == [piece.at for piece in spool.pieces[1:]]


@given(captured(), st.integers(0, 70))
def test_bytes_come_back_as_they_were_from_memory_or_disk(request: tuple[Spool, Spools, bytes, int], most: int) -> None:
    spool, spools, content, captured_head = request
    assert spool.load(most) == content[:most]
    body = CapturedBody(spool, captured_head)
    assert (body.read(), body.length) == (content[captured_head:], len(content) - captured_head)
    assert spools.in_memory + spools.on_disk == len(content) + OVERHEAD
    assert spools.in_memory <= spools.max_bytes
    assert spool.held == spools.in_memory
    spool.release()
    assert (spools.in_memory, spools.on_disk, spool.held) == (0, 0, 0)
    spools.close()


def test_a_file_of_the_spool_is_gone_when_nothing_in_it_is_wanted() -> None:
    spools = Spools(0)
    first, second = spools.make(), spools.make()
    first.add(Nanos(0), b"one")
    second.add(Nanos(0), b"two")
    spools.close()
    first.release()
    assert second.load(10) == b"two"
    second.release()
    assert spools.on_disk == 0


def test_a_disk_that_takes_no_more_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(SpoolFailed, match=r"requests beyond --memory cannot be kept on disk: .*No such file"):
        Spools(0, tmp_path / "nowhere").make().add(Nanos(0), b"one")
    spools, limits = Spools(0, tmp_path), getrlimit(RLIMIT_FSIZE)
    setrlimit(RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(SpoolFailed, match="cannot be kept on disk: File too large; give TMPDIR a place with room"):
            spools.make().add(Nanos(0), bytes(2000))
    finally:
        setrlimit(RLIMIT_FSIZE, limits)
    spools.close()
