"""Which operations are authorised: what the proxy may do at the clusters, as they tell it, asked for anew each time."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import and_

from kio.schema.describe_cluster.v0.request import DescribeClusterRequest
from kio.schema.metadata.v13.response import MetadataResponseTopic
from kio.static.primitive import i32

from strandline.errors import KafkaError
from strandline.proxy.cluster import metadata_request
from strandline.proxy.exchange import Realm
from strandline.wire.metadata import NOT_TOLD


async def topic_operations(realm: Realm, topics: Sequence[MetadataResponseTopic]) -> list[MetadataResponseTopic]:
    """Topics with what may be done to each, as its owner says; not told for one whose owner does not answer."""
    by_owner: dict[str, list[str]] = defaultdict(list)
    for topic in topics:
        if topic.name is not None:
            by_owner[realm.routes.topic.of(topic.name)].append(str(topic.name))
    answers = await asyncio.gather(*(_of_topics(realm, owner, names) for owner, names in by_owner.items()))
    told = {name: operations for answer in answers for name, operations in answer.items()}
    return [replace(topic, topic_authorized_operations=told.get(str(topic.name), NOT_TOLD)) for topic in topics]


async def _of_topics(realm: Realm, cluster: str, names: list[str]) -> dict[str, i32]:
    inside = {realm.routes.inside(cluster, name): name for name in names}
    try:
        answer = await realm.clusters[cluster].ask(metadata_request(inside, create=False, operations=True))
    except KafkaError:
        return {}
    return {inside[topic.name]: topic.topic_authorized_operations for topic in answer.topics if topic.name in inside}


async def cluster_operations(realm: Realm) -> i32:
    """What may be done in every cluster that answers."""
    told = await asyncio.gather(*(_of_cluster(realm, name) for name in realm.clusters))
    known = [operations for operations in told if operations != NOT_TOLD]
    return i32(reduce(and_, known)) if known else NOT_TOLD


async def _of_cluster(realm: Realm, name: str) -> i32:
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    try:
        answer = await realm.clusters[name].ask(request)
    except KafkaError:
        return NOT_TOLD
    operations: i32 = answer.cluster_authorized_operations
    return operations
