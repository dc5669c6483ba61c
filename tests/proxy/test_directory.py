"""What is known of topics: by the ids that they have now, and of a cluster that is down too."""

import asyncio
from dataclasses import replace
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.request import MetadataRequest
from kio.schema.metadata.v13.response import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32

from strandline.core.routes import Routes
from strandline.core.virtual_nodes import Blocks
from strandline.errors import BrokerUnreachable
from strandline.proxy.cluster import Limits
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
        self.limits = Limits()
        self.asked = 0
        self.answers = asyncio.Event()
        """Unset: what it is asked is decided, and the answer is on its way."""
        self.answers.set()

    async def metadata(self) -> MetadataResponse:
        if not self.is_up:
            raise BrokerUnreachable("west", "it does not answer")
        self.asked += 1
        answer = MetadataResponse(
            throttle_time=NO_TIME, brokers=(), topics=self.topics, error_code=ErrorCode.none, controller_id=BrokerId(1)
        )
        await self.answers.wait()
        return answer

    async def ask(self, request: MetadataRequest, *, within: float) -> MetadataResponse:
        assert request.topics is not None
        names = {one.name for one in request.topics}
        answer = await self.metadata()
        return replace(answer, topics=tuple(one for one in answer.topics if one.name in names))


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


def names(known: Directory) -> list[str]:
    return [str(one.name) for one in known.all()]


def test_a_topic_that_was_just_created_is_in_the_next_list() -> None:
    async def created() -> None:
        west = West(topic("eu.a", OLD))
        known = directory(west)
        await known.refresh("west")
        west.topics = (*west.topics, topic("eu.b", NEW))
        known.mark_stale("west")
        await known.fresh(["west"])
        assert names(known) == ["eu.a", "eu.b"]

    asyncio.run(created())


def test_an_answer_from_before_a_topic_was_created_is_not_the_next_list() -> None:
    async def created_meanwhile() -> None:
        west = West(topic("eu.a", OLD))
        known = directory(west)
        west.answers.clear()
        before = asyncio.create_task(known.refresh("west"))
        while not west.asked:
            await asyncio.sleep(0)
        west.topics = (*west.topics, topic("eu.b", NEW))
        known.mark_stale("west")
        lists = [asyncio.create_task(known.fresh(["west"])) for _ in range(3)]
        await asyncio.sleep(0)
        west.answers.set()
        await asyncio.gather(before, *lists)
        assert names(known) == ["eu.a", "eu.b"]
        assert west.asked == 2  # once more for all who asked

    asyncio.run(created_meanwhile())


def test_a_topic_that_was_shown_by_its_name_is_in_the_list_though_its_cluster_has_gone_down() -> None:
    async def shown() -> None:
        west = West(topic("eu.a", OLD))
        known = directory(west)
        await known.refresh("west")
        west.topics = (*west.topics, topic("eu.b", NEW))
        found = await known.ask_owner("west", ["eu.b"], create=False)
        assert found["eu.b"].topic_id == NEW
        west.is_up = False
        await known.fresh(["west"])
        assert names(known) == ["eu.a", "eu.b"]

    asyncio.run(shown())
