"""Node ids and topic names are changed wherever they stand in any request or answer, and nothing else is."""

import random
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32

from strandline.wire.kafka_frames import answer_type, request_type
from strandline.wire.retyped import Changes, names_nodes, names_topics, retyped
from tests.wire.entities import REQUESTS, entity, every_type, hints, parts

SHIFT = 2_000_000
PREFIX = "eu."
OUT = Changes(
    node=lambda node: BrokerId(node + SHIFT) if node >= 0 else node, topic=lambda name: TopicName(PREFIX + name)
)
BACK = Changes(
    node=lambda node: BrokerId(node - SHIFT) if node >= 0 else node,
    topic=lambda name: TopicName(name.removeprefix(PREFIX)),
)
# Numbers by the name of which people mean nodes, which are none: epochs, and what brokers ask each other.
NO_NODES = {"controller_id"}


def made(kind: Any, chance: random.Random) -> Any:
    """An entity with node ids that have room for a shift, and -1 among them."""
    one = entity(kind, chance, most=3)
    return retyped(one, Changes(node=lambda node: BrokerId(node % 1000 - 1), topic=lambda name: name))


def expected(value: Any, hint: Any, name: str) -> Any:
    """What a value becomes, found the long way: down every path, by the type that is declared there."""
    if value is None:
        return None
    if isinstance(value, tuple):
        return tuple(expected(one, hint, name) for one in value)
    if is_dataclass(value):
        kind: Any = type(value)
        values = {
            each.name: expected(getattr(value, each.name), hints(kind)[each.name], each.name) for each in fields(kind)
        }
        return kind(**values)
    if BrokerId in parts(hint) or name == "leader_id":
        return OUT.node(value)
    return OUT.topic(value) if TopicName in parts(hint) else value


@pytest.mark.parametrize(("key", "version"), REQUESTS)
def test_every_node_and_topic_is_changed_and_nothing_else_and_all_can_be_changed_back(key: int, version: int) -> None:
    for kind in (request_type(key, version), answer_type(key, version)):
        for seed in range(3):
            one = made(kind, random.Random(seed))
            changed = retyped(one, OUT)
            assert changed == expected(one, kind, "")
            assert retyped(changed, BACK) == one


@settings(max_examples=60)
@given(st.sampled_from(list(every_type())), st.builds(random.Random, st.integers(0, 1 << 32)))
def test_what_is_said_to_name_nothing_is_never_changed(kind: Any, chance: random.Random) -> None:
    one = made(kind, chance)
    changed = retyped(one, OUT)
    if not names_nodes(kind) and not names_topics(kind):
        assert changed is one
    if not names_topics(kind):
        assert PREFIX * 2 not in str(changed)
        assert retyped(one, Changes(node=lambda node: node, topic=refuse)) == one
    if not names_nodes(kind):
        assert retyped(one, Changes(node=refuse, topic=lambda name: name)) == one


def refuse(value: Any) -> Any:
    raise AssertionError(value)


def found(kind: Any, is_one: Callable[[str, Any], bool]) -> set[str]:
    """The names of fields anywhere in a type that are ones."""
    names = set()
    for each in fields(kind):
        hint = hints(kind)[each.name]
        names |= {each.name} if is_one(each.name, hint) else set()
        for part in parts(hint):
            if is_dataclass(part):
                names |= found(part, is_one)
    return names


def test_no_field_with_the_name_of_a_node_is_a_plain_number_but_for_those_that_are_known() -> None:
    def looks_like_a_node(name: str, hint: Any) -> bool:
        words = ("node", "broker", "leader", "replica", "controller", "isr")
        return i32 in parts(hint) and "epoch" not in name and any(word in name for word in words)

    suspects = {name for kind in every_type() for name in found(kind, looks_like_a_node)}
    assert suspects == {"leader_id"} | NO_NODES


def test_leaders_in_answers_to_share_groups_are_nodes() -> None:
    for key in (78, 79):
        kind = answer_type(key, 1)
        assert names_nodes(kind)
        one = next(one for seed in range(50) if "leader_id" in str(one := made(kind, random.Random(seed))))
        leaders = [p.current_leader.leader_id for topic in one.responses for p in topic.partitions]
        changed = [p.current_leader.leader_id for topic in retyped(one, OUT).responses for p in topic.partitions]
        assert leaders
        assert changed == [OUT.node(leader) for leader in leaders]
