"""Requests that name things of several clusters: each gets its own part, and the answers become one again."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kio.schema.errors import ErrorCode

from strandline.errors import KafkaError
from strandline.proxy.exchange import Exchange
from strandline.wire.kafka_frames import answer_type
from strandline.wire.refusal import item_type, refused, refused_part

Owner = Callable[[Exchange, Any], str | None]
"""Whose an item is; None for one that nobody knows."""


def split(asked: str, answered: str, owner: Owner, unknown: ErrorCode, *, changes_topics: bool = False) -> Any:
    """A rule: the items of a request's field go to their owners, and what comes back stands in the answer's field."""

    async def answer(exchange: Exchange) -> Any:
        request = exchange.request
        items = getattr(request, asked)
        if items is None:
            return await everywhere(answered)(exchange)
        parts: dict[str | None, list[Any]] = defaultdict(list)
        for item in items:
            parts[owner(exchange, item)].append(item)
        strangers = parts.pop(None, [])
        clusters = sorted(parts, key=lambda name: name is not None and name != exchange.realm.routes.primary)
        answers = await asyncio.gather(
            *(_ask(exchange, str(name), replace(request, **{asked: tuple(parts[name])})) for name in clusters)
        )
        if changes_topics:
            for name in clusters:
                exchange.realm.directory.mark_stale(str(name))
        failed = [one for one in answers if getattr(one, "error_code", ErrorCode.none) is not ErrorCode.none]
        empty = refused(replace(request, **{asked: ()}), ErrorCode.none)
        whole = (failed or answers or [empty])[0]
        kind = item_type(answer_type(request.__api_key__, request.__version__), answered)
        lost = tuple(refused_part(kind, item, unknown) for item in strangers)
        return replace(whole, **{answered: sum((getattr(one, answered) for one in answers), ()) + lost})

    return answer


def everywhere(answered: str) -> Any:
    """A rule: every cluster is asked, and what comes back is put together.

    A cluster that does not answer has its error told, where the answer has a place for one: a list must not look whole
    and not be.
    """

    async def answer(exchange: Exchange) -> Any:
        answers = await asyncio.gather(*(_ask(exchange, name, exchange.request) for name in exchange.realm.clusters))
        items = sum((getattr(one, answered) for one in answers), ())
        failed = [one for one in answers if getattr(one, "error_code", ErrorCode.none) is not ErrorCode.none]
        return replace((failed or answers)[0], **{answered: items})

    return answer


async def _ask(exchange: Exchange, cluster: str, request: Any) -> Any:
    try:
        return await exchange.realm.ask(cluster, request)
    except KafkaError as error:
        return refused(request, ErrorCode.request_timed_out, f"cluster {cluster}: {error}")
