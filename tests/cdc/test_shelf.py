"""Batches that lie ready are fetched as they are, by who knows the secret and by nobody else."""

import threading

import pyarrow as pa
import pytest

from strandline.cdc.shelf import Shelf, fetch
from strandline.errors import ShelfEmpty
from tests.support import wait_for

BATCHES = [pa.record_batch({"n": list(range(at, at + 1000))}) for at in (0, 1000)]


def test_what_is_put_is_fetched_as_often_as_wanted_until_it_is_cleared() -> None:
    shelf = Shelf("127.0.0.1")
    place = shelf.put(BATCHES)
    for _ in range(2):
        assert list(fetch(place)) == BATCHES
    shelf.clear()
    with pytest.raises(ShelfEmpty, match="the query has to start again"):
        list(fetch(place))
    assert list(fetch(shelf.put(BATCHES[:1]))) == BATCHES[:1]
    shelf.close()
    with pytest.raises(ShelfEmpty):
        list(fetch(place))


def test_without_the_secret_nothing_is_given_and_it_does_not_show_itself() -> None:
    shelf = Shelf("127.0.0.1")
    place = shelf.put(BATCHES)
    with pytest.raises(ShelfEmpty):
        list(fetch(place._replace(secret=bytes(32))))
    assert place.secret.hex() not in repr(place)
    assert str(place.secret) not in repr(place)
    shelf.close()


def test_one_that_is_closed_leaves_no_thread_and_no_port() -> None:
    before = set(threading.enumerate())
    shelf = Shelf("127.0.0.1")
    place = shelf.put(BATCHES)
    shelf.close()
    wait_for(lambda: set(threading.enumerate()) <= before, "its thread has ended")
    with pytest.raises(ShelfEmpty, match="refused"):
        list(fetch(place))
