"""Batches that lie ready are fetched as they are, by who knows the secret and by nobody else."""

import socket
import threading

import pyarrow as pa
import pytest

from strandline.cdc.shelf import KEY, SECRET_BYTES, Place, Shelf, fetch
from strandline.errors import ShelfEmpty
from tests.support import wait_for

BATCHES = [pa.record_batch({"n": list(range(at, at + 1000))}) for at in (0, 1000)]
# More than lies in the buffers of both ends.
LARGE = [pa.record_batch({"n": pa.array(range(1_000_000))})] * 3


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


@pytest.mark.parametrize("cut_inside", [False, True], ids=["between batches", "inside one"])
@pytest.mark.parametrize("batches", [0, 1])
def test_a_stream_that_is_cut_is_never_taken_for_all_of_it(batches: int, *, cut_inside: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, pa.BufferOutputStream() as whole:
        with pa.ipc.new_stream(whole, BATCHES[0].schema) as writer:
            ends = [whole.tell()]
            for batch in BATCHES:
                writer.write_batch(batch)
                ends.append(whole.tell())
        sent = whole.getvalue().to_pybytes()[: ends[batches] + 500 * cut_inside]

        def serve() -> None:
            """As a process that is killed: what it has sent arrives, and then the end."""
            connection, _ = listener.accept()
            with connection:
                connection.recv(SECRET_BYTES + KEY.size, socket.MSG_WAITALL)
                connection.sendall(sent)

        threading.Thread(target=serve).start()
        place = Place("127.0.0.1", listener.getsockname()[1], bytes(SECRET_BYTES), 1, 2000)
        with pytest.raises(ShelfEmpty, match="after 1,000 of 2,000" if batches and not cut_inside else None):
            list(fetch(place))


def test_who_reads_no_further_is_waited_for_without_a_time_out() -> None:
    shelf = Shelf("127.0.0.1")
    fetching = fetch(shelf.put(LARGE))
    assert next(fetching) == LARGE[0]
    assert [connection.gettimeout() for connection in shelf._served] == [None]
    assert list(fetching) == LARGE[1:]
    shelf.close()


def test_who_is_still_fetching_what_is_cleared_is_told_so() -> None:
    shelf = Shelf("127.0.0.1")
    before = threading.active_count()
    fetching = fetch(shelf.put(LARGE))
    next(fetching)
    shelf.clear()
    with pytest.raises(ShelfEmpty):
        list(fetching)
    wait_for(lambda: threading.active_count() <= before, "nobody waits to send")
    shelf.close()
