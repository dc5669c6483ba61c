"""Tokens: what was signed is read back, and nothing else is."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.wire.resume_token import PLACE_BYTES, BadToken, Fault, Position, Signer

SIGNER = Signer({"new": b"n" * 32, "old": b"o" * 32})
PLACES = st.dictionaries(
    st.text(min_size=1, max_size=5),
    st.dictionaries(
        st.integers(0, 100),
        st.builds(
            Position,
            st.integers(0, 2**63 - 1),
            st.sampled_from(["id", "other", None]),
            st.none() | st.integers(0, 1000),
            st.none(),
        ),
        min_size=1,
        max_size=3,
    ),
    max_size=3,
)


@given(PLACES, st.text(max_size=5))
def test_a_token_is_read_back_by_the_subject_it_was_given_to(
    places: dict[str, dict[int, Position]], subject: str
) -> None:
    token = SIGNER.sign(subject, places, expires=100)
    assert SIGNER.read(token, subject, now=99) == places


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 249), st.text("a", max_size=64))
def test_what_a_client_says_of_a_partition_has_a_bound(topics: int, each: int, letters: int, subject: str) -> None:
    highest = 2**63 - 1
    places = {
        f"{topic:0{letters}}": {
            2**31 - 1 - number: Position(highest, f"{number:036}", 2**31 - 1) for number in range(each)
        }
        for topic in range(topics)
    }
    told = {topic: {str(number): str(highest) for number in numbers} for topic, numbers in places.items()}
    token = SIGNER.sign(subject, places, expires=2**40)
    assert len(token) + len(json.dumps(told)) <= PLACE_BYTES * len(places) * each


def test_an_epoch_goes_into_a_token_only_with_the_offset_that_it_is_of() -> None:
    places = {"t": {0: Position(9, "id", 3, seen=5)}}
    assert SIGNER.read(SIGNER.sign("me", places, expires=100), "me", now=99) == {"t": {0: Position(9, "id")}}


@given(st.data())
def test_a_token_changed_anywhere_is_refused(data: st.DataObject) -> None:
    token = SIGNER.sign("me", {"t": {0: Position(5, "id", 1)}}, expires=100)
    place = data.draw(st.integers(0, len(token) - 1))
    letter = data.draw(st.sampled_from("ABCXYZabcxyz0189-_.").filter(lambda letter: letter != token[place]))
    changed = token[:place] + letter + token[place + 1 :]
    try:
        read = SIGNER.read(changed, "me", now=0)
    except BadToken:
        return
    # The last letter of base64 has bits that stand for nothing.
    assert read == SIGNER.read(token, "me", now=0)


@pytest.mark.parametrize(
    ("token", "subject", "now", "fault"),
    [
        (SIGNER.sign("me", {}, 100), "you", 0, Fault.NOT_YOURS),
        (SIGNER.sign("me", {}, 100), "me", 100, Fault.EXPIRED),
        (Signer({"new": b"x" * 32}).sign("me", {}, 100), "me", 0, Fault.FORGED),
        (Signer({"other": b"n" * 32}).sign("me", {}, 100), "me", 0, Fault.FORGED),
        ("", "me", 0, Fault.MALFORMED),
        ("a.b.c", "me", 0, Fault.MALFORMED),
        ("é.é", "me", 0, Fault.MALFORMED),
    ],
)
def test_each_fault_has_its_name(token: str, subject: str, now: int, fault: Fault) -> None:
    with pytest.raises(BadToken) as caught:
        SIGNER.read(token, subject, now)
    assert caught.value.fault is fault


def test_a_token_of_an_older_key_is_still_taken() -> None:
    token = Signer({"old": b"o" * 32}).sign("me", {"t": {0: Position(5, "id", 1)}}, 100)
    assert SIGNER.read(token, "me", 0) == {"t": {0: Position(5, "id", 1)}}


def test_partitions_of_one_topic_cost_few_letters_more() -> None:
    few, many = ({"t": {n: Position(n, "id", 1) for n in range(count)}} for count in (1, 100))
    assert len(SIGNER.sign("me", many, 100)) - len(SIGNER.sign("me", few, 100)) < 100 * 16
