"""Producer ids that no two clusters can both have given out.

Every cluster counts its ids up from 0. A producer that writes to two of them under the id of one meets, in the other, a
stranger who has the same: its first batch is taken for a repeat, acknowledged and never stored. So ids for producers
without transactions lie in a range of our own, cut into parts, and each comes from one that a cluster has given out.

A cluster's part follows from the id that it was formatted with, which is the same wherever it stands in a file and in
every proxy before it: two proxies that have the same clusters in another order must not both begin with part 0. Sixteen
million parts: for ten clusters that give out ids the chance that two share a part is one in 370,000.
"""

import hashlib

FIRST = 1 << 62
PART = 1 << 38
PARTS = FIRST // PART


def part(cluster_id: str) -> int:
    """The part of a cluster, by the id that it was formatted with."""
    return int.from_bytes(hashlib.sha256(cluster_id.encode()).digest()[:8], "big") % PARTS


def minted(cluster_id: str, producer_id: int) -> int:
    """The id for a producer, from one that a cluster has given out."""
    if not 0 <= producer_id < PART:
        raise ValueError(f"producer id {producer_id} of cluster {cluster_id} does not fit")
    return FIRST + part(cluster_id) * PART + producer_id
