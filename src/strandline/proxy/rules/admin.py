"""Topics, configurations and assignments: each to its owner."""

import asyncio
from collections import defaultdict
from dataclasses import replace
from typing import Any

from kio.schema.errors import ErrorCode

from strandline.errors import KafkaError
from strandline.proxy.cluster import ANY
from strandline.proxy.exchange import Exchange, Realm
from strandline.proxy.rules.splitting import split
from strandline.wire.kafka_frames import answer_type
from strandline.wire.refusal import item_type, refused, refused_part

TOPIC, BROKER, BROKER_LOGGER, GROUP, CLIENT_METRICS = 2, 4, 8, 32, 16
OF_A_BROKER = frozenset({BROKER, BROKER_LOGGER})
NO_TOPIC = ErrorCode.unknown_topic_or_partition


def _by_name(exchange: Exchange, topic: Any) -> str | None:
    return _owner_of_topic(exchange.realm, topic.name if hasattr(topic, "name") else topic.topic)


def _by_name_or_id(exchange: Exchange, topic: Any) -> str | None:
    if isinstance(topic, str) or topic.name is not None:
        return _owner_of_topic(exchange.realm, topic if isinstance(topic, str) else topic.name)
    return exchange.realm.directory.owner(None, topic.topic_id)


def _owner_of_topic(realm: Realm, name: str) -> str | None:
    owner = realm.routes.topic.of(name)
    return owner if realm.routes.can_have(owner, name) else None


create_topics = split("topics", "topics", _by_name, ErrorCode.invalid_topic_exception, changes_topics=True)
create_partitions = split("topics", "results", _by_name, NO_TOPIC, changes_topics=True)
alter_reassignments = split("topics", "responses", _by_name, NO_TOPIC, changes_topics=True)
list_reassignments = split("topics", "topics", _by_name, NO_TOPIC)
elect_leaders = split("topic_partitions", "replica_election_results", _by_name, NO_TOPIC, changes_topics=True)


async def list_transactions(exchange: Exchange) -> Any:
    """Those that the broker of this connection coordinates, as clients ask every broker for its own."""
    answer, owners = await exchange.forward(), exchange.realm.routes.transactional_id
    shown = [one for one in answer.transaction_states if owners.of(one.transactional_id) == exchange.here.cluster.name]
    return replace(answer, transaction_states=tuple(shown))


async def delete_topics(exchange: Exchange) -> Any:
    """By name or by id."""
    names = hasattr(exchange.request, "topic_names")
    field, unknown = ("topic_names", NO_TOPIC) if names else ("topics", ErrorCode.unknown_topic_id)
    if not names:
        await exchange.realm.directory.meet(topic.topic_id for topic in exchange.request.topics)
    await exchange.realm.directory.fresh(exchange.realm.clusters)
    return await split(field, "responses", _by_name_or_id, unknown, changes_topics=True)(exchange)


async def configs(exchange: Exchange) -> Any:
    """Configurations to the owner of what they are of; those of a broker to that broker, by the id that clients see."""
    request, realm = exchange.request, exchange.realm
    parts: dict[tuple[str, int], list[Any]] = defaultdict(list)
    lost = []
    for resource in request.resources:
        found = _owner(realm, resource)
        if found is None:
            lost.append(resource)
        else:
            cluster, node, name = found
            parts[cluster, node].append(replace(resource, resource_name=name))
    answers = await asyncio.gather(
        *(_configs_of(realm, cluster, node, replace(request, resources=tuple(resources)))
          for (cluster, node), resources in parts.items())
    )  # fmt: skip
    kind = answer_type(request.__api_key__, request.__version__)
    field = "results" if "results" in kind.__annotations__ else "responses"
    item = item_type(kind, field)
    reason = "no cluster has this broker"
    refusals = tuple(refused_part(item, resource, ErrorCode.invalid_request, reason) for resource in lost)
    whole = answers[0] if answers else refused(replace(request, resources=()), ErrorCode.none)
    return replace(whole, **{field: sum((getattr(one, field) for one in answers), ()) + refusals})


async def _configs_of(realm: Realm, cluster: str, node: int, request: Any) -> Any:
    try:
        answer = await realm.clusters[cluster].ask(request, node)
    except KafkaError as error:
        answer = refused(request, ErrorCode.request_timed_out, f"cluster {cluster}: {error}")
    field = "results" if hasattr(answer, "results") else "responses"
    return replace(answer, **{field: tuple(_outside(realm, cluster, one) for one in getattr(answer, field))})


def _owner(realm: Realm, resource: Any) -> tuple[str, int, str] | None:
    """The cluster, the broker and the name there of something that has a configuration."""
    name = resource.resource_name
    if resource.resource_type == TOPIC:
        cluster = realm.routes.topic.of(name)
        return cluster, ANY, realm.routes.inside(cluster, name)
    if resource.resource_type == GROUP:
        return realm.routes.group.of(name), ANY, name
    if resource.resource_type in OF_A_BROKER and name.isdecimal():
        found = realm.blocks.owner(int(name))
        if found is None or found not in realm.clusters:
            return None
        node = realm.blocks.inside(found, int(name))
        return found, node, str(node)
    return realm.routes.primary, ANY, name


def _outside(realm: Realm, cluster: str, resource: Any) -> Any:
    name = resource.resource_name
    if resource.resource_type == TOPIC:
        return replace(resource, resource_name=realm.routes.outside(cluster, name))
    if resource.resource_type in OF_A_BROKER and name.isdecimal():
        return replace(resource, resource_name=str(realm.blocks.outside(cluster, int(name))))
    return resource


async def list_config_resources(exchange: Exchange) -> Any:
    """Of all clusters, by the names that clients see."""
    realm = exchange.realm
    answers = await asyncio.gather(*(_resources_of(realm, name, exchange.request) for name in realm.clusters))
    failed = [one for one in answers if one.error_code is not ErrorCode.none]
    found = sum((one.config_resources for one in answers), ())
    return replace((failed or answers)[0], config_resources=tuple(dict.fromkeys(found)))


async def _resources_of(realm: Realm, cluster: str, request: Any) -> Any:
    try:
        answer = await realm.clusters[cluster].ask(request)
    except KafkaError:
        return refused(request, ErrorCode.request_timed_out)
    shown = [
        _outside(realm, cluster, one)
        for one in answer.config_resources
        if getattr(one, "resource_type", CLIENT_METRICS) != TOPIC or realm.routes.shows(cluster, one.resource_name)
    ]
    return replace(answer, config_resources=tuple(shown))


def at_one(word: str) -> Any:
    """A rule: the cluster that is named for it answers, in its own names and ids. It is asked in the proxy's name."""

    async def answer(exchange: Exchange) -> Any:
        realm = exchange.realm
        name = realm.allowed[word]
        try:
            return await realm.clusters[name].ask(exchange.request)
        except KafkaError as error:
            return refused(exchange.request, ErrorCode.request_timed_out, f"cluster {name}: {error}")

    return answer
