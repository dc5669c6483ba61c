"""Lines that only who knows the secret can write, and that open only in their order and direction."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.seal import CHALLENGE_BYTES, Handshake, NotTrusted, Side

challenges = st.binary(min_size=CHALLENGE_BYTES, max_size=CHALLENGE_BYTES)
secrets = st.binary(min_size=16, max_size=32)
contents = st.lists(st.binary(max_size=40).map(lambda content: content.replace(b"\n", b"")), max_size=8)


@given(secrets, challenges, challenges, contents)
def test_what_is_sealed_opens_at_the_other_end(secret: bytes, one: bytes, two: bytes, said: list[bytes]) -> None:
    for side in Side:
        ours, theirs = (Handshake(secret, driver=one, member=two) for _ in range(2))
        theirs.check(side, ours.proof(side))
        closing, opening = ours.seal(side), theirs.seal(side)
        assert [opening.open(closing.close(content)) for content in said] == said


@given(secrets, secrets, challenges, challenges)
def test_a_proof_holds_for_one_secret_one_side_and_two_challenges(
    secret: bytes, other: bytes, one: bytes, two: bytes
) -> None:
    handshake = Handshake(secret, driver=one, member=two)
    proofs = {
        Handshake(key, driver=a, member=b).proof(side)
        for key in {secret, other}
        for a, b in {(one, two), (two, one), (one, bytes(32)), (bytes(32), two)}
        for side in Side
    }
    for proof in proofs - {handshake.proof(Side.MEMBER)}:
        with pytest.raises(NotTrusted):
            handshake.check(Side.MEMBER, proof)


@given(secrets, challenges, challenges, st.lists(st.binary(max_size=9), min_size=2, max_size=6), st.data())
def test_a_line_that_is_changed_repeated_left_out_or_turned_round_does_not_open(
    secret: bytes, one: bytes, two: bytes, said: list[bytes], data: st.DataObject
) -> None:
    handshake = Handshake(secret, driver=one, member=two)
    closing = handshake.seal(Side.MEMBER)
    lines = [closing.close(content) for content in said]
    where = data.draw(st.integers(0, len(lines) - 1))
    opening = handshake.seal(Side.MEMBER)
    for line in lines[:where]:
        opening.open(line)
    at = data.draw(st.integers(0, len(lines[where]) - 1))
    wrong = [lines[where][:at] + bytes([lines[where][at] ^ 1]) + lines[where][at + 1 :]]
    wrong += lines[:where] + lines[where + 1 :]
    with pytest.raises(NotTrusted):
        opening.open(data.draw(st.sampled_from(wrong)))
    with pytest.raises(NotTrusted):
        handshake.seal(Side.DRIVER).open(lines[0])


@given(secrets, st.binary(max_size=40).filter(lambda challenge: len(challenge) != CHALLENGE_BYTES))
def test_a_challenge_of_another_length_is_refused(secret: bytes, short: bytes) -> None:
    with pytest.raises(NotTrusted):
        Handshake(secret, driver=bytes(CHALLENGE_BYTES), member=short)
