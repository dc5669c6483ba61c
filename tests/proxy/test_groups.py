"""Groups of the new protocol stay in one cluster, also where topics are named by an expression; offsets of any group
are told at its home.
"""

import asyncio
from dataclasses import fields, replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.consumer_group_heartbeat.v1.request import ConsumerGroupHeartbeatRequest
from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.errors import ErrorCode
from kio.schema.offset_delete.v0.request import OffsetDeleteRequest
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32, i32Timedelta

from strandline.core.routes import Routes
from strandline.proxy.rules.groups import delete_groups, in_one_cluster, offset_delete, offset_fetch
from strandline.wire.kafka_frames import request_type, versions_known
from strandline.wire.refusal import item_type, refused

ROUTES = Routes(primary="east", topics=[("eu.*", "west")], groups=[("eu-*", "west")])
PASSED = object()
OFFSET_FETCH = 9


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


@pytest.mark.parametrize("version", versions_known(OFFSET_FETCH))
def test_offsets_of_a_group_are_not_told_where_it_is_not_at_home(version: int) -> None:
    kind = request_type(OFFSET_FETCH, version)
    given: dict[str, Any] = {each.name: None for each in fields(kind)}
    if "require_stable" in given:
        given["require_stable"] = False
    if "groups" in given:
        group = item_type(kind, "groups")
        one = {"group_id": GroupId("eu-group"), "topics": None, "member_id": None, "member_epoch": i32(-1)}
        known = {each.name for each in fields(group)}
        given["groups"] = (group(**{name: value for name, value in one.items() if name in known}),)
    else:
        given |= {"group_id": GroupId("eu-group"), "topics": None if version > 1 else ()}
    # West's group, asked for at a broker of the east, which may have a part of its offsets.
    here = SimpleNamespace(cluster=SimpleNamespace(name="east"))
    exchange: Any = SimpleNamespace(request=kind(**given), realm=SimpleNamespace(routes=ROUTES), here=here)
    answer = asyncio.run(offset_fetch(exchange))
    if "groups" in given:
        (answer,) = answer.groups
    assert answer.topics == ()
    assert version == 1 or answer.error_code is ErrorCode.not_coordinator


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
