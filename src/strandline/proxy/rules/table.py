"""The rule of every API that Kafka 4.x has. `docs/proxy.md` shows this table."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from kio.static.primitive import i32

from strandline.proxy.backend import LARGEST_GATHERED
from strandline.proxy.exchange import Exchange, Here, Realm
from strandline.proxy.rules import admin, cluster, groups, producers
from strandline.wire.kafka_frames import FETCH, PRODUCE, api_name, versions_known

Answer = Callable[[Exchange], Awaitable[Any]]
"""An answer, or one that is encoded already, or None for a request that has none."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What becomes of requests of one API."""

    api_key: int
    text: str
    answer: Answer | None = None
    """None: clients are not told that there is such an API, and are turned away when they use it all the same."""
    passes: Callable[[Realm, Here, str | None], bool] | None = None
    """Whether a request that begins with this name goes to the broker here as it is, and its answer to the client."""
    allowed_by: str | None = None
    """The word of `allow` without which clients are not told that there is such an API either."""

    @property
    def name(self) -> str:
        """The API's name."""
        return api_name(self.api_key)


def always(realm: Realm, here: Here, name: str | None) -> bool:
    """To the broker of this connection, whichever it is."""
    del realm, here, name
    return True


def of_group(realm: Realm, here: Here, name: str | None) -> bool:
    """To the home of the group that is named first."""
    return name is not None and realm.routes.group.of(name) == here.cluster.name


def of_transaction(realm: Realm, here: Here, name: str | None) -> bool:
    """To the cluster of the transactional id that is named first."""
    return name is not None and realm.routes.transactional_id.of(name) == here.cluster.name


def of_transaction_or_none(realm: Realm, here: Here, name: str | None) -> bool:
    """To the broker here, unless a transaction of another cluster writes."""
    return name is None or of_transaction(realm, here, name)


async def here(exchange: Exchange) -> Any:
    """The broker of this connection answers."""
    return await exchange.forward()


async def fetch(exchange: Exchange) -> Any:
    """What could not be passed as it came: topics by names that are others in their cluster.

    A client may ask for more at a time than is read whole here. Then it gets less at a time.
    """
    request = exchange.request
    if getattr(request, "max_bytes", 0) > MOST_FETCHED:
        request = replace(request, max_bytes=i32(MOST_FETCHED))
    return exchange.realm.located(await exchange.forward(request))


# What a broker sends is larger by a batch at most.
MOST_FETCHED: Final = LARGEST_GATHERED // 2
NOT_FOR_CLIENTS: Final = "not offered: between brokers and controllers"
REFUSED: Final = "refused: it has no meaning over several clusters"
ALLOWED: Final[Mapping[str, tuple[int, ...]]] = MappingProxyType(
    {"acls": (29, 30, 31), "quotas": (48, 49), "scram": (50, 51), "quorum": (55, 80, 81)}
)
"""What may be allowed by a word in the configuration: then it is for one cluster."""
BROKER: Final = "the broker of the connection"
HOME: Final = "the group's home"
OWNER: Final = "each topic at its owner, ids both ways"
RESOURCE: Final = "each resource at its owner; brokers by the ids that clients see"
ONE_CLUSTER: Final = "the group's home; topics of its own cluster only, others are refused"

