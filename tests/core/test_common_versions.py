"""What is offered to clients, every cluster speaks, and nothing that all of them speak is left out."""

from hypothesis import given
from hypothesis import strategies as st

from strandline.core.common_versions import common_features, common_versions, lowest_levels

RANGES = st.tuples(st.integers(0, 6), st.integers(0, 6)).map(lambda pair: (min(pair), max(pair)))
APIS = st.dictionaries(st.integers(0, 5), RANGES)
FEATURES = st.dictionaries(st.sampled_from(["metadata.version", "group.version", "transaction.version"]), RANGES)

Found = dict[int, tuple[int, int]]
FoundFeatures = dict[str, tuple[int, int]]


def spoken(ranges: Found | FoundFeatures) -> set[tuple[int | str, int]]:
    return {(key, version) for key, (low, high) in ranges.items() for version in range(low, high + 1)}


@given(st.lists(APIS, max_size=4), APIS)
def test_a_version_is_offered_if_and_only_if_all_clusters_and_we_speak_it(clusters: list[Found], ours: Found) -> None:
    common = common_versions(clusters, ours)
    assert spoken(common) == spoken(ours).intersection(*map(spoken, clusters))
    assert all(low <= high for low, high in common.values())


@given(st.lists(APIS, max_size=4), APIS)
def test_the_order_of_clusters_is_no_matter_and_nothing_given_is_changed(clusters: list[Found], ours: Found) -> None:
    copies = [dict(cluster) for cluster in clusters], dict(ours)
    assert common_versions(clusters, ours) == common_versions(clusters[::-1], ours)
    assert (clusters, ours) == copies


@given(st.lists(FEATURES, max_size=4))
def test_a_level_is_supported_if_and_only_if_all_clusters_support_it(clusters: list[FoundFeatures]) -> None:
    common = common_features(clusters)
    assert spoken(common) == (set.intersection(*map(spoken, clusters)) if clusters else set())


@given(st.lists(FEATURES, max_size=4))
def test_a_finalised_level_is_one_that_every_cluster_has_reached(clusters: list[FoundFeatures]) -> None:
    lowest = lowest_levels(clusters)
    everywhere = set.intersection(*(set(cluster) for cluster in clusters)) if clusters else set()
    assert set(lowest) == everywhere
    for name, (low, high) in lowest.items():
        assert low <= high
        assert all(high <= cluster[name][1] for cluster in clusters)
        assert any(high == cluster[name][1] for cluster in clusters)
