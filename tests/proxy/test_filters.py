"""Filters of a user's see, answer, change and route, as docs/proxy.md says."""

import asyncio
import re
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from kio.schema.describe_cluster.v0.request import DescribeClusterRequest
from kio.schema.errors import ErrorCode

from strandline.core.virtual_nodes import Blocks
from strandline.errors import KafkaError, OptionError
from strandline.proxy import RoutingContext
from strandline.proxy.cluster import Cluster
from strandline.proxy.filters import load_filters
from strandline.proxy.rules.admin import BROKER
from strandline.stack.kafka import KafkaCluster
from tests.proxy.raw import answer, at_bootstrap, at_leader, coordinator, metadata
from tests.proxy.support import PATIENT, configuration_of, configured, create, proxied, read, write
from tests.proxy.test_no_acks import request as produce
from tests.support import TIMEOUT, run_warm, wait_for

Clusters = tuple[KafkaCluster, KafkaCluster]


def test_the_examples_of_the_routing_api_work_together(clusters: Clusters, tmp_path: Path) -> None:
    east, west = clusters
    chosen = ("Primary", "CoordinatorRouting", "Audit", "Records", "Both", "Partitions")
    names = [f"tests.proxy.filters:{name}" for name in chosen]
    with proxied(tmp_path, sections={"filters": names}, east=east.address, west=west.address) as proxy:
        create(proxy.settings(), {"filtered": 1, "eu.filtered": 1})
        write(proxy.settings(enable_idempotence=True), [("filtered", "a"), ("eu.filtered", "b")])
        found = read(proxy.settings(group_id="eu-filtered"), ["filtered", "eu.filtered"], 2)
        assert sorted(message.value() or b"" for message in found) == [b"a", b"b"]
        read(proxy.settings(group_id="secret-group"), ["filtered"], 1)
        admin = AdminClient(proxy.settings())

        def shown() -> set[str]:
            listed = admin.list_consumer_groups(request_timeout=TIMEOUT).result(TIMEOUT)
            return {group.group_id for group in listed.valid}

        wait_for(lambda: "eu-filtered" in shown(), "the group is listed")
        assert "secret-group" not in shown()
        # What a filter found in a cluster is what the client is told, with the ids and addresses that it knows.
        listed = admin.list_topics("filtered", timeout=TIMEOUT)
        assert len(listed.topics["filtered"].partitions) == 3
        for group, node, cluster in (("eu-filtered", 1_000_001, "west"), ("filtered", 1, "east")):
            with at_bootstrap(proxy) as connection:
                told = coordinator(connection, group)
            assert told == (node, listed.brokers[node].port, f"found in {cluster}")


def test_a_filter_that_takes_its_time_does_not_let_one_request_overtake_another(
    clusters: Clusters, tmp_path: Path
) -> None:
    east, west = clusters
    sections = {"filters": ["tests.proxy.filters:Late"]}
    with proxied(tmp_path, sections=sections, east=east.address, west=west.address) as proxy:
        create(proxy.settings(), {"eu.late": 1})
        alone = {"batch.num.messages": 1, "linger.ms": 0, "max.in.flight.requests.per.connection": 5}
        write(proxy.settings(), [("eu.late", f"{n}") for n in range(60)], **alone)
    found = read(west.settings(), ["eu.late"], 60)
    assert [message.value() for message in found] == [f"{n}".encode() for n in range(60)]


def test_the_routing_api_asks_one_some_or_all(clusters: Clusters) -> None:
    async def asked() -> None:
        east, west = clusters
        gone = {"bootstrap.servers": "127.0.0.1:1"}
        known = {one: Cluster(one, kafka.settings(), PATIENT) for one, kafka in (("east", east), ("west", west))}
        routing = RoutingContext(
            {**known, "north": Cluster("north", gone)}, Blocks({"east": 0, "west": 1, "north": 2}), "east"
        )
        request = DescribeClusterRequest(include_cluster_authorized_operations=False)
        assert (await routing.send_request("west", request)).cluster_id == west.cluster_id
        some = await routing.fan_out(["west"], request)
        assert {name: getattr(one, "cluster_id", None) for name, one in some.items()} == {"west": west.cluster_id}
        every = await routing.fan_out_to_all(request)
        assert every.keys() == routing.cluster_ids == {"east", "west", "north"}
        assert isinstance(every["north"], KafkaError)
        assert getattr(every["east"], "cluster_id", None) == east.cluster_id
        found = routing.cluster("west")
        assert found is not None
        assert (found.cluster_id, found.node_id_offset, found.bootstrap_servers) == ("west", 1_000_000, west.address)
        assert (await found.send_request(request)).cluster_id == west.cluster_id
        assert routing.cluster("south") is None
        with pytest.raises(OptionError, match="did you mean 'west'"):
            await routing.send_request("wst", request)
        for cluster in known.values():
            cluster.close()

    asyncio.run(asked())


