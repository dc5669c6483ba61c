"""A refusal has the shape of its API, an error in every place for one, and all names and partitions asked for."""

import random
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v11.request import MetadataRequest, MetadataRequestTopic

from strandline.proxy.rules.table import RULES
from strandline.wire.kafka_frames import answer_type, decode_answer, encode_answer, request_type, versions_known
from strandline.wire.refusal import item_type, refused, refused_part
from tests.wire.entities import entity

ANSWERED = [(key, version) for key, rule in RULES.items() if rule.answer is not None for version in versions_known(key)]
# What each request lists, and where its answer says what became of each: names of fields, from the outside in. Of a
# number or a name in a list there is no field.
TOPICS = (("topics", "topics"), ("partitions", "partitions"))
LISTED: dict[int, tuple[tuple[str, str], ...]] = {
    0: (("topic_data", "responses"), ("partition_data", "partition_responses")),
    1: (("topics", "responses"), ("partitions", "partitions")),
    2: TOPICS,
    3: (("topics", "topics"),),
    8: TOPICS,
    15: (("groups", "groups"),),
    19: (("topics", "topics"),),
    21: TOPICS,
    23: TOPICS,
    28: TOPICS,
    32: (("resources", "results"),),
    33: (("resources", "responses"),),
    37: (("topics", "results"),),
    42: (("groups_names", "results"),),
    43: (("topic_partitions", "replica_election_results"), ("partitions", "partition_result")),
    44: (("resources", "responses"),),
    45: (("topics", "responses"), ("partitions", "partitions")),
    47: TOPICS,
    61: (("topics", "topics"), ("partition_indexes", "partitions")),
    65: (("transactional_ids", "transaction_states"),),
    69: (("group_ids", "groups"),),
    75: (("topics", "topics"),),
    77: (("group_ids", "groups"),),
    78: (("topics", "responses"), ("partitions", "partitions")),
    79: (("topics", "responses"), ("partitions", "partitions")),
    90: (("groups", "groups"), ("topics", "topics"), ("partitions", "partitions")),
    91: (("topics", "responses"), ("partitions", "partitions")),
    92: (("topics", "responses"),),
}
LISTED_BY_VERSION = {
    (9, False): (("topics", "topics"), ("partition_indexes", "partitions")),
    (9, True): (("groups", "groups"), ("topics", "topics"), ("partition_indexes", "partitions")),
    (10, True): (("coordinator_keys", "coordinators"),),
    (20, False): (("topic_names", "responses"),),
    (20, True): (("topics", "responses"),),
    (24, False): (("v3_and_below_topics", "results_by_topic_v3_and_below"), ("partitions", "results_by_partition")),
    (24, True): (
        ("transactions", "results_by_transaction"),
        ("topics", "topic_results"),
        ("partitions", "results_by_partition"),
    ),
}
SPLIT_AT = {9: 8, 10: 4, 20: 6, 24: 4}
IDENTITY = (
    "name", "topic", "topic_name", "topic_id", "partition_index", "partition", "partition_id", "index", "group_id",
    "transactional_id", "key", "resource_name", "resource_type",
)  # fmt: skip


def errors(value: Any) -> Iterator[Any]:
    """What stands in every place for an error."""
    if isinstance(value, tuple):
        for one in value:
            yield from errors(one)
    elif is_dataclass(value):
        for each in fields(value):
            if each.name.endswith("error_code") and each.name != "topic_config_error_code":
                yield getattr(value, each.name)
            yield from errors(getattr(value, each.name))


def identity(item: Any) -> set[Any]:
    """What an item is known by: a name or a number, or what stands in the fields that hold one."""
    if not is_dataclass(item):
        return {item}
    return {getattr(item, name) for name in IDENTITY if getattr(item, name, None) not in {None, ""}} or {""}


def tree(whole: Any, path: tuple[str, ...]) -> Any:
    """The items along a path of lists, by what they are known by."""
    if not path:
        return None
    return [(identity(item), tree(item, path[1:])) for item in getattr(whole, path[0]) or ()]