RULES: Final[Mapping[int, Rule]] = MappingProxyType({rule.api_key: rule for rule in (
    Rule(PRODUCE, "passed to the broker, and its answer with the ids of leaders; a transaction stays in its cluster",
         producers.produce, of_transaction_or_none),
    Rule(FETCH, "passed to the broker, and its answer with ids of leaders and preferred replicas", fetch, always),
    Rule(2, BROKER, here, always),
    Rule(3, "all clusters as one, from what is known; a topic is created at its owner", cluster.metadata),
    Rule(8, "home for its own topics, each owner for others, behind a heartbeat at home", groups.offset_commit),
    Rule(9, "home, and each owner for its topics", groups.offset_fetch),
    Rule(10, "each key in its cluster", groups.find_coordinator),
    Rule(11, HOME, groups.at_home, of_group),
    Rule(12, HOME, groups.at_home, of_group),
    Rule(13, HOME, groups.at_home, of_group),
    Rule(14, HOME, groups.at_home, of_group),
    Rule(15, BROKER, here, always),
    Rule(16, "the broker of the connection, without groups that are at home elsewhere", groups.list_groups),
    Rule(17, "answered by the proxy, where clients sign in"),
    Rule(18, "what all clusters speak, and there is a rule for", cluster.api_versions),
    Rule(19, OWNER, admin.create_topics),
    Rule(20, OWNER, admin.delete_topics),
    Rule(21, BROKER, here, always),
    Rule(22, "with a transactional id its coordinator; without, an id that is unique over all clusters",
         producers.init_producer_id, of_transaction),
    Rule(23, BROKER, here, always),
    Rule(24, "the coordinator; a topic of another cluster is INVALID_TXN_STATE", producers.add_partitions),
    Rule(25, "the coordinator; a group of another cluster is INVALID_TXN_STATE", producers.add_offsets),
    Rule(26, "the coordinator", producers.at_coordinator, of_transaction),
    Rule(27, NOT_FOR_CLIENTS),
    Rule(28, "home; a topic or a group of another cluster than the transaction's is INVALID_TXN_STATE",
         producers.commit_offsets),
    Rule(32, RESOURCE, admin.configs),
    Rule(33, RESOURCE, admin.configs),
    Rule(34, BROKER, here, always),
    Rule(35, BROKER, here, always),
    Rule(36, "answered by the proxy, where clients sign in"),
    Rule(37, OWNER, admin.create_partitions),
    *(Rule(key, REFUSED) for key in (38, 39, 40, 41)),
    Rule(42, "the group's home, and its offsets elsewhere", groups.delete_groups),
    Rule(43, OWNER, admin.elect_leaders),
    Rule(44, RESOURCE, admin.configs),
    Rule(45, OWNER, admin.alter_reassignments),
    Rule(46, OWNER, admin.list_reassignments),
    Rule(47, "home, and each owner for its topics", groups.offset_delete),
    *(Rule(key, NOT_FOR_CLIENTS) for key in (52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82)),
    Rule(57, REFUSED),
    Rule(60, "the brokers of all clusters", cluster.describe_cluster),
    Rule(61, BROKER, here, always),
    Rule(64, REFUSED),
    Rule(65, BROKER, here, always),
    Rule(66, "the broker of the connection, without transactional ids of other clusters", admin.list_transactions),
    Rule(68, ONE_CLUSTER, groups.in_one_cluster),
    Rule(69, BROKER, here, always),
    *(Rule(key, "not offered: telemetry is for whoever runs the clients") for key in (71, 72)),
    Rule(74, "all clusters", admin.list_config_resources),
    Rule(75, "each topic at its owner, page by page", cluster.describe_topic_partitions),
    Rule(76, ONE_CLUSTER, groups.in_one_cluster),
    Rule(77, BROKER, here, always),
    Rule(78, BROKER, fetch, always),
    Rule(79, BROKER, fetch, always),
    *(Rule(key, NOT_FOR_CLIENTS) for key in (83, 84, 85, 86, 87)),
    *(Rule(key, "not offered: such a group makes topics in its own cluster") for key in (88, 89)),
    Rule(90, BROKER, here, always),
    Rule(91, BROKER, here, always),
    Rule(92, BROKER, here, always),
    *(Rule(key, f"refused, unless `allow` has `{word}`: then the cluster that it names", admin.at_one(word), None, word)
      for word, keys in ALLOWED.items() for key in keys),
)})  # fmt: skip

OURS: Final = MappingProxyType(
    {
        key: (0 if key == PRODUCE else versions_known(key)[0], versions_known(key)[-1])
        for key, rule in RULES.items()
        if rule.answer is not None and rule.allowed_by is None
    }
)
"""Versions that can be read here. Produce is said to begin at 0, as brokers say it for the sake of old clients."""
SIGNING_IN: Final = MappingProxyType({17: (1, versions_known(17)[-1]), 36: (0, versions_known(36)[-1])})
"""Beside them, where clients have to sign in. After a SaslHandshake 0 come tokens that are no requests."""


def allowed(words: Iterable[str]) -> dict[int, tuple[int, int]]:
    """Beside them, where words of `allow` have it so."""
    return {key: (versions_known(key)[0], versions_known(key)[-1]) for word in words for key in ALLOWED[word]}
