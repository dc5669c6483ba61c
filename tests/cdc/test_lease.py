"""Leadership on a real Postgres: who leads, who waits, and that whoever is late cannot send."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from strandline.cdc.fence import Fence
from strandline.cdc.lease import Leadership, acquire, create_lease_table, lease_status
from strandline.cdc.session import Session
from strandline.clock import ManualClock
from strandline.core.lease import Lease
from strandline.errors import CannotReplicate, NotLeading, SlotBusy, StrandlineError
from strandline.spark.pipeline import watch
from strandline.units import Nanos, nanos
from tests.cdc.support import Place
from tests.support import TIMEOUT, wait_for

# Renewed after a third; whoever claims after another that lives waits for so long.
GRANT = timedelta(seconds=5)
# No machine stalls for so long. A lease of this term is renewed every second all the same.
LONG = timedelta(seconds=120)
SOON = timedelta(seconds=0)


@pytest.fixture
def led(place: Place) -> Iterator[Place]:
    with Session(place.dsn) as session:
        create_lease_table(session)
        create_lease_table(session)
    yield place


def lead(place: Place, holder: str, *, wait: timedelta = LONG, term: timedelta = LONG) -> Leadership:
    leadership = acquire(place.dsn, "orders", holder, wait=wait, term=term)
    assert leadership is not None
    return leadership


def row(place: Place) -> Lease:
    with Session(place.dsn) as session:
        status = lease_status(session, "orders")
    assert status is not None
    return status.lease


def is_free(place: Place) -> bool:
    return not place.sql("select 1 from pg_locks where locktype = 'advisory'")


def test_what_is_written_is_on_disk_when_it_is_told_whatever_the_database_takes_lightly(place: Place) -> None:
    # Of a server that crashes, the number of a leadership could else be given out twice.
    place.sql(f"alter database {place.name} set synchronous_commit = off")
    with Session(place.dsn) as session:
        assert session.query("show synchronous_commit") == [("local",)]


def test_without_its_table_nobody_leads_and_is_told_why(place: Place) -> None:
    with pytest.raises(CannotReplicate, match="have it created"):
        acquire(place.dsn, "orders", "a", wait=SOON)
    with pytest.raises(CannotReplicate, match="have it created"):
        Fence(place.dsn, "orders", 1, 0, 0)


def test_a_role_that_may_not_create_the_table_is_told(place: Place) -> None:
    with Session(place.dsn_of(place.role("plain"))) as session, pytest.raises(CannotReplicate, match="GRANT CREATE"):
        create_lease_table(session)


def test_one_leads_and_the_others_wait_until_it_releases(led: Place) -> None:
    found: list[Leadership | None] = []
    with lead(led, "a") as first:
        assert acquire(led.dsn, "orders", "b", wait=SOON) is None
        other = acquire(led.dsn, "payments", "b", wait=SOON)
        assert other is not None
        other.release()
        waiting = threading.Thread(target=lambda: found.append(acquire(led.dsn, "orders", "b", wait=LONG, term=LONG)))
        waiting.start()
        before = row(led)
        wait_for(lambda: row(led).expires > before.expires, "the lease is renewed")
        first.check()
        assert first.left > 0
        assert row(led).holder == "a"
    waiting.join(TIMEOUT)
    (second,) = found
    assert second is not None
    assert second.number == first.number + 1
    second.check()
    with pytest.raises(NotLeading, match="released"):
        first.check()
    second.release()


def test_waiting_ends_when_it_is_told_to(led: Place) -> None:
    stop = threading.Event()
    with lead(led, "a"):
        found: list[Leadership | None] = []
        waiting = threading.Thread(target=lambda: found.append(acquire(led.dsn, "orders", "b", wait=LONG, stop=stop)))
        waiting.start()
        stop.set()
        waiting.join(TIMEOUT)
        assert found == [None]


def test_a_lost_lock_session_ends_a_leadership_and_the_next_waits_for_the_lease(led: Place) -> None:
    first = lead(led, "a")
    led.sql("select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory'")
    wait_for(lambda: is_free(led), "the lock is free")
    # The lock is free, and the lease is not.
    assert acquire(led.dsn, "orders", "b", wait=SOON) is None
    assert first.lost.wait(TIMEOUT)
    with pytest.raises(NotLeading, match="session is lost"):
        first.check()
    led.sql("update strandline.lease set expires = clock_timestamp()")
    with lead(led, "b") as second:
        assert second.number == first.number + 1
    first.close()


def test_a_lost_lock_session_is_noticed_soon_however_long_the_lease_is(led: Place) -> None:
    first = lead(led, "a", term=timedelta(minutes=10))
    led.sql("select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory'")
    assert first.lost.wait(TIMEOUT)
    first.close()


def test_a_row_taken_from_under_a_leader_ends_its_leadership(led: Place) -> None:
    first = lead(led, "a")
    led.sql("update strandline.lease set version = version + 1, leadership = leadership + 1, holder = 'thief'")
    assert first.lost.wait(TIMEOUT)
    with pytest.raises(NotLeading, match="thief leads since"):
        first.check()
    first.release()
    assert row(led).holder == "thief"


LEADER = """
import sys, time
from datetime import timedelta
from strandline.cdc.fence import Fence
from strandline.cdc.lease import acquire
from strandline.errors import NotLeading
while True:
    leadership = acquire(sys.argv[1], "orders", "frozen", wait=timedelta(seconds=120), term=timedelta(seconds=3))
    try:
        fence = Fence(sys.argv[1], "orders", leadership.number, 7, 0, grant=timedelta(seconds=2))
    except NotLeading:
        # The machine has stalled for longer than the lease.
        leadership.close()
    else:
        break
