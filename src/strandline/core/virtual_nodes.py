"""One virtual node is one broker of one cluster: its id is the first of the cluster's block, and the broker's own.

Blocks are wide and fixed in the configuration, so a cluster that is added changes nobody's ids. Negative ids ("none",
"any") stay what they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from strandline.errors import OptionError

BLOCK = 1_000_000
LARGEST_NODE = (1 << 31) - 1
MOST_BLOCKS = (LARGEST_NODE + 1) // BLOCK - 1


@dataclass(frozen=True, slots=True)
class Blocks:
    """The number of each cluster's block."""

    numbers: Mapping[str, int]
    width: int = BLOCK

    def __post_init__(self) -> None:
        taken: dict[int, str] = {}
        most = (LARGEST_NODE + 1) // self.width - 1
        for cluster, number in self.numbers.items():
            if not 0 <= number <= most:
                raise OptionError(
                    f"cluster {cluster} has block {number}; with {self.width:,} ids each, 0 to {most} fit"
                )
            if number in taken:
                raise OptionError(f"clusters {taken[number]} and {cluster} both have block {number}")
            taken[number] = cluster

    def first(self, cluster: str) -> int:
        """What is added to a cluster's node ids."""
        return self.numbers[cluster] * self.width

    def outside(self, cluster: str, node: int) -> int:
        """The id that clients see."""
        if node < 0:
            return node
        if node >= self.width:
            raise OptionError(f"broker {node} of cluster {cluster} does not fit into a block of {self.width:,} ids")
        return self.first(cluster) + node

    def inside(self, cluster: str, node: int) -> int:
        """The broker's own id."""
        return node if node < 0 else node - self.first(cluster)

    def owner(self, node: int) -> str | None:
        """The cluster of an id that clients see; None for one of no cluster."""
        number = node // self.width
        return next((cluster for cluster, block in self.numbers.items() if block == number), None)
