"""Groups of the new protocol stay in one cluster, also where topics are named by an expression; offsets of any group
are told at its home.
"""

import asyncio
from dataclasses import fields, replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import NAMESPACE_DNS, uuid5

import pytest
from kio.schema.consumer_group_heartbeat.v1.request import ConsumerGroupHeartbeatRequest
from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.errors import ErrorCode
from kio.schema.offset_delete.v0.request import OffsetDeleteRequest
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32, i32Timedelta

from strandline.core.routes import Routes
from strandline.errors import BrokerUnreachable
from strandline.proxy.rules.groups import delete_groups, in_one_cluster, offset_delete, offset_fetch
from strandline.wire.kafka_frames import request_type, versions_known
from strandline.wire.refusal import item_type, refused

ROUTES = Routes(primary="east", topics=[("eu.*", "west")], groups=[("eu-*", "west")])
PASSED = object()
OFFSET_FETCH = 9
GROUPS_SINCE, IDS_SINCE = 8, 10


def beat(group: str, *, names: tuple[str, ...] = (), expression: str | None = None, routes: Routes = ROUTES) -> Any:
    request = ConsumerGroupHeartbeatRequest(
        group_id=GroupId(group),
        member_id="m",
        member_epoch=i32(0),
        instance_id=None,
        rack_id=None,
        rebalance_timeout=i32Timedelta.parse(timedelta(minutes=5)),
        subscribed_topic_names=tuple(map(TopicName, names)) or None,
        subscribed_topic_regex=expression,
        server_assignor=None,
        topic_partitions=None,
    )

    async def forward() -> Any:
        return PASSED

    cluster = SimpleNamespace(name=routes.group.of(group))
    exchange: Any = SimpleNamespace(
        request=request, realm=SimpleNamespace(routes=routes), here=SimpleNamespace(cluster=cluster), forward=forward
    )
    return asyncio.run(in_one_cluster(exchange))


@pytest.mark.parametrize("expression", ["eu\\.orders.*", "^eu\\..*$", None])
def test_an_expression_that_can_mean_topics_of_the_home_alone_is_passed_on(expression: str | None) -> None:
    assert beat("eu-group", expression=expression) is PASSED
    assert beat("eu-group", names=("eu.orders",), expression=expression) is PASSED


@pytest.mark.parametrize(
    ("group", "expression"),
    [("eu-group", "eu.*"), ("eu-group", ".*"), ("eu-group", "us\\..*"), ("group", "e.*"), ("group", "eu\\..*|us")],
)
def test_an_expression_that_may_mean_topics_of_another_cluster_is_refused_clearly(group: str, expression: str) -> None:
    answer = beat(group, expression=expression)
    assert answer.error_code is ErrorCode.invalid_request
    assert expression in answer.error_message
    assert "only groups with group.protocol=classic may read topics of several clusters" in answer.error_message


def test_topics_of_another_cluster_by_name_are_refused_too() -> None:
    assert beat("group", names=("us.a", "eu.a")).error_code is ErrorCode.invalid_request
    assert beat("group", names=("us.a",), expression="us\\..*") is PASSED


def test_an_expression_over_topics_that_have_other_names_in_their_cluster_is_refused_clearly() -> None:
    renaming = replace(ROUTES, prefixes={"west": "eu."})
    answer = beat("eu-group", expression="eu\\.orders.*", routes=renaming)
    assert answer.error_code is ErrorCode.invalid_request
    assert "topics of cluster west have other names there" in answer.error_message
    assert beat("eu-group", names=("eu.orders",), routes=renaming) is PASSED
    assert beat("group", expression="us\\..*", routes=renaming) is PASSED


