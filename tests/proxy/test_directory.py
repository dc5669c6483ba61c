"""What is known of topics: by the ids that they have now, and of a cluster that is down too."""

import asyncio
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.metadata.v13.response import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32

from strandline.core.routes import Routes
from strandline.core.virtual_nodes import Blocks
from strandline.errors import BrokerUnreachable
from strandline.proxy.directory import Directory
from strandline.wire.refusal import NO_TIME

OLD, NEW = UUID(int=7), UUID(int=8)
ROUTES = Routes(primary="east", topics=[("eu.*", "west")])
OTHER_ROUTES = Routes(primary="east", topics=[("eu.*", "west"), ("no.*", "west")])


def topic(name: str, topic_id: UUID) -> MetadataResponseTopic:
    partition = MetadataResponsePartition(
        error_code=ErrorCode.none,
        partition_index=i32(0),
        leader_id=BrokerId(1),
        leader_epoch=i32(0),
        replica_nodes=(BrokerId(1),),
        isr_nodes=(BrokerId(1),),
        offline_replicas=(),
    )
    return MetadataResponseTopic(
        error_code=ErrorCode.none, name=TopicName(name), topic_id=topic_id, partitions=(partition,)
    )


class West:
    """A cluster that tells what it is told to, or does not answer."""

    def __init__(self, *topics: MetadataResponseTopic) -> None:
        self.versions = {3: (0, 13)}
        self.brokers: dict[int, Any] = {}
        self.topics: tuple[MetadataResponseTopic, ...] = topics
        self.is_up = True

    async def metadata(self) -> MetadataResponse:
        if not self.is_up:
            raise BrokerUnreachable("west", "it does not answer")
        return MetadataResponse(
            throttle_time=NO_TIME, brokers=(), topics=self.topics, error_code=ErrorCode.none, controller_id=BrokerId(1)
        )


def directory(west: Any, routes: Routes = ROUTES) -> Directory:
    return Directory(
        {"west": west},
        routes,
        Blocks({"west": 1}),
        cluster_id="one",
        place=lambda name, node: (name, node),
        learned=lambda: None,
    )


def test_a_topic_that_was_made_anew_is_not_known_by_its_old_id() -> None:
    async def made_anew() -> None:
        west = West(topic("eu.a", OLD))
        known = directory(west)
        await known.refresh("west")
        assert known.name_of(OLD) == "eu.a"
        west.topics = (topic("eu.a", NEW),)
        await known.refresh("west")
        assert known.name_of(NEW) == "eu.a"
        assert known.name_of(OLD) is None
        west.topics = ()
        await known.refresh("west")
        assert known.name_of(NEW) is None

    asyncio.run(made_anew())


def test_a_cluster_that_somebody_else_has_found_down_has_no_leaders_from_then_on() -> None:
    async def found_down() -> None:
        west = West(topic("eu.a", OLD))
        known = directory(west)
        await known.refresh("west")
        west.is_up = False
        for _ in range(2):
            await known.fresh(["west"])
            assert [found.partitions[0].leader_id for found in known.all()] == [-1]
        west.is_up = True
        await known.refresh("west")
        assert [found.partitions[0].leader_id for found in known.all()] == [1_000_001]

    asyncio.run(found_down())


def test_a_directory_that_is_made_while_a_cluster_is_down_has_its_topics_without_leaders() -> None:
    async def made_while_down() -> None:
        west = West(topic("eu.a", OLD), topic("no.b", NEW))
        assert [one.name for one in directory(west).all()] == ["eu.a"]
        west.is_up = False
        # By other routes, as when the file was changed: what clients did not see before is there too.
        known = directory(west, OTHER_ROUTES)
        await known.refresh("west")
        assert {str(one.name): one.partitions[0].leader_id for one in known.all()} == {"eu.a": -1, "no.b": -1}
        assert {one.partitions[0].error_code for one in known.all()} == {ErrorCode.leader_not_available}
        assert known.name_of(NEW) == "no.b"
        west.is_up = True
        await known.refresh("west")
        assert {one.partitions[0].leader_id for one in known.all()} == {1_000_001}

    asyncio.run(made_while_down())
