"""The laws of a lease: at no moment may two send, whoever is slow, frozen or repeated."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from strandline.core.lease import (
    NO_CLAIM,
    SNAPSHOT,
    Claim,
    Granted,
    Lease,
    Refused,
    claim,
    countdown,
    finish,
    release,
    renew,
    take,
)
from strandline.units import Nanos

TERM = Nanos(100)
GRANT = Nanos(30)
MARGIN = Nanos(2)


@dataclass
class Belief:
    """When somebody believes to have leave."""

    start: int
    until: int
    leadership: int
    claim: Claim = NO_CLAIM


class World:
    """A row, the time, and what everybody believes. A question takes time to come, and an answer to be written."""

    def __init__(self) -> None:
        self.now = 0
        self.row: Lease | None = None
        self.written = 0
        self.leaders: list[Belief] = []
        self.senders: list[Belief] = []

    def pass_time(self, passed: int) -> None:
        self.now += passed

    def read_at(self, lag: int) -> Nanos:
        """When the row was read that is written now: nobody has written since."""
        return Nanos(max(self.written, self.now - lag))

    def write(self, row: Lease) -> None:
        assert self.row is None or row.leadership >= self.row.leadership
        self.row = row
        self.written = self.now

    def begin(self, name: str, lag: int, delay: int) -> None:
        read = self.read_at(lag)
        taken = take(self.row, name, now=read, term=TERM)
        if isinstance(taken, Lease):
            assert self.row is None or taken.leadership == self.row.leadership + 1
            self.write(taken)
            until = countdown(Nanos(read - delay), Nanos(taken.expires - read), MARGIN)
            self.leaders.append(Belief(self.now, until, taken.leadership))

    def go_on(self, which: int, lag: int, delay: int) -> None:
        if self.leaders:
            leader = self.leaders[which % len(self.leaders)]
            read = self.read_at(lag)
            renewed = renew(self.row, leader.leadership, now=read, term=TERM)
            if isinstance(renewed, Lease):
                self.write(renewed)
                leader.until = max(leader.until, countdown(Nanos(read - delay), Nanos(renewed.expires - read), MARGIN))

    def end(self, which: int, lag: int) -> None:
        if self.leaders:
            leader = self.leaders[which % len(self.leaders)]
            released = release(self.row, leader.leadership, now=self.read_at(lag))
            # Whoever releases believes no more, whatever comes of it.
            leader.until = min(leader.until, self.now)
            if isinstance(released, Lease):
                self.write(released)

    def claim(self, which: int, wanted: Claim, lag: int, delay: int) -> None:
        leadership = self.leaders[which % len(self.leaders)].leadership if self.leaders else 1
        read = self.read_at(lag)
        granted = claim(self.row, leadership, wanted, now=read, grant=GRANT)
        if isinstance(granted, Granted):
            self.write(granted.lease)
            until = countdown(Nanos(read - delay), Nanos(granted.lease.granted - read), MARGIN)
            mine = [s for s in self.senders if (s.leadership, s.claim) == (leadership, wanted)]
            if mine and self.now >= mine[0].start:
                mine[0].until = max(mine[0].until, until)
            elif not mine:
                self.senders.append(Belief(self.now + granted.wait, until, leadership, wanted))

    def finish(self, which: int, lag: int) -> None:
        """Only who has waited its wait sends, and finishes."""
        if self.senders and self.now >= (sender := self.senders[which % len(self.senders)]).start:
            sender.until = min(sender.until, self.now)
            finished = finish(self.row, sender.leadership, sender.claim, now=self.read_at(lag))
            if isinstance(finished, Lease):
                self.write(finished)

    def check(self) -> None:
        for beliefs in (self.leaders, self.senders):
            ruling = [belief for belief in beliefs if belief.start <= self.now < belief.until]
            assert len(ruling) <= 1, ruling
        for sender in self.senders:
            if sender.start <= self.now < sender.until:
                assert self.row is not None
                assert sender.leadership == self.row.leadership
                assert self.now < self.row.expires


late = st.one_of(st.just(0), st.integers(0, 40))
index = st.integers(-3, -1)
claims = st.builds(Claim, st.integers(0, 2), st.integers(0, 2))
steps = st.one_of(
    st.tuples(st.just("pass_time"), st.integers(1, 10)),
    st.tuples(st.just("pass_time"), st.integers(1, 120)),
    st.tuples(st.just("begin"), st.sampled_from(["a", "b"]), late, late),
    st.tuples(st.just("go_on"), index, late, late),
    st.tuples(st.just("end"), index, late),
    st.tuples(st.just("claim"), index, claims, late, late),
    st.tuples(st.just("claim"), st.just(-1), claims, st.just(0), st.just(0)),
    st.tuples(st.just("finish"), index, late),
)


@given(st.lists(steps, max_size=60))
def test_at_no_moment_do_two_lead_or_two_send_whatever_is_late(history: list[tuple[str, ...]]) -> None:
    world = World()
    world.begin("a", 0, 0)
    for name, *arguments in history:
        getattr(world, name)(*arguments)
        world.check()


@given(
    st.lists(st.tuples(st.integers(1, 25), st.integers(0, 3), late, late), max_size=30),
    st.integers(1, 60),
    st.integers(0, 2),
)
def test_no_task_of_a_snapshot_still_sends_when_the_first_batch_does(
    asked: list[tuple[int, int, int, int]], pause: int, batch: int
) -> None:
    world = World()
    world.begin("a", 0, 0)
    believes: dict[int, int] = {}
    for passed, task, lag, delay in asked:
        world.pass_time(passed)
        world.go_on(-1, 0, 0)
        read = world.read_at(lag)
        granted = claim(world.row, 1, SNAPSHOT, now=read, grant=GRANT)
        if isinstance(granted, Granted):
            assert granted.wait == 0
            world.write(granted.lease)
            believes[task] = countdown(Nanos(read - delay), Nanos(granted.lease.granted - read), MARGIN)
    world.pass_time(pause)
    taken = claim(world.row, 1, Claim(batch, 0), now=Nanos(world.now), grant=GRANT)
    if isinstance(taken, Granted):
        assert all(until <= world.now + taken.wait for until in believes.values())
        refused = claim(taken.lease, 1, SNAPSHOT, now=Nanos(world.now), grant=GRANT)
        assert isinstance(refused, Refused)


def lease(**changed: object) -> Lease:
    values = {"leadership": 3, "holder": "a", "expires": Nanos(100), "claim": Claim(5, 1), "granted": Nanos(40)}
    return Lease(**{**values, **changed})  # type: ignore[arg-type]


def test_nobody_takes_a_lease_that_has_not_run_out_and_learns_when_it_will() -> None:
    assert take(lease(), "b", now=Nanos(99), term=TERM) == Refused("led by a", Nanos(1))
    taken = take(lease(), "b", now=Nanos(100), term=TERM)
    assert isinstance(taken, Lease)
    assert (taken.leadership, taken.holder, taken.claim) == (4, "b", NO_CLAIM)


@given(st.integers(0, 300), st.integers(1, 5), st.builds(Claim, st.integers(0, 9), st.integers(0, 9)))
def test_a_stale_leadership_never_claims_or_renews(now: int, leadership: int, wanted: Claim) -> None:
    granted = claim(lease(), leadership, wanted, now=Nanos(now), grant=GRANT)
    renewed = renew(lease(), leadership, now=Nanos(now), term=TERM)
    led = leadership == 3 and now < 100
    assert isinstance(renewed, Lease) is led
    assert isinstance(granted, Granted) is (led and wanted >= Claim(5, 1))


def test_a_newer_attempt_waits_for_what_the_older_may_still_believe_and_the_same_does_not() -> None:
    newer = claim(lease(), 3, Claim(5, 2), now=Nanos(10), grant=GRANT)
    assert isinstance(newer, Granted)
    assert newer.wait == 30
    same = claim(newer.lease, 3, Claim(5, 2), now=Nanos(40), grant=GRANT)
    assert isinstance(same, Granted)
    assert same.wait == 0
    refused = claim(same.lease, 3, Claim(5, 1), now=Nanos(40), grant=GRANT)
    assert refused == Refused("batch 5, attempt 2, has taken over from batch 5, attempt 1")


@given(st.integers(0, 99), st.integers(0, 100), st.integers(1, 300))
def test_a_grant_never_outlasts_the_lease_nor_ends_before_the_one_it_follows(now: int, before: int, grant: int) -> None:
    found = lease(granted=Nanos(before))
    granted = claim(found, 3, Claim(6, 0), now=Nanos(now), grant=Nanos(grant))
    assert isinstance(granted, Granted)
    assert before <= granted.lease.granted <= found.expires


def test_a_claim_that_was_finished_keeps_nobody_waiting() -> None:
    finished = finish(lease(), 3, Claim(5, 1), now=Nanos(10))
    assert isinstance(finished, Lease)
    following = claim(finished, 3, Claim(6, 0), now=Nanos(10), grant=GRANT)
    assert isinstance(following, Granted)
    assert following.wait == 0
    assert isinstance(finish(following.lease, 3, Claim(5, 1), now=Nanos(10)), Refused)


def test_a_released_lease_is_over_once_no_grant_is_out() -> None:
    released = release(lease(), 3, now=Nanos(10))
    assert isinstance(released, Lease)
    assert released.expires == 40
    assert isinstance(take(released, "b", now=Nanos(39), term=TERM), Refused)
    assert isinstance(take(released, "b", now=Nanos(40), term=TERM), Lease)


def test_a_row_that_is_gone_is_nobodys() -> None:
    assert isinstance(renew(None, 1, now=Nanos(0), term=TERM), Refused)
    assert isinstance(release(None, 1, now=Nanos(0)), Refused)
    assert isinstance(claim(None, 1, NO_CLAIM, now=Nanos(0), grant=GRANT), Refused)
    assert isinstance(finish(None, 1, NO_CLAIM, now=Nanos(0)), Refused)