def fetch_offsets(version: int, group_id: str, topics: tuple[str, ...]) -> Any:
    """Asks for the offsets of a group, on the first partition of each topic; of all topics where none is named."""
    kind = request_type(OFFSET_FETCH, version)
    group = item_type(kind, "groups") if version >= GROUPS_SINCE else kind
    topic = item_type(group, "topics")

    def named(name: str) -> dict[str, Any]:
        return {"topic_id": uuid5(NAMESPACE_DNS, name)} if version >= IDS_SINCE else {"name": TopicName(name)}

    asked = tuple(topic(**named(one), partition_indexes=(i32(0),)) for one in topics)
    given = {
        "group_id": GroupId(group_id),
        "topics": asked if asked or version == 1 else None,
        "member_id": None,
        "member_epoch": i32(-1),
        "require_stable": False,
    }
    one = group(**{each.name: given[each.name] for each in fields(group)})
    return kind(groups=(one,), require_stable=False) if version >= GROUPS_SINCE else one


@pytest.mark.parametrize("version", versions_known(OFFSET_FETCH))
def test_offsets_of_a_group_are_not_told_where_it_is_not_at_home(version: int) -> None:
    # West's group, asked for at a broker of the east, which may have a part of its offsets.
    here = SimpleNamespace(cluster=SimpleNamespace(name="east"))
    request = fetch_offsets(version, "eu-group", ())
    exchange: Any = SimpleNamespace(request=request, realm=SimpleNamespace(routes=ROUTES), here=here)
    answer = asyncio.run(offset_fetch(exchange))
    if version >= GROUPS_SINCE:
        (answer,) = answer.groups
    assert answer.topics == ()
    assert version == 1 or answer.error_code is ErrorCode.not_coordinator


@pytest.mark.parametrize("version", versions_known(OFFSET_FETCH))
@pytest.mark.parametrize("topics", [("us.a", "eu.a"), ("eu.a", "us.a"), ()])
def test_offsets_that_one_cluster_does_not_tell_are_to_be_asked_for_again_together_with_all_others(
    version: int, topics: tuple[str, ...]
) -> None:
    owners = {uuid5(NAMESPACE_DNS, name): name for name in topics}

    async def meet(_: object) -> None:
        pass

    async def forward(request: Any) -> Any:
        return refused(request, ErrorCode.none)

    async def ask(*_: object) -> Any:
        raise BrokerUnreachable("west", "no answer within 1 s")

    directory = SimpleNamespace(meet=meet, owner=lambda name, topic_id: ROUTES.topic.of(name or owners[topic_id]))
    west = SimpleNamespace(ask=ask)
    realm = SimpleNamespace(
        routes=ROUTES, directory=directory, clusters={"east": None, "west": west}, coordinators={}, ask=ask
    )
    here = SimpleNamespace(cluster=SimpleNamespace(name="east"))
    request = fetch_offsets(version, "group", topics)
    exchange: Any = SimpleNamespace(request=request, realm=realm, here=here, forward=forward)
    answer = asyncio.run(offset_fetch(exchange))
    if version >= GROUPS_SINCE:
        (answer,) = answer.groups
    codes = [part.error_code for topic in answer.topics for part in topic.partitions]
    assert codes == [ErrorCode.coordinator_load_in_progress] * len(topics)
    assert version == 1 or answer.error_code is ErrorCode.coordinator_load_in_progress


def test_nothing_of_a_group_is_deleted_where_it_is_not_at_home() -> None:
    here = SimpleNamespace(cluster=SimpleNamespace(name="east"))
    realm = SimpleNamespace(routes=ROUTES, clusters={"east": None})
    passed: list[Any] = []

    async def forward(request: Any) -> Any:
        passed.append(request)
        return refused(request, ErrorCode.none)

    groups = DeleteGroupsRequest(groups_names=(GroupId("eu-group"), GroupId("group")))
    exchange: Any = SimpleNamespace(request=groups, realm=realm, here=here, forward=forward)
    results = asyncio.run(delete_groups(exchange)).results
    assert {one.group_id: one.error_code for one in results} == {
        "group": ErrorCode.none,
        "eu-group": ErrorCode.not_coordinator,
    }
    assert [one.groups_names for one in passed] == [("group",)]
    exchange.request = OffsetDeleteRequest(group_id=GroupId("eu-group"), topics=())
    assert asyncio.run(offset_delete(exchange)).error_code is ErrorCode.not_coordinator
    assert len(passed) == 1
