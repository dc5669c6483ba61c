"""Groups live in one cluster, their home, whatever topics they read; offsets are kept where the topics are.

A member that commits offsets of a topic of another cluster is first shown to belong to the group by a heartbeat at
home, the fence; then they are committed at the topic's owner, for a group without members there (`abroad.py`). Who
commits for a group and is no member of it may do so, as at home, only while it has none.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from kio.schema.consumer_group_describe.v0.request import ConsumerGroupDescribeRequest
from kio.schema.describe_groups.v5.request import DescribeGroupsRequest
from kio.schema.errors import ErrorCode
from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.static.primitive import i32

from strandline.core.routes import literal_start
from strandline.errors import KafkaError
from strandline.proxy.exchange import Exchange, Realm
from strandline.proxy.rules.abroad import GROUP, NO_GENERATION, at_coordinator, commit_abroad
from strandline.wire.kafka_frames import answer_type
from strandline.wire.refusal import item_type, refused, refused_part

TRANSACTION, SHARE = 1, 2
BATCHED = 4
CONSUMER_GROUP_DESCRIBE = 69
EMPTY = "Empty"
# There is none of this name, or one of another kind.
NO_CLASSIC_GROUP = "Dead"


async def find_coordinator(exchange: Exchange) -> Any:
    """Each key is looked for in its own cluster, and found at the address that clients have for the broker."""
    request, realm = exchange.request, exchange.realm
    kind = int(getattr(request, "key_type", GROUP))
    owners = realm.routes.transactional_id if kind == TRANSACTION else realm.routes.group
    if exchange.head.version < BATCHED:
        return realm.located(await _find(realm, owners.of(request.key), request))
    parts: dict[str, list[str]] = defaultdict(list)
    for key in request.coordinator_keys:
        # The key of a share coordinator is group:topic-id:partition.
        parts[owners.of(key.split(":")[0] if kind == SHARE else key)].append(key)
    answers = await asyncio.gather(
        *(_find(realm, name, replace(request, coordinator_keys=tuple(keys))) for name, keys in parts.items())
    )
    found = tuple(realm.located(one) for answer in answers for one in answer.coordinators)
    return replace(refused(replace(request, coordinator_keys=()), ErrorCode.none), coordinators=found)


async def _find(realm: Realm, cluster: str, request: Any) -> Any:
    try:
        return await realm.ask(cluster, request)
    except KafkaError as error:
        return refused(request, ErrorCode.coordinator_not_available, f"cluster {cluster}: {error}")


async def at_home(exchange: Exchange) -> Any:
    """The group's coordinator answers; a connection to another cluster's broker is the wrong place."""
    home = exchange.realm.routes.group.of(exchange.request.group_id)
    if home != exchange.here.cluster.name:
        return refused(exchange.request, ErrorCode.not_coordinator)
    return await exchange.forward()


async def in_one_cluster(exchange: Exchange) -> Any:
    """A group of the new protocol: the broker assigns, and knows the topics of its own cluster only."""
    request, routes = exchange.request, exchange.realm.routes
    home = routes.group.of(request.group_id)
    foreign = [str(name) for name in request.subscribed_topic_names or () if routes.topic.of(name) != home]
    pattern = getattr(request, "subscribed_topic_regex", None)
    if pattern and routes.topic.possible(literal_start(pattern)) != {home}:
        foreign.append(f"of {pattern}")
    if pattern and not foreign and routes.renames(home):
        reason = f"topics of cluster {home} have other names there, which {pattern} does not mean: subscribe by names"
        return refused(request, ErrorCode.invalid_request, reason)
    if foreign:
        where = f"group {request.group_id} is at home in cluster {home}, and topic {foreign[0]} may not be there"
        reason = f"{where}: only groups with group.protocol=classic may read topics of several clusters"
        return refused(request, ErrorCode.invalid_request, reason)
    return await at_home(exchange)


async def offset_commit(exchange: Exchange) -> Any:
    """At home for topics that are there, at each owner for the others."""
    request, realm, home = exchange.request, exchange.realm, exchange.here.cluster.name
    if realm.routes.group.of(request.group_id) != home:
        return refused(request, ErrorCode.not_coordinator)
    parts = await _by_owner(exchange, request.topics)
    strangers, ours = parts.pop(None, []), parts.pop(home, [])
    answers = []
    if parts:
        code = await _fence(exchange)
        if code is not ErrorCode.none:
            return refused(request, code)
    if ours or not (parts or strangers):
        answers.append(await exchange.forward(replace(request, topics=tuple(ours))))
    answers += await asyncio.gather(
        *(commit_abroad(realm, str(name), replace(request, topics=tuple(topics))) for name, topics in parts.items())
    )
    kind = item_type(answer_type(request.__api_key__, request.__version__), "topics")
    lost = tuple(refused_part(kind, topic, ErrorCode.unknown_topic_id) for topic in strangers)
    empty = refused(replace(request, topics=()), ErrorCode.none)
    return replace(empty, topics=sum((answer.topics for answer in answers), ()) + lost)


async def _fence(exchange: Exchange) -> ErrorCode:
    """Whether the one who commits belongs to the group, as its coordinator sees it."""
    request = exchange.request
    generation = int(getattr(request, "generation_id_or_member_epoch", NO_GENERATION))
    if generation == NO_GENERATION:
        return await _fence_of_no_member(exchange)
    beat = HeartbeatRequest(
        group_id=request.group_id,
        generation_id=i32(generation),
        member_id=request.member_id,
        group_instance_id=getattr(request, "group_instance_id", None),
    )
    answer = await exchange.dedicated.ask(beat)
    # A rebalance that has begun does not make a commit wrong: the coordinator takes them until it is over.
    known = answer.error_code in (ErrorCode.none, ErrorCode.rebalance_in_progress)
    return ErrorCode.none if known else answer.error_code


async def _fence_of_no_member(exchange: Exchange) -> ErrorCode:
    """Whether the group has no members, as its coordinator sees it: Kafka takes offsets of no member only then.

    The coordinator has to be asked for its state. A commit without topics, which would be refused like one with, is
    answered before it comes to the group.
    """
    group_id = exchange.request.group_id
    classic = DescribeGroupsRequest(groups=(group_id,), include_authorized_operations=False)
    (group,) = (await exchange.dedicated.ask(classic)).groups
    if group.error_code is ErrorCode.none and group.group_state == NO_CLASSIC_GROUP:
        if CONSUMER_GROUP_DESCRIBE not in exchange.here.cluster.versions:
            return ErrorCode.none
        new = ConsumerGroupDescribeRequest(group_ids=(group_id,), include_authorized_operations=False)
        (group,) = (await exchange.dedicated.ask(new)).groups
    if group.error_code is ErrorCode.group_id_not_found:
        return ErrorCode.none
    if group.error_code is not ErrorCode.none:
        return ErrorCode(group.error_code)
    return ErrorCode.none if group.group_state == EMPTY else ErrorCode.unknown_member_id


async def offset_fetch(exchange: Exchange) -> Any:
    """From home and from the owners of the other topics; a group that asks for all gets what every cluster has."""
    request = exchange.request
    if not hasattr(request, "groups"):
        return await _offsets_of_the_group(exchange)
    groups = await asyncio.gather(*(_offsets_of_one(exchange, group) for group in request.groups))
    return replace(refused(replace(request, groups=()), ErrorCode.none), groups=tuple(groups))


async def _offsets_of_one(exchange: Exchange, group: Any) -> Any:
    kind = answer_type(exchange.request.__api_key__, exchange.request.__version__)
    refuse = partial(refused_part, item_type(kind, "groups"), group)
    if not _is_at_home(exchange, group.group_id):
        return refuse(ErrorCode.not_coordinator)

    async def ask(cluster: str, topics: Any, *, abroad: bool) -> Any:
        given: dict[str, Any] = {"topics": topics}
        if abroad and hasattr(group, "member_id"):
            given |= {"member_id": None, "member_epoch": i32(NO_GENERATION)}
        request = replace(exchange.request, groups=(replace(group, **given),))
        answer = await _ask_offsets(exchange, cluster, group.group_id, request)
        return None if answer is None else answer.groups[0]

    return await _merged_offsets(exchange, group.topics, ask, refuse)


async def _offsets_of_the_group(exchange: Exchange) -> Any:
    """Versions in which a request is about one group."""
    request = exchange.request
    if not _is_at_home(exchange, request.group_id):
        return refused(request, ErrorCode.not_coordinator)

    async def ask(cluster: str, topics: Any, *, abroad: bool) -> Any:
        del abroad
        return await _ask_offsets(exchange, cluster, request.group_id, replace(request, topics=topics))

    return await _merged_offsets(exchange, request.topics, ask, partial(refused, request))


def _is_at_home(exchange: Exchange, group_id: str) -> bool:
    """Whether a group is at home in the cluster here. Elsewhere a part of its offsets would look like all of them."""
    return exchange.realm.routes.group.of(group_id) == exchange.here.cluster.name


async def _ask_offsets(exchange: Exchange, cluster: str, group_id: str, request: Any) -> Any:
    if cluster == exchange.here.cluster.name:
        return await exchange.forward(request)
    try:
        return await at_coordinator(exchange.realm, cluster, group_id, request)
    except KafkaError:
        return None


async def _merged_offsets(exchange: Exchange, topics: Any, ask: Any, refuse: Callable[[ErrorCode], Any]) -> Any:
    realm, home = exchange.realm, exchange.here.cluster.name
    if topics is None:
        clusters: dict[str, Any] = dict.fromkeys(realm.clusters)
    else:
        parts = await _by_owner(exchange, topics)
        # Ids that nobody knows are for the group's coordinator to refuse.
        parts[home] += parts.pop(None, [])
        clusters = {str(name): tuple(part) for name, part in parts.items() if part or name == home}
    told = await asyncio.gather(*(ask(name, part, abroad=name != home) for name, part in clusters.items()))
    answers = dict(zip(clusters, told, strict=True))
    # Refused is all that was asked for: a client that finds only a part of it in an answer waits for the rest for ever.
    for one in (answers[home], *told):
        if one is None:
            # To this clients ask again. After COORDINATOR_NOT_AVAILABLE librdkafka never reads the partitions.
            return refuse(ErrorCode.coordinator_load_in_progress)
        if (code := getattr(one, "error_code", ErrorCode.none)) is not ErrorCode.none:
            return refuse(code)
    # A cluster may have offsets of the group's name for topics that clients see of another one, or not at all.
    found = [
        topic
        for name, one in answers.items()
        for topic in one.topics
        if name == home or _owner(exchange, topic) == name
    ]  # fmt: skip
    return replace(answers[home], topics=tuple(found))


async def offset_delete(exchange: Exchange) -> Any:
    """At home and at the owners of the other topics.

    Home refuses to delete offsets of topics that a member reads. The owners of others see no members, so there nothing
    is deleted while the group has any.
    """
    request, realm, home = exchange.request, exchange.realm, exchange.here.cluster.name
    if not _is_at_home(exchange, request.group_id):
        return refused(request, ErrorCode.not_coordinator)
    parts = await _by_owner(exchange, request.topics)
    answers = [await exchange.forward(replace(request, topics=tuple(parts.pop(home, []))))]
    code = await _fence_of_no_member(exchange) if parts else ErrorCode.none
    if code is not ErrorCode.none:
        code = ErrorCode.group_subscribed_to_topic if code is ErrorCode.unknown_member_id else code
        kind = item_type(answer_type(request.__api_key__, request.__version__), "topics")
        kept = tuple(refused_part(kind, topic, code) for topics in parts.values() for topic in topics)
        return replace(answers[0], topics=answers[0].topics + kept)
    for name, topics in parts.items():
        part = replace(request, topics=tuple(topics))
        try:
            answers.append(await at_coordinator(realm, str(name), request.group_id, part))
        except KafkaError:
            answers.append(refused(part, ErrorCode.coordinator_not_available))
    failed = [one for one in answers if one.error_code is not ErrorCode.none]
    return replace((failed or answers)[0], topics=sum((one.topics for one in answers), ()))


async def delete_groups(exchange: Exchange) -> Any:
    """At home; and the offsets that are kept for the group elsewhere go too, also when home has forgotten the group."""
    request = exchange.request
    ours = tuple(group_id for group_id in request.groups_names if _is_at_home(exchange, group_id))
    others = tuple(group_id for group_id in request.groups_names if group_id not in ours)
    answer = refused(replace(request, groups_names=others), ErrorCode.not_coordinator)
    if not ours:
        return answer
    found = await exchange.forward(replace(request, groups_names=ours))
    results = [
        replace(one, error_code=await _deleted_abroad(exchange, one.group_id, one.error_code))
        for one in found.results
    ]  # fmt: skip
    return replace(found, results=(*results, *answer.results))


async def _deleted_abroad(exchange: Exchange, group_id: str, at_home: ErrorCode) -> ErrorCode:
    """What is said of a group that is to be deleted: that it is not, while offsets of it may be left somewhere."""
    if at_home not in (ErrorCode.none, ErrorCode.group_id_not_found):
        return at_home
    codes = {at_home}
    for cluster in exchange.realm.clusters:
        if cluster != exchange.here.cluster.name:
            request = replace(exchange.request, groups_names=(group_id,))
            try:
                (one,) = (await at_coordinator(exchange.realm, cluster, group_id, request)).results
            except KafkaError:
                return ErrorCode.coordinator_not_available
            codes.add(one.error_code)
    wrong = codes - {ErrorCode.none, ErrorCode.group_id_not_found}
    return next(iter(wrong)) if wrong else ErrorCode.none if ErrorCode.none in codes else at_home


async def _by_owner(exchange: Exchange, topics: Iterable[Any]) -> dict[str | None, list[Any]]:
    await exchange.realm.directory.meet(getattr(topic, "topic_id", None) for topic in topics)
    parts: dict[str | None, list[Any]] = defaultdict(list)
    for topic in topics:
        parts[_owner(exchange, topic)].append(topic)
    return parts


def _owner(exchange: Exchange, topic: Any) -> str | None:
    return exchange.realm.directory.owner(getattr(topic, "name", None), getattr(topic, "topic_id", None))


async def list_groups(exchange: Exchange) -> Any:
    """Those that the broker of this connection coordinates, as clients ask every broker for its own.

    What a cluster keeps for groups that are at home elsewhere are offsets, and no group to its clients.
    """
    answer, routes = await exchange.forward(), exchange.realm.routes
    shown = [one for one in answer.groups if routes.group.of(one.group_id) == exchange.here.cluster.name]
    return replace(answer, groups=tuple(shown))
