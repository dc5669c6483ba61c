"""Several Kafka clusters that look like one to any Kafka client."""

from strandline.proxy.filters import Answered, FilterContext, Filters, Forward
from strandline.proxy.routing import ClusterRoute, NetFilter, NetFilterContext, RoutingContext
from strandline.proxy.server import Proxy, Settings

__all__ = [
    "Answered",
    "ClusterRoute",
    "FilterContext",
    "Filters",
    "Forward",
    "NetFilter",
    "NetFilterContext",
    "Proxy",
    "RoutingContext",
    "Settings",
]
