"""A request of a client, and all that is at hand to answer it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from kio.static.primitive import i32

from strandline.core.common_versions import common_features, common_versions, lowest_levels
from strandline.core.routes import Routes
from strandline.core.virtual_nodes import Blocks
from strandline.proxy.cluster import ANY, Cluster
from strandline.proxy.directory import Directory
from strandline.proxy.routing import RoutingContext
from strandline.wire.kafka_frames import Head
from strandline.wire.retyped import retyped

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Here:
    """The broker whose part a connection plays; at the port where clients begin, any of the primary cluster."""

    cluster: Cluster
    node: int = ANY


class Dedicated(Protocol):
    """The connection to that broker which belongs to the client's."""

    async def ask(self, request: Any) -> Any:
        """The broker's answer, behind all that the client asked before."""
        ...

    async def tell(self, request: Any) -> None:
        """Send a request that is not answered."""
        ...


@dataclass(slots=True)
class Realm:
    """What all connections of a proxy share."""

    clusters: Mapping[str, Cluster]
    routes: Routes
    blocks: Blocks
    directory: Directory
    ours: Mapping[int, tuple[int, int]]
    """The versions of each API that there is a rule for."""
    place: "Callable[[str, int], tuple[str, int]]"
    """Where clients find a broker."""
    offsets_last: timedelta
    """How long offsets away from home are kept; none: as long as the owner keeps them by itself."""
    allowed: Mapping[str, str]
    """APIs that are for one cluster, by their words in the configuration, and for which."""
    coordinators: dict[tuple[str, str], int] = field(default_factory=dict)
    """Of groups with offsets away from home: cluster and group."""

    spoken: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The versions of each API that clients may use."""

    def learn(self) -> None:
        """A cluster has told what it speaks."""
        self.spoken = common_versions((c.versions for c in self.clusters.values() if c.versions), self.ours)

    def features(self) -> tuple[dict[str, tuple[int, int]], dict[str, tuple[int, int]]]:
        """What clusters have in common beside APIs: levels that they support, and the one that they are at."""
        known = [cluster for cluster in self.clusters.values() if cluster.versions]
        return common_features(c.supported for c in known), lowest_levels(c.finalized for c in known)

    def features_epoch(self) -> int:
        """Grows when a feature is at another level in one of them: clients go by the highest that they were told."""
        return sum(max(cluster.features_epoch, 0) for cluster in self.clusters.values())

    def routing(self) -> RoutingContext:
        """For filters."""
        return RoutingContext(self.clusters, self.blocks, self.routes.primary)

    def located(self, answer: Any) -> Any:
        """An answer in which brokers have the addresses where clients find them, and not their own."""
        node = getattr(answer, "node_id", getattr(answer, "broker_id", None))
        if node is not None and hasattr(answer, "port"):
            owner = self.blocks.owner(node) if node >= 0 else None
            if owner is None or owner not in self.clusters:
                return answer
            host, port = self.place(owner, self.blocks.inside(owner, node))
            return replace(answer, host=host, port=i32(port))
        listed = {name: getattr(answer, name, ()) for name in ("brokers", "coordinators", "node_endpoints")}
        return replace(answer, **{name: tuple(map(self.located, found)) for name, found in listed.items() if found})

    async def ask(self, cluster: str, request: Any, node: int = ANY, **options: Any) -> Any:
        """Ask a cluster over the pool, in the clients' names and ids."""
        inside = retyped(request, self.directory.changes_back[cluster])
        answer = await self.clusters[cluster].ask(inside, node, **options)
        return retyped(answer, self.directory.changes[cluster])


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request."""

    head: Head
    request: Any
    here: Here
    realm: Realm
    dedicated: Dedicated

    def inside(self, request: Any = None) -> Any:
        """A request, the client's own if none is given, in the names and ids of the cluster here."""
        changes = self.realm.directory.changes_back[self.here.cluster.name]
        return retyped(self.request if request is None else request, changes)

    async def forward(self, request: Any = None) -> Any:
        """What the broker of this connection answers, in the clients' names and ids."""
        answer = await self.dedicated.ask(self.inside(request))
        return retyped(answer, self.realm.directory.changes[self.here.cluster.name])