@pytest.mark.parametrize(("key", "version"), ANSWERED)
def test_a_refusal_can_be_sent_and_has_the_error_everywhere(key: int, version: int) -> None:
    told = set()
    for seed in range(12):
        request = entity(request_type(key, version), random.Random(seed))
        for reason in (None, "why"):
            answer = refused(request, ErrorCode.not_coordinator, reason)
            assert type(answer) is answer_type(key, version)
            assert decode_answer(memoryview(encode_answer(answer, 1)), key, version) == answer
            told |= set(errors(answer))
    assert told == {ErrorCode.not_coordinator}


def listed(key: int, version: int) -> tuple[tuple[str, str], ...]:
    if key in SPLIT_AT:
        return LISTED_BY_VERSION.get((key, version >= SPLIT_AT[key]), ())
    return LISTED.get(key, ())


@pytest.mark.parametrize(("key", "version"), [of for of in ANSWERED if listed(*of)])
def test_names_and_partitions_that_were_asked_for_come_back(key: int, version: int) -> None:
    asked, answered = zip(*listed(key, version), strict=True)
    count = 0
    for seed in range(12):
        request = entity(request_type(key, version), random.Random(seed), most=3)
        answer = refused(request, ErrorCode.request_timed_out)
        told, wanted = tree(answer, answered), tree(request, asked)
        assert told == wanted
        count += len(wanted)
    assert count


def test_members_that_leave_are_named_one_by_one() -> None:
    request = next(one for seed in range(50) if (one := entity(request_type(13, 5), random.Random(seed))).members)
    answer = refused(request, ErrorCode.not_coordinator)
    members = [(one.member_id, one.group_instance_id) for one in request.members]
    assert [(one.member_id, one.group_instance_id) for one in answer.members] == members


@pytest.mark.parametrize(("key", "asked", "told"), [(30, "creations", "results"), (31, "filters", "filter_results")])
def test_what_has_no_name_is_refused_as_often_as_it_was_asked_for(key: int, asked: str, told: str) -> None:
    request = entity(request_type(key, 3), random.Random(1), most=3)
    answer = refused(request, ErrorCode.request_timed_out)
    assert len(getattr(answer, told)) == len(getattr(request, asked)) > 0


def test_a_user_with_several_credentials_is_named_once() -> None:
    request = next(one for seed in range(50) if (one := entity(request_type(51, 0), random.Random(seed))).upsertions)
    twice = replace(request, upsertions=request.upsertions * 2)
    answer = refused(twice, ErrorCode.request_timed_out)
    names = {each.name for each in (*request.deletions, *request.upsertions)}
    assert sorted(each.user for each in answer.results) == sorted(names)


def test_partitions_of_all_directories_come_back() -> None:
    request = next(
        one for seed in range(50) if len((one := entity(request_type(34, 2), random.Random(seed), most=3)).dirs) > 1
    )
    answer = refused(request, ErrorCode.log_dir_not_found)
    wanted = [(topic.name, topic.partitions) for each in request.dirs for topic in each.topics]
    told = [(topic.topic_name, tuple(p.partition_index for p in topic.partitions)) for topic in answer.results]
    assert told == wanted


def test_what_has_no_place_for_an_error_is_not_said_to_be_there() -> None:
    request = next(one for seed in range(50) if (one := entity(request_type(46, 0), random.Random(seed))).topics)
    answer = refused(request, ErrorCode.request_timed_out, "why")
    assert (answer.error_code, answer.error_message, answer.topics) == (ErrorCode.request_timed_out, "why", ())


def test_a_topic_without_a_name_is_refused_where_every_topic_has_one() -> None:
    request = MetadataRequest(
        topics=(MetadataRequestTopic(topic_id=None, name=None),),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    answer = refused(request, ErrorCode.unknown_topic_id)
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [("", ErrorCode.unknown_topic_id)]


def test_a_name_or_a_number_becomes_a_part_of_an_answer() -> None:
    group = refused_part(item_type(answer_type(42, 2), "results"), "group", ErrorCode.group_id_not_found)
    assert (group.group_id, group.error_code) == ("group", ErrorCode.group_id_not_found)
    topic = item_type(answer_type(9, 7), "topics")
    part = refused_part(item_type(topic, "partitions"), 4, ErrorCode.request_timed_out)
    assert (part.partition_index, part.error_code) == (4, ErrorCode.request_timed_out)
    assert item_type(topic, "name") is None
