"""Metadata and DescribeCluster: all clusters as one; ApiVersions: what all of them speak."""

import inspect
from collections import defaultdict
from dataclasses import replace
from itertools import takewhile
from typing import Any

from kio.schema.api_versions.v0.response import ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v13.response import MetadataResponseTopic
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i16, i32, i64

from strandline.errors import KafkaError
from strandline.proxy.exchange import Exchange, Realm
from strandline.proxy.rules.operations import cluster_operations, topic_operations
from strandline.wire.kafka_frames import API_VERSIONS, answer_type
from strandline.wire.metadata import NOT_TOLD, assembled
from strandline.wire.refusal import NO_TIME, item_type, refused

AUTO_CREATE_IS_A_CHOICE = 4
BROKERS = 1


async def metadata(exchange: Exchange) -> Any:
    """The topics that are asked for, or all; encoded once for all clients."""
    directory, request, version = exchange.realm.directory, exchange.request, exchange.head.version
    wanted = request.topics
    if wanted is None or (version == 0 and not wanted):
        await directory.fresh(exchange.realm.clusters)
        topics = directory.all()
    else:
        topics = await _named(exchange, wanted)
    if getattr(request, "include_topic_authorized_operations", False):
        topics = await topic_operations(exchange.realm, topics)
    operations = NOT_TOLD
    if getattr(request, "include_cluster_authorized_operations", False):
        operations = await cluster_operations(exchange.realm)
    return assembled(
        version,
        exchange.head.correlation_id,
        directory.around(),
        [directory.encoded(topic, version) for topic in topics],
        operations,
    )


async def _named(exchange: Exchange, wanted: tuple[Any, ...]) -> list[MetadataResponseTopic]:
    directory, routes = exchange.realm.directory, exchange.realm.routes
    by_id = [getattr(one, "topic_id", None) for one in wanted if one.name is None]
    if by_id:
        await directory.meet(by_id)
        await directory.fresh(exchange.realm.clusters)
    names = [str(one.name) for one in wanted if one.name is not None]
    await directory.fresh({routes.topic.of(name) for name in names})
    topics, missing = [], defaultdict(list)
    for name in [*names, *(directory.name_of(topic_id) for topic_id in by_id)]:
        known = None if name is None else directory.known(name)
        if known is not None:
            topics.append(known)
        elif name is not None and not routes.can_have(routes.topic.of(name), name):
            topics.append(_unknown(name, ErrorCode.invalid_topic_exception))
        elif name is not None:
            missing[routes.topic.of(name)].append(name)
    topics += [
        _unknown(None, ErrorCode.unknown_topic_id, topic_id)
        for topic_id in by_id
        if directory.name_of(topic_id) is None
    ]
    create = exchange.head.version < AUTO_CREATE_IS_A_CHOICE or exchange.request.allow_auto_topic_creation
    for cluster, lost in missing.items():
        try:
            found = await directory.ask_owner(cluster, lost, create=create)
        except KafkaError:
            found = {}
        topics += [found.get(name) or _unknown(name, ErrorCode.leader_not_available) for name in lost]
    return topics


def _unknown(name: str | None, code: ErrorCode, topic_id: Any = None) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=code, name=None if name is None else TopicName(name), topic_id=topic_id, partitions=()
    )


async def describe_cluster(exchange: Exchange) -> Any:
    """The brokers of all clusters, at the addresses where clients find them."""
    if getattr(exchange.request, "endpoint_type", BROKERS) != BROKERS:
        reason = "controllers are not reached through the proxy"
        return refused(exchange.request, ErrorCode.unsupported_endpoint_type, reason)
    directory = exchange.realm.directory
    await directory.fresh(exchange.realm.clusters)
    around = directory.around()
    kind = answer_type(exchange.request.__api_key__, exchange.request.__version__)
    broker = item_type(kind, "brokers")
    fenced = {"is_fenced": False} if "is_fenced" in broker.__annotations__ else {}
    brokers = tuple(
        broker(broker_id=b.node_id, host=b.host, port=b.port, rack=b.rack, **fenced) for b in around.brokers
    )
    asked = exchange.request.include_cluster_authorized_operations
    return replace(
        refused(exchange.request, ErrorCode.none),
        cluster_id=directory.cluster_id,
        controller_id=BrokerId(around.controller_id),
        brokers=brokers,
        cluster_authorized_operations=await cluster_operations(exchange.realm) if asked else NOT_TOLD,
    )


async def describe_topic_partitions(exchange: Exchange) -> Any:
    """Topics in the order of their names, a page at a time: a page ends where the next name has another owner."""
    request, realm = exchange.request, exchange.realm
    asked = sorted({str(topic.name) for topic in request.topics})
    if not asked:
        await realm.directory.fresh(realm.clusters)
        asked = sorted(str(topic.name) for topic in realm.directory.all())
    names = [name for name in asked if request.cursor is None or name >= request.cursor.topic_name]
    if not names:
        return refused(replace(request, topics=()), ErrorCode.none)
    owner = realm.routes.topic.of(names[0])
    page = list(takewhile(lambda name: realm.routes.topic.of(name) == owner, names))
    asked_type: Any = type(request)
    topic = item_type(asked_type, "topics")
    part = replace(request, topics=tuple(topic(name=TopicName(name)) for name in page))
    try:
        answer = await realm.ask(owner, part)
    except KafkaError:
        answer = refused(part, ErrorCode.leader_not_available)
    if answer.next_cursor is None and len(page) < len(names):
        cursor = inspect.get_annotations(type(answer), eval_str=True)["next_cursor"].__args__[0]
        answer = replace(answer, next_cursor=cursor(topic_name=TopicName(names[len(page)]), partition_index=i32(0)))
    return answer


async def api_versions(exchange: Exchange) -> Any:
    """What every cluster that is known speaks, and we have a rule for."""
    kind = answer_type(API_VERSIONS, exchange.head.version)
    return _versions(kind, exchange.realm, ErrorCode.none)


def unsupported_versions(realm: Realm) -> Any:
    """The answer to an ApiVersions of a version that nobody knows: in version 0, which every client reads."""
    return _versions(ApiVersionsResponse, realm, ErrorCode.unsupported_version)


def _versions(kind: Any, realm: Realm, code: ErrorCode) -> Any:
    key = item_type(kind, "api_keys")
    keys = tuple(
        key(api_key=i16(api), min_version=i16(low), max_version=i16(high))
        for api, (low, high) in sorted(realm.spoken.items())
    )
    values: dict[str, Any] = {"error_code": code, "api_keys": keys}
    if "throttle_time" in kind.__annotations__:
        values["throttle_time"] = NO_TIME
    if "supported_features" in kind.__annotations__:
        supported, finalized = realm.features()
        feature = item_type(kind, "supported_features")
        level = item_type(kind, "finalized_features")
        values["supported_features"] = tuple(
            feature(name=name, min_version=i16(low), max_version=i16(high)) for name, (low, high) in supported.items()
        )
        values["finalized_features"] = tuple(
            level(name=name, min_version_level=i16(low), max_version_level=i16(high))
            for name, (low, high) in finalized.items()
        )
        values["finalized_features_epoch"] = i64(realm.features_epoch())
    return kind(**values)
