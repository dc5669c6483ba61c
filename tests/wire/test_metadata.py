"""An answer to Metadata that is put together is byte for byte the one that kio writes."""

import random
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.metadata.v13.response import MetadataResponse, MetadataResponseTopic

from strandline.wire.kafka_frames import answer_type, decode_answer, encode_answer, versions_known
from strandline.wire.metadata import METADATA, assembled, by_name, encoded
from tests.wire.entities import entity, hints, parts

NONE_SAID = -(1 << 31)


def newest(value: Any, hint: Any) -> Any:
    """What was made for an older version, as the newest one has it; what was not there then is made up."""
    if isinstance(value, tuple):
        return tuple(newest(one, hint) for one in value)
    if not is_dataclass(value):
        return value
    kind: Any = next(part for part in parts(hint) if is_dataclass(part))
    values = {each.name: getattr(entity(kind, random.Random(1), most=0), each.name) for each in fields(kind)}
    same = {name: newest(getattr(value, name), hints(kind)[name]) for name in values if hasattr(value, name)}
    return kind(**values | same)


@pytest.mark.parametrize("version", versions_known(METADATA))
@settings(max_examples=20)
@given(chance=st.builds(random.Random, st.integers(0, 1 << 32)))
def test_what_is_put_together_is_what_kio_writes(version: int, chance: random.Random) -> None:
    # Who may do what in a cluster is no longer told in the newest version, and never by us.
    whole = entity(answer_type(METADATA, version), chance, most=3, cluster_authorized_operations=lambda _: NONE_SAID)
    new: MetadataResponse = newest(whole, MetadataResponse)
    frame = assembled(version, 9, new, [encoded(topic, version) for topic in new.topics])
    assert frame == encode_answer(whole, 9)


@pytest.mark.parametrize("version", versions_known(METADATA))
@pytest.mark.parametrize("count", [0, 1, 126, 127, 128, 300])
def test_any_number_of_topics_has_its_place(version: int, count: int) -> None:
    whole: Any = entity(MetadataResponse, random.Random(count), most=1)
    topic: Any = entity(MetadataResponseTopic, random.Random(5), most=1, name=lambda _: "topic")
    frame = assembled(version, 9, whole, [encoded(topic, version)] * count)
    answer = decode_answer(memoryview(frame), METADATA, version)
    assert [one.name for one in answer.topics] == ["topic"] * count
    assert encode_answer(answer, 9) == frame


@pytest.mark.parametrize("version", versions_known(METADATA))
def test_a_topic_asked_for_by_an_id_that_nobody_knows_has_no_name(version: int) -> None:
    whole: Any = entity(MetadataResponse, random.Random(1))
    nameless: Any = entity(MetadataResponseTopic, random.Random(5), name=lambda _: None)
    frame = assembled(version, 9, whole, [encoded(nameless, version)])
    (topic,) = decode_answer(memoryview(frame), METADATA, version).topics
    # Names are there in every answer of the versions before topics were asked for by their ids.
    assert topic.name == (None if version >= 12 else "")


def test_topics_without_a_name_are_in_no_index() -> None:
    named: Any = entity(MetadataResponseTopic, random.Random(5), name=lambda _: "topic")
    nameless: Any = entity(MetadataResponseTopic, random.Random(5), name=lambda _: None)
    assert by_name([named, nameless]) == {"topic": named}
