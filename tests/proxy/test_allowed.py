"""What has no meaning over several clusters is refused, or answered by the one that is named for it."""

import asyncio
from collections.abc import Collection
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from kafka import KafkaAdminClient
from kafka.admin import (
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePatternFilter,
    ResourceType,
)
from kafka.errors import IncompatibleBrokerVersion, SecurityDisabledError
from kio.schema.alter_client_quotas.v1.request import AlterClientQuotasRequest, EntityData, EntryData, OpData
from kio.schema.describe_client_quotas.v1.request import ComponentData, DescribeClientQuotasRequest
from kio.schema.errors import ErrorCode
from kio.static.primitive import f64, i8

from strandline.proxy.cluster import Cluster
from strandline.stack.kafka import KafkaCluster
from tests.proxy.support import PATIENT, Proxied, proxied
from tests.support import TIMEOUT, wait_for

Clusters = tuple[KafkaCluster, KafkaCluster]
ANYTHING = ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY)
ANY_ACL = ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, ANYTHING)


def ask(address: str, request: Any) -> Any:
    async def answer() -> Any:
        cluster = Cluster("asked", {"bootstrap.servers": address}, PATIENT)
        try:
            return await cluster.ask(request)
        finally:
            cluster.close()

    return asyncio.run(answer())


def users_of(cluster: KafkaCluster) -> Collection[str]:
    admin = AdminClient({**cluster.settings()})
    described = admin.describe_user_scram_credentials()
    assert isinstance(described, Future)
    found: Collection[str] = described.result(TIMEOUT)
    return found


def quota_of(address: str, client_id: str) -> list[float]:
    named = ComponentData(entity_type="client-id", match_type=i8(0), match=client_id)
    found = ask(address, DescribeClientQuotasRequest(components=(named,), strict=True)).entries or ()
    return [float(value.value) for entry in found for value in entry.values]


def test_nothing_of_the_kind_is_offered_unless_it_is_allowed(proxy: Proxied) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=proxy.address)) as admin, pytest.raises(IncompatibleBrokerVersion):
        admin.describe_acls(ANY_ACL)
    refused = {"describe_acls", "alter_client_quotas", "describe_user_scram_credentials", "describe_quorum"}
    assert not refused & proxy.offered().keys()


def test_what_is_allowed_is_answered_by_the_cluster_that_is_named_for_it(clusters: Clusters, tmp_path: Path) -> None:
    east, west = clusters
    sections = {"allow": {"acls": "east", "scram": "west", "quotas": "west", "quorum": "west"}}
    with proxied(tmp_path, sections=sections, east=east.address, west=west.address) as proxy:
        admin = AdminClient(proxy.settings())
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        made = admin.alter_user_scram_credentials([UserScramCredentialUpsertion("allowed", info, b"a-secret")])
        made["allowed"].result(TIMEOUT)
        wait_for(lambda: "allowed" in users_of(west), "the west knows the user")
        assert "allowed" not in users_of(east)

        entity = EntityData(entity_type="client-id", entity_name="allowed")
        limit = OpData(key="producer_byte_rate", value=f64(1e9), remove=False)
        change = EntryData(entity=(entity,), ops=(limit,))
        answer = ask(proxy.address, AlterClientQuotasRequest(entries=(change,), validate_only=False))
        assert [entry.error_code for entry in answer.entries] == [ErrorCode.none]
        wait_for(lambda: quota_of(west.address, "allowed") == [1e9], "the west has the quota")
        assert quota_of(proxy.address, "allowed") == [1e9]
        assert quota_of(east.address, "allowed") == []

        with closing(KafkaAdminClient(bootstrap_servers=proxy.address)) as through:
            # The brokers of the tests have no authorizer, and say so themselves.
            with pytest.raises(SecurityDisabledError):
                through.describe_acls(ANY_ACL)
            assert through.describe_metadata_quorum()["topics"][0]["partitions"][0]["leader_id"] == 1


def test_a_list_allows_it_for_the_primary_cluster(clusters: Clusters, tmp_path: Path) -> None:
    east, west = clusters
    with proxied(tmp_path, sections={"allow": ["quorum"]}, east=east.address, west=west.address) as proxy:
        assert "describe_quorum" in proxy.offered()
        assert "describe_acls" not in proxy.offered()
