"""Starts and ends as people write them."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import OptionError
from strandline.kafka.starts import Ago, AtTime, Committed, Earliest, Latest, StartAt
from strandline.kafka.words import GROUP_STARTS, EndAt, Live, cutoff, parse_end, parse_start

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", Earliest()),
        ("latest", Latest()),
        ("committed", Committed()),
        ("-250ms", Ago(timedelta(milliseconds=250))),
        ("-90s", Ago(timedelta(seconds=90))),
        ("-15m", Ago(timedelta(minutes=15))),
        ("-1h", Ago(timedelta(hours=1))),
        ("-2d", Ago(timedelta(days=2))),
        ("-1w", Ago(timedelta(weeks=1))),
        ("2026-01-01T00:00:00Z", AtTime(NEW_YEAR)),
        ("2026-01-01T02:00:00.5+02:00", AtTime(NEW_YEAR + timedelta(milliseconds=500))),
    ],
)
def test_a_start_is_a_word_a_span_back_or_a_time(text: str, start: StartAt) -> None:
    assert parse_start(text, GROUP_STARTS) == start


@pytest.mark.parametrize(
    ("text", "end", "time"),
    [
        *((word, Live(), None) for word in ("live", "latest", "now")),
        ("-1h", Ago(timedelta(hours=1)), NEW_YEAR - timedelta(hours=1)),
        ("2026-01-01T00:00:00Z", AtTime(NEW_YEAR), NEW_YEAR),
    ],
)
def test_an_end_is_live_a_span_back_or_a_time(text: str, end: EndAt, time: datetime | None) -> None:
    assert parse_end(text) == end
    assert cutoff(end, NEW_YEAR) == time


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("erliest", "'erliest' is no start; did you mean 'earliest'?"),
        ("1h", "'1h' is no start; did you mean '-1h'?"),
        ("2026-1-1", "'2026-1-1' is no start; did you mean '2026-01-01T00:00:00Z'?"),
        ("@", "'@' is no start; valid are -1h, 2026-01-01T00:00:00Z, earliest, latest"),
        ("committed", "'committed' is no start"),
        ("live", "'live' is no start"),
        ("", "'' is no start"),
        ("2026-01-01", "'2026-01-01' has no time zone; write 2026-01-01T00:00:00Z"),
        ("-99999999999999999999w", "reaches back more than a hundred years"),
    ],
)
def test_what_is_no_start_is_refused_with_what_to_write(text: str, problem: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_start(text)
    assert problem in str(caught.value)


def test_what_is_no_start_where_a_group_commits_is_refused_with_its_word_too() -> None:
    with pytest.raises(OptionError, match="valid are -1h, 2026-01-01T00:00:00Z, committed, earliest, latest"):
        parse_start("@", GROUP_STARTS)


def test_a_start_is_no_end() -> None:
    with pytest.raises(OptionError, match="'earliest' is no end; did you mean 'latest'"):
        parse_end("earliest")


@given(st.datetimes(timezones=st.integers(-840, 840).map(lambda m: timezone(timedelta(minutes=m)))))
def test_every_time_with_a_zone_is_read_back(time: datetime) -> None:
    assert parse_start(time.isoformat()) == AtTime(time)


@given(st.text())
def test_any_text_is_a_start_or_refused(text: str) -> None:
    try:
        parse_start(text)
    except OptionError as error:
        assert text in str(error)
