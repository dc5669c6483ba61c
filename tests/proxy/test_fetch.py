"""A Fetch that is read whole brings no more at a time than is read whole."""

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest
from kio.static.primitive import i32

from strandline.proxy.backend import LARGEST_GATHERED
from strandline.proxy.rules.table import MOST_FETCHED, fetch
from strandline.wire.kafka_frames import request_type, versions_known
from tests.wire.entities import entity

FETCH, SHARE_FETCH = 1, 78


@pytest.mark.parametrize(
    ("api_key", "version"), [(key, version) for key in (FETCH, SHARE_FETCH) for version in versions_known(key)]
)
@pytest.mark.parametrize("asked", [1, MOST_FETCHED, LARGEST_GATHERED + 1, (1 << 31) - 1])
def test_a_client_that_asks_for_more_than_is_read_whole_gets_less_at_a_time(
    api_key: int, version: int, asked: int
) -> None:
    request = entity(request_type(api_key, version), random.Random(1), max_bytes=lambda _: i32(asked))
    sent: list[Any] = []

    async def forward(request: Any) -> Any:
        sent.append(request)
        return request

    exchange: Any = SimpleNamespace(request=request, forward=forward, realm=SimpleNamespace(located=lambda one: one))
    asyncio.run(fetch(exchange))
    assert [one.max_bytes for one in sent] == [min(asked, MOST_FETCHED)]