print("leads", leadership.number, flush=True)
for asked in (leadership.check, fence.left):
    try:
        while True:
            asked()
            time.sleep(0.001)
    except NotLeading as error:
        print(error, flush=True)
"""


def test_a_leader_that_stands_still_is_replaced_and_cannot_send_when_it_wakes(led: Place) -> None:
    frozen = subprocess.Popen([sys.executable, "-c", LEADER, led.dsn], stdout=subprocess.PIPE, text=True)
    try:
        assert frozen.stdout is not None
        word, number = frozen.stdout.readline().split()
        frozen.send_signal(signal.SIGSTOP)
        with lead(led, "b") as second:
            assert (word, second.number) == ("leads", int(number) + 1)
            with Fence(led.dsn, "orders", second.number, 0, 0, grant=LONG) as fence:
                fence.left()
                frozen.send_signal(signal.SIGCONT)
                said, _ = frozen.communicate(timeout=TIMEOUT)
                assert said.count("not leading 'orders' any more") == 2
                fence.left()
                second.check()
    finally:
        frozen.kill()
        frozen.wait(TIMEOUT)


def test_a_leader_that_stands_still_and_is_of_another_role_is_waited_for_with_a_line(led: Place) -> None:
    role = led.role("other")
    led.sql(f"grant usage on schema strandline to {role}", f"grant all on all tables in schema strandline to {role}")
    first = lead(led, "a")
    led.sql("update strandline.lease set version = version + 1, expires = clock_timestamp() - interval '1 minute'")
    # One of those that an instance which waits to lead outlives.
    with pytest.raises(SlotBusy, match=r"who led 'orders' stands still .*; have all instances connect as one role"):
        acquire(led.dsn_of(role), "orders", "b", wait=LONG)
    first.close()


def test_a_leader_whose_publishing_stands_still_leads_no_more(led: Place) -> None:
    clock = ManualClock()
    leadership = acquire(led.dsn, "orders", "a", wait=LONG, term=timedelta(minutes=10), clock=clock)
    assert leadership is not None
    leadership.check(once=True)
    clock.advance(nanos(timedelta(minutes=4)))
    before = row(led)
    wait_for(lambda: row(led).expires > before.expires, "it is renewed while nobody has begun to ask")
    leadership.check()
    clock.advance(nanos(timedelta(minutes=2)))
    leadership.check()
    clock.advance(nanos(timedelta(minutes=4)))
    assert leadership.lost.wait(TIMEOUT)
    with pytest.raises(NotLeading, match="whoever publishes has stood still for 180 s"):
        leadership.check()
    leadership.close()


def test_a_leader_whose_tasks_show_no_life_and_whose_epoch_does_not_end_leads_no_more(led: Place) -> None:
    clock, minute = ManualClock(), nanos(timedelta(minutes=1))
    leadership = acquire(led.dsn, "orders", "a", wait=LONG, term=timedelta(minutes=30), clock=clock)
    assert leadership is not None

    def renewed(epoch: int) -> None:
        """It is asked for, with nothing changed since, until it is renewed."""
        before = row(led)
        leadership.check(sign=epoch)
        wait_for(lambda: row(led).expires > before.expires or leadership.lost.is_set(), "it is renewed")

    with Fence(led.dsn, "orders", leadership.number, 7, 0, grant=GRANT):
        for _ in range(5):
            shows_life(led)
            renewed(7)
            clock.advance(Nanos(2 * minute))
            renewed(7)
    # The epoch is done.
    renewed(8)
    clock.advance(Nanos(2 * minute))
    renewed(8)
    leadership.check()
    leadership.check(sign=8)
    clock.advance(Nanos(2 * minute))
    leadership.check(sign=8)
    clock.advance(Nanos(2 * minute))
    # It asks, and nothing has got on.
    wait_for(lambda: asks_in_vain(leadership), "it leads no more")
    with pytest.raises(NotLeading, match="nothing has got on for 180 s: Spark has ended no epoch, and no task has"):
        leadership.check(sign=8)
    leadership.close()


def shows_life(place: Place) -> None:
    """A task renews its leave to send."""
    before = row(place)
    wait_for(lambda: row(place).granted > before.granted, "the task shows that it lives")


def asks_in_vain(leadership: Leadership) -> bool:
    try:
        leadership.check(sign=8)
    except NotLeading:
        return True
    return False


def test_a_lease_that_others_change_at_the_same_moment_is_not_lost_by_it(
    led: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    led.sql(f"alter database {led.name} set default_transaction_isolation = serializable")
    # Its row may be held for longer than it would wait for the lock.
    monkeypatch.setattr("strandline.cdc.lease.LOCK_WAIT", 0.1)
    waits = "select 1 from pg_locks where locktype = 'transactionid' and clock_timestamp() - waitstart > '0.5 s'"
    with lead(led, "a") as leadership:
        with psycopg.connect(led.dsn) as other:
            other.execute("update strandline.lease set version = version + 1")
            wait_for(lambda: led.sql(waits) or leadership.lost.is_set(), "it is in the way of the leader")
        before = row(led)
        wait_for(lambda: row(led).expires > before.expires or leadership.lost.is_set(), "the lease is renewed")
        leadership.check()


def test_a_newer_attempt_stops_the_older_and_sends_only_after_it(led: Place) -> None:
    with lead(led, "a") as leadership:
        number = leadership.number
        older = Fence(led.dsn, "orders", number, 4, 0, grant=GRANT)
        older.left()
        with Fence(led.dsn, "orders", number, 4, 1, grant=LONG) as newer:
            # The older one has not been told, nor asked: its leave was over before the newer one began.
            with pytest.raises(NotLeading):
                older.left()
            newer.left()
            for stale in [(number, 4, 0), (number, 3, 9), (number - 1, 9, 9), (number + 1, 9, 9)]:
                with pytest.raises(NotLeading):
                    Fence(led.dsn, "orders", *stale, grant=GRANT)
        older.close()


def test_a_fence_holds_for_longer_than_its_grant_and_batch_after_batch(led: Place) -> None:
    with lead(led, "a") as leadership:
        with Fence(led.dsn, "orders", leadership.number, 0, 0, grant=GRANT) as fence:
            before = row(led)
            wait_for(lambda: row(led).granted > before.granted, "the grant is renewed")
            fence.left()
        with pytest.raises(NotLeading, match="ended"):
            fence.left()
        for batch in range(1, 4):
            with Fence(led.dsn, "orders", leadership.number, batch, 0, grant=LONG) as fence:
                fence.left()


class Ended:
    """A query that ends with a loss while all stand still, its leader too."""

    runId = "1"  # noqa: N815  (as Spark calls it)

    def __init__(self, clock: ManualClock, stands_still: timedelta) -> None:
        self._clock, self._stands_still = clock, stands_still

    @property
    def isActive(self) -> bool:  # noqa: N802
        self._clock.advance(nanos(self._stands_still))
        return False

    def exception(self) -> str:
        return "strandline.errors.ChangesLost: the slot stands beyond"


@pytest.mark.parametrize(
    ("stands_still", "told"),
    [(timedelta(minutes=1), "the slot stands beyond"), (timedelta(minutes=20), "not leading 'orders' any more")],
)
def test_a_loss_counts_only_where_it_is_found_by_who_still_leads(
    led: Place, stands_still: timedelta, told: str
) -> None:
    clock = ManualClock()
    leadership = acquire(led.dsn, "orders", "a", wait=LONG, term=timedelta(minutes=10), clock=clock)
    assert leadership is not None
    query: Any = Ended(clock, stands_still)
    with leadership, pytest.raises(StrandlineError, match=told):
        watch(query, leadership, threading.Event(), lambda _: None)


def test_a_fence_counts_down_on_its_own_clock_from_before_it_asked(led: Place) -> None:
    clock = ManualClock()
    with (
        lead(led, "a", term=timedelta(seconds=120)) as leadership,
        Fence(led.dsn, "orders", leadership.number, 0, 0, grant=timedelta(seconds=90), clock=clock) as fence,
    ):
        clock.advance(nanos(timedelta(seconds=89.7)))
        fence.left()
        clock.advance(nanos(timedelta(seconds=0.1)))
        with pytest.raises(NotLeading, match="ran out"):
            fence.left()


def test_a_fence_whose_session_is_cut_ends(led: Place) -> None:
    with lead(led, "a") as leadership:
        with Fence(led.dsn, "orders", leadership.number, 0, 0, grant=GRANT) as fence:
            led.sql(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and "
                "pid not in (select pid from pg_locks where locktype = 'advisory') and pid <> pg_backend_pid()"
            )

            def has_ended() -> bool:
                try:
                    fence.left()
                except NotLeading:
                    return True
                return False

            wait_for(has_ended, "the fence has ended")
        leadership.check()
