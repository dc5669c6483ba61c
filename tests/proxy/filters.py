"""Filters of a user's: the three examples of the routing API, and one that changes what passes."""

import asyncio
from dataclasses import replace
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.types import BrokerId
from kio.static.primitive import i32

from strandline.errors import KafkaError
from strandline.proxy import Answered, FilterContext, Forward, NetFilter, NetFilterContext, RoutingContext
from strandline.wire.kafka_frames import Head
from strandline.wire.refusal import refused


class Primary:
    """Example 1: looks at the primary cluster, and lets everything go on."""

    async def on_request(self, header: Head, request: Any, context: FilterContext) -> Forward:
        assert context.routing.primary_cluster.cluster_id == "east"
        assert context.routing.primary_cluster.is_connected
        return context.forward(request)


class MetadataAggregation:
    """Example 2: asks all clusters for metadata, and merges what they say with ids that do not collide."""

    async def on_metadata_request(self, header: Head, request: Any, context: FilterContext) -> Forward | Answered:
        routing = context.routing
        if not routing.is_multi_cluster:
            return context.forward(request)
        if hasattr(request, "allow_auto_topic_creation"):
            # All are asked, and only one is to have it.
            request = replace(request, allow_auto_topic_creation=False)
        answers = await routing.fan_out_to_all(request)
        found = {name: answer for name, answer in answers.items() if not isinstance(answer, KafkaError)}
        brokers = tuple(
            replace(broker, node_id=BrokerId(routing.apply_node_id_offset(broker.node_id, name)), rack=f"of {name}")
            for name, answer in found.items()
            for broker in answer.brokers
        )
        for broker in brokers:
            owner = routing.cluster_for_node_id(broker.node_id)
            assert owner is not None
            assert routing.remove_node_id_offset(broker.node_id, owner) == 1
        topics: dict[Any, Any] = {}
        for name, answer in found.items():
            for topic in answer.topics:
                if topic.name not in topics or topic.error_code is ErrorCode.none:
                    topics[topic.name] = merged(topic, name, routing)
        first = found[routing.primary_cluster.cluster_id]
        whole = replace(first, brokers=brokers, topics=tuple(topics.values()), cluster_id="merged by a filter")
        return context.answer(whole)


def merged(topic: Any, cluster: str, routing: RoutingContext) -> Any:
    """A topic with the ids that clients see of its cluster's brokers."""

    def seen(node: BrokerId) -> BrokerId:
        return BrokerId(routing.apply_node_id_offset(node, cluster))

    partitions = tuple(
        replace(
            partition,
            leader_id=seen(partition.leader_id),
            replica_nodes=tuple(map(seen, partition.replica_nodes)),
            isr_nodes=tuple(map(seen, partition.isr_nodes)),
        )
        for partition in topic.partitions
    )
    return replace(topic, partitions=partitions)


class CoordinatorRouting:
    """Example 3: finds out in which cluster a group is, remembers it, asks there, and makes the answer the clients'."""

    def __init__(self) -> None:
        self.homes: dict[str, str] = {}

    async def on_find_coordinator_request(
        self, header: Head, request: Any, context: FilterContext
    ) -> Forward | Answered:
        (key,) = (request.key,) if hasattr(request, "key") else request.coordinator_keys
        if key not in self.homes:
            self.homes[key] = "west" if key.startswith("eu-") else context.routing.primary_cluster.cluster_id
        home = self.homes[key]
        answer = await context.routing.send_request(home, request)
        if hasattr(answer, "coordinators"):
            found = tuple(adjusted(one, home, context.routing) for one in answer.coordinators)
            return context.answer(replace(answer, coordinators=found))
        return context.answer(adjusted(answer, home, context.routing))


def adjusted(found: Any, cluster: str, routing: RoutingContext) -> Any:
    """A coordinator by the id that clients see; it is not told but by this filter in which cluster it is."""
    node = BrokerId(routing.apply_node_id_offset(found.node_id, cluster))
    return replace(found, node_id=node, error_message=f"found in {cluster}")


class Partitions:
    """Changes a request: every topic has three partitions."""

    async def on_create_topics_request(self, header: Head, request: Any, context: FilterContext) -> Forward:
        topics = tuple(replace(topic, num_partitions=i32(3)) for topic in request.topics)
        return context.forward(replace(request, topics=topics))


class Swallows:
    """Answers whoever writes, and stores nothing."""

    async def on_produce_request(self, header: Head, request: Any, context: FilterContext) -> Answered:
        return context.answer(refused(request, ErrorCode.none))


class NeedsMore:
    """Cannot be made without something that nobody gives it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit


class Late:
    """Takes longer over the one request than over the next."""

    def __init__(self) -> None:
        self.count = 0

    async def on_produce_request(self, header: Head, request: Any, context: FilterContext) -> Forward:
        self.count += 1
        await asyncio.sleep(0.02 if self.count % 2 else 0)
        return context.forward(request)


class Audit:
    """Counts what passes, in the answers' throttle time, which clients show and do not mind."""

    async def on_list_groups_response(self, header: Head, response: Any, context: FilterContext) -> Any:
        return replace(response, groups=tuple(g for g in response.groups if not g.group_id.startswith("secret")))


class WestOnly(NetFilter):
    """Chooses one cluster for every connection."""

    def select_server(self, context: NetFilterContext, routing: RoutingContext) -> None:
        assert routing.cluster_ids == {"east", "west"}
        context.initiate_connect("west")


class Both:
    """Chooses both."""

    def select_server(self, context: NetFilterContext, routing: RoutingContext) -> None:
        context.initiate_multi_cluster_connect(["east", "west"])


class Records:
    """Reads what is written: Produce is gathered for it."""

    async def on_produce_request(self, header: Head, request: Any, context: FilterContext) -> Forward | Answered:
        return context.forward(request)

    async def on_fetch_response(self, header: Head, response: Any, context: FilterContext) -> Any:
        return response
