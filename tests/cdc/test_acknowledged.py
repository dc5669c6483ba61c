"""What was acknowledged, kept in Postgres: it only rises, and counts only where it was written."""

import msgspec
import pytest

from strandline.cdc.acknowledged import acknowledge, acknowledged, create_acknowledged_table
from strandline.cdc.assembly import Offset
from strandline.cdc.keeper import Keeper
from strandline.cdc.lease import create_lease_table
from strandline.cdc.mark import Mark
from strandline.cdc.session import Session
from strandline.cdc.slot import SlotIdentity, identified
from strandline.errors import CannotReplicate, OptionError
from tests.cdc.support import Place, take_until

MARK = Mark(end=100, lsn=90, ordinal=3, system="7", timeline=1, database="d", slot="s", ordinals="")


def prepared(session: Session, place: Place) -> SlotIdentity:
    create_lease_table(session)
    create_acknowledged_table(session)
    create_acknowledged_table(session)
    return identified(session, place.slot)[0]


def test_the_row_only_rises_whoever_writes_it(either: Place) -> None:
    with Session(either.dsn) as session:
        identity = prepared(session, either)
        assert acknowledged(session, identity) is None
        for end, leadership, known in ((200, 1, 200), (300, 2, 300), (250, 1, 300), (1 << 40, 3, 1 << 40)):
            acknowledge(session, identity, end, leadership)
            assert acknowledged(session, identity) == known


def test_a_row_of_another_server_timeline_or_database_says_nothing_here(place: Place) -> None:
    with Session(place.dsn) as session:
        identity = prepared(session, place)
        acknowledge(session, identity, 200, 1)
        changes: list[dict[str, object]] = [{"system": "7"}, {"timeline": 99}, {"database": "other"}]
        for change in changes:
            assert acknowledged(session, msgspec.structs.replace(identity, **change)) is None
        # A server that was restored counts anew, and so does the row.
        restored = msgspec.structs.replace(identity, timeline=2)
        acknowledge(session, restored, 150, 4)
        assert acknowledged(session, restored) == 150
        assert acknowledged(session, identity) is None


def test_a_missing_table_is_told_with_what_to_do(place: Place) -> None:
    with Session(place.dsn) as session, pytest.raises(CannotReplicate) as error:
        acknowledged(session, identified(session, place.slot)[0])
    assert str(error.value).endswith("have it created (postgres.create in the file)")


def test_without_a_leadership_nothing_is_noted(place: Place) -> None:
    keeper = Keeper(place.dsn, identified(Session(place.dsn), place.slot)[0], None)
    keeper.note(500)
    assert place.sql("select 1 from pg_namespace where nspname = 'strandline'") == []


def test_heartbeats_go_on_until_the_server_takes_none(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.prepare("create table t (id int primary key)")
    with Session(place.dsn) as session, place.replication() as replication:
        replication.start(0)
        keeper = Keeper(place.dsn, identified(session, place.slot)[0], None)
        keeper.beat(0)
        assert b"strandline.heartbeat\0" in take_until(replication, b"M")[-1][2]
        keeper.close()
        role = place.role("mute")
        place.sql("revoke execute on function pg_logical_emit_message(boolean, text, text, boolean) from public")
        mute = Keeper(place.dsn_of(role), identified(session, place.slot)[0], None)
        mute.beat(0)
        mute.beat(0)
        mute.close()
    (told,) = [record.getMessage() for record in caplog.records if "heartbeats" in record.getMessage()]
    assert "permission denied" in told


def test_a_mark_moves_behind_what_another_delivered_and_never_back() -> None:
    assert MARK.behind(50) is MARK
    assert MARK.behind(100) is MARK
    assert MARK.behind(150).offset == Offset(end=150, lsn=90, ordinal=3)


@pytest.mark.parametrize(
    ("end", "lsn", "ordinal", "other", "within"),
    [
        (100, 90, 3, 100, True),  # a whole transaction
        (100, 90, 3, 99, False),
        (100, 150, 3, 120, False),  # one that was cut
        (100, 150, 3, 160, True),
        (100, 100, 3, 100, False),  # one that was cut, right behind the one before it
        (100, 100, 3, 108, True),
        (100, 100, 0, 100, True),  # a message outside any
    ],
)
def test_an_epoch_counts_as_delivered_only_when_all_of_its_last_transaction_is(
    end: int, lsn: int, ordinal: int, other: int, within: bool
) -> None:
    epoch = msgspec.structs.replace(MARK, end=end, lsn=lsn, ordinal=ordinal)
    assert epoch.is_within(msgspec.structs.replace(MARK, end=other, lsn=0)) is within


def test_a_mark_is_read_under_the_settings_that_it_was_made_with_and_no_others() -> None:
    made = msgspec.structs.replace(MARK, ordinals="markers=false keys=null")
    assert Mark.read(made.told(), made.ordinals) == made
    for other in ("markers=true keys=null", "markers=false keys=nullable", "markers=false"):
        with pytest.raises(OptionError, match="events would be numbered otherwise"):
            Mark.read(made.told(), other)


def test_a_mark_of_when_fewer_settings_were_kept_is_read_and_keeps_all_from_then_on() -> None:
    told = {name: value for name, value in MARK.told().items() if name != "keys"} | {"ordinals": "markers=false"}
    mark = Mark.read(told, "markers=false publications=1")
    assert (mark.ordinals, mark.keys) == ("markers=false publications=1", None)


@pytest.mark.parametrize(
    ("end", "lsn", "ordinal", "cut"),
    [(100, 90, 3, False), (100, 100, 3, True), (100, 150, 3, True), (100, 100, 0, False), (100, 0, 0, False)],
)
def test_a_mark_is_cut_only_inside_a_transaction(end: int, lsn: int, ordinal: int, cut: bool) -> None:
    assert msgspec.structs.replace(MARK, end=end, lsn=lsn, ordinal=ordinal).is_cut is cut
