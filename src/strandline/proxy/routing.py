"""What filters have at hand: the clusters behind the proxy, and ways to ask them.

Answers come as the clusters give them. Ids of nodes in them are the clusters' own: `apply_node_id_offset` makes them
those that clients see, so that ids of two clusters are never the same.
"""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from strandline.core.virtual_nodes import Blocks
from strandline.errors import KafkaError, OptionError, did_you_mean
from strandline.proxy.cluster import Cluster


@dataclass(frozen=True, slots=True)
class ClusterRoute:
    """One cluster."""

    cluster_id: str
    bootstrap_servers: str
    node_id_offset: int
    _cluster: Cluster = field(repr=False)

    @property
    def is_connected(self) -> bool:
        """Whether it answered when it was last asked."""
        return self._cluster.is_up

    async def send_request(self, request: Any, *, within: float | None = None) -> Any:
        """Any broker's answer to a request of kio's types; a KafkaError when none comes in time."""
        return await self._cluster.ask(request, within=within)


class RoutingContext:
    """All clusters of a connection."""

    def __init__(self, clusters: Mapping[str, Cluster], blocks: Blocks, primary: str) -> None:
        self._blocks = blocks
        self._routes = {
            name: ClusterRoute(name, cluster.address, blocks.first(name), cluster) for name, cluster in clusters.items()
        }
        self._primary = primary

    @property
    def is_multi_cluster(self) -> bool:
        """Whether there is more than one."""
        return len(self._routes) > 1

    @property
    def cluster_ids(self) -> frozenset[str]:
        """Their names."""
        return frozenset(self._routes)

    @property
    def primary_cluster(self) -> ClusterRoute:
        """Where goes what no rule sends elsewhere."""
        return self._routes[self._primary]

    def cluster(self, cluster_id: str) -> ClusterRoute | None:
        """One of them, if there is such."""
        return self._routes.get(cluster_id)

    async def send_request(self, cluster_id: str, request: Any, *, within: float | None = None) -> Any:
        """Ask one cluster."""
        return await self._known(cluster_id).send_request(request, within=within)

    async def fan_out(
        self, cluster_ids: Collection[str], request: Any, *, within: float | None = None
    ) -> dict[str, Any | KafkaError]:
        """Ask several at the same time. One that does not answer has its error in place of an answer."""
        asked = [self._known(name) for name in cluster_ids]
        answers = await asyncio.gather(*(_answer_or_error(route, request, within) for route in asked))
        return dict(zip((route.cluster_id for route in asked), answers, strict=True))

    async def fan_out_to_all(self, request: Any, *, within: float | None = None) -> dict[str, Any | KafkaError]:
        """Ask all of them."""
        return await self.fan_out(list(self._routes), request, within=within)

    def apply_node_id_offset(self, node_id: int, cluster_id: str) -> int:
        """The id that clients see of a cluster's node."""
        return self._blocks.outside(self._known(cluster_id).cluster_id, node_id)

    def remove_node_id_offset(self, node_id: int, cluster_id: str) -> int:
        """The cluster's own id of a node that clients see."""
        return self._blocks.inside(self._known(cluster_id).cluster_id, node_id)

    def cluster_for_node_id(self, node_id: int) -> str | None:
        """Whose a node is that clients see; None for a node of no cluster."""
        owner = self._blocks.owner(node_id)
        return owner if owner in self._routes else None

    def _known(self, cluster_id: str) -> ClusterRoute:
        route = self._routes.get(cluster_id)
        if route is None:
            raise OptionError(f"cluster '{cluster_id}' is unknown; {did_you_mean(cluster_id, self._routes)}")
        return route


async def _answer_or_error(route: ClusterRoute, request: Any, within: float | None) -> Any | KafkaError:
    try:
        return await route.send_request(request, within=within)
    except KafkaError as error:
        return error


class NetFilterContext:
    """A new connection, and the choice of where it leads."""

    def __init__(self, peer: str, listener: str) -> None:
        self.peer = peer
        """Host and port of the client."""
        self.listener = listener
        """`bootstrap`, or the cluster whose broker's port it is."""
        self.chosen: tuple[str, ...] = ()

    def initiate_connect(self, cluster_id: str) -> None:
        """To one cluster only: it looks like any single one."""
        self.chosen = (cluster_id,)

    def initiate_multi_cluster_connect(self, cluster_ids: Collection[str]) -> None:
        """To several, as one."""
        self.chosen = tuple(cluster_ids)


class NetFilter(Protocol):
    """A filter that chooses where each new connection leads. There is one at most."""

    def select_server(self, context: NetFilterContext, routing: RoutingContext) -> None:
        """Call one of the context's two methods, with clusters of the routing."""
        ...
