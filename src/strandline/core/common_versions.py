"""What several clusters have in common: a client must not use with one what another does not know."""

from collections.abc import Iterable, Mapping

Ranges = Mapping[int, tuple[int, int]]
Features = Mapping[str, tuple[int, int]]


def common_versions(clusters: Iterable[Ranges], ours: Ranges) -> dict[int, tuple[int, int]]:
    """The versions of each API that every cluster speaks, and we do. Without any cluster, ours."""
    common = dict(ours)
    for ranges in clusters:
        for api in list(common):
            low, high = ranges.get(api, (0, -1))
            low, high = max(low, common[api][0]), min(high, common[api][1])
            if low > high:
                del common[api]
            else:
                common[api] = low, high
    return common


def common_features(clusters: Iterable[Features]) -> dict[str, tuple[int, int]]:
    """The levels of each feature that every cluster has."""
    common: dict[str, tuple[int, int]] | None = None
    for features in clusters:
        if common is None:
            common = dict(features)
            continue
        common = {
            name: (low, high)
            for name in common.keys() & features.keys()
            if (low := max(common[name][0], features[name][0])) <= (high := min(common[name][1], features[name][1]))
        }
    return common or {}


def lowest_levels(clusters: Iterable[Features]) -> dict[str, tuple[int, int]]:
    """The level of each finalised feature that every cluster has reached: the lowest of them."""
    found = list(clusters)
    names = set.intersection(*(set(features) for features in found)) if found else set()
    return {
        name: (min(features[name][0] for features in found), min(features[name][1] for features in found))
        for name in sorted(names)
    }