def test_a_filter_answers_metadata_from_all_clusters(clusters: Clusters, tmp_path: Path) -> None:
    east, west = clusters
    names = ["tests.proxy.filters:MetadataAggregation"]
    with proxied(tmp_path, sections={"filters": names}, east=east.address, west=west.address) as proxy:
        listed = AdminClient(proxy.settings()).list_topics(timeout=TIMEOUT)
        assert str(listed.cluster_id) == "merged by a filter"
        assert sorted(listed.brokers) == [1, 1_000_001]
        create(proxy.settings(), {"merged": 1, "eu.merged": 1})
        write(proxy.settings(), [("merged", "a"), ("eu.merged", "b")])
        found = read(proxy.settings(), ["merged", "eu.merged"], 2)
        assert sorted(message.value() or b"" for message in found) == [b"a", b"b"]


def test_a_filter_chooses_one_cluster_for_a_connection(clusters: Clusters, tmp_path: Path) -> None:
    east, west = clusters
    names = ["tests.proxy.filters:WestOnly"]
    with proxied(tmp_path, sections={"filters": names}, east=east.address, west=west.address) as proxy:
        listed = AdminClient(proxy.settings()).list_topics(timeout=TIMEOUT)
        assert list(listed.brokers) == [1_000_001]
        write(proxy.settings(), [("not-eu", "a")])
        # A broker of the other one is none to who is here.
        assert asyncio.run(configuration_of(proxy, BROKER, "1")) == ("1", ErrorCode.invalid_request)
        assert asyncio.run(configuration_of(proxy, BROKER, "1000001")) == ("1000001", ErrorCode.none)
    topics = AdminClient({**west.settings()}).list_topics(timeout=TIMEOUT).topics
    assert "not-eu" in topics


def test_who_wants_no_acknowledgement_has_none_from_a_filter_either(clusters: Clusters, tmp_path: Path) -> None:
    names = ["tests.proxy.filters:Swallows"]
    with proxied(tmp_path, sections={"filters": names}, east=clusters[0].address) as proxy:
        create(proxy.settings(), {"swallowed": 1})
        with at_leader(proxy, "swallowed") as connection:
            connection.sendall(produce("swallowed", 10) + metadata(7) + produce("swallowed", 10, acks=1))
            assert [answer(connection)[0] for _ in range(2)] == [7, 1]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nonsense", "is not package.module:Class"),
        ("no_such_module:X", "cannot be imported"),
        ("tests.proxy.filters:Missing", "has no Missing"),
        ("tests.proxy.filters:replace", "is no class"),
        ("tests.proxy.filter_with_a_slip:Slip", "cannot be imported: NameError: name 'nothing' is not defined"),
        ("tests.proxy.filters:NeedsMore", "cannot be made: TypeError: .* missing 1 required positional argument"),
    ],
)
def test_a_filter_that_cannot_be_is_told_before_anything_starts(name: str, problem: str, tmp_path: Path) -> None:
    ended = run_warm("proxy", "--config", configured(tmp_path, {"east": "h:1"}, filters=[name]))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert re.search(problem, ended.stderr)
    with pytest.raises(OptionError, match=problem):
        load_filters([name])


def test_two_filters_that_choose_clusters_are_refused() -> None:
    names = ["tests.proxy.filters:Both", "tests.proxy.filters:Audit", "tests.proxy.filters:WestOnly"]
    with pytest.raises(OptionError, match=r"filters:Both and tests\.proxy\.filters:WestOnly both choose the clusters"):
        load_filters(names)
    assert load_filters(names[:2]).net is not None
