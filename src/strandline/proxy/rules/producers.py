"""Producers: ids that no two clusters share; transactions that stay in the cluster of their transactional id."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.types import ProducerId

from strandline.core.producer_ids import minted
from strandline.errors import KafkaError, MalformedFrame
from strandline.proxy.exchange import Exchange, Realm
from strandline.wire.refusal import refused

V3 = "v3_and_below_"


async def init_producer_id(exchange: Exchange) -> Any:
    """With a transactional id, its coordinator's answer; without, an id that is unique over all clusters."""
    request, realm = exchange.request, exchange.realm
    if request.transactional_id is not None:
        return await at_coordinator(exchange)
    order = sorted(realm.clusters, key=lambda name: (name != realm.routes.primary, not realm.clusters[name].is_up))
    for name in order:
        try:
            answer = await realm.ask(name, request)
        except KafkaError:
            continue
        if answer.error_code is not ErrorCode.none:
            return answer
        cluster_id = await _cluster_id(realm, name)
        if cluster_id is None:
            continue
        return replace(answer, producer_id=ProducerId(minted(cluster_id, answer.producer_id)))
    return refused(request, ErrorCode.coordinator_not_available)


async def _cluster_id(realm: Realm, name: str) -> str | None:
    """What a cluster was formatted with; without it nothing can be made of its ids."""
    if realm.clusters[name].cluster_id is None:
        with suppress(KafkaError):
            await realm.directory.refresh(name)
    return realm.clusters[name].cluster_id


async def at_coordinator(exchange: Exchange) -> Any:
    """A request about a transaction goes to the broker of this connection, if that is in the transaction's cluster."""
    owner = exchange.realm.routes.transactional_id.of(exchange.request.transactional_id)
    if owner != exchange.here.cluster.name:
        return refused(exchange.request, ErrorCode.not_coordinator)
    return await exchange.forward()


async def add_partitions(exchange: Exchange) -> Any:
    """Partitions of a topic of another cluster cannot be part of a transaction; then none is added."""
    request, routes = exchange.request, exchange.realm.routes
    if not hasattr(request, V3 + "topics"):
        # For brokers among themselves.
        return refused(request, ErrorCode.cluster_authorization_failed)
    owner = routes.transactional_id.of(request.v3_and_below_transactional_id)
    if owner != exchange.here.cluster.name:
        return refused(request, ErrorCode.not_coordinator)
    if any(routes.topic.of(topic.name) != owner for topic in request.v3_and_below_topics):
        return refused(request, ErrorCode.invalid_txn_state)
    return await exchange.forward()


async def add_offsets(exchange: Exchange) -> Any:
    """The offsets of a group can be part of a transaction in the group's home only."""
    request, routes = exchange.request, exchange.realm.routes
    if routes.group.of(request.group_id) != routes.transactional_id.of(request.transactional_id):
        return refused(request, ErrorCode.invalid_txn_state)
    return await at_coordinator(exchange)


async def commit_offsets(exchange: Exchange) -> Any:
    """Offsets in a transaction: of topics of its own cluster only."""
    request, routes = exchange.request, exchange.realm.routes
    owner = routes.transactional_id.of(request.transactional_id)
    if routes.group.of(request.group_id) != exchange.here.cluster.name:
        return refused(request, ErrorCode.not_coordinator)
    owners = {routes.topic.of(topic.name) for topic in request.topics} | {exchange.here.cluster.name}
    if owners != {owner}:
        return refused(request, ErrorCode.invalid_txn_state)
    return await exchange.forward()


async def produce(exchange: Exchange) -> Any:
    """What could not be passed as it came: under a transactional id of another cluster, or to a topic renamed."""
    request, routes = exchange.request, exchange.realm.routes
    cluster = exchange.here.cluster.name
    if request.transactional_id is not None and routes.transactional_id.of(request.transactional_id) != cluster:
        if not request.acks:
            raise MalformedFrame(f"Produce of transaction {request.transactional_id} in cluster {cluster}, with acks=0")
        return refused(request, ErrorCode.invalid_txn_state)
    if not request.acks:
        await exchange.dedicated.tell(exchange.inside())
        return None
    return exchange.realm.located(await exchange.forward())
