"""Filters: code of the user's that sees requests and answers, and forwards, answers or changes them.

A filter is a class without arguments. It has methods for the APIs that concern it, by their names in kio:

    async def on_metadata_request(self, header, request, context) -> Forward | Answered
    async def on_metadata_response(self, header, response, context) -> response
    def select_server(self, context: NetFilterContext, routing: RoutingContext) -> None

`on_request` and `on_response` are for all APIs but Produce and Fetch, which pass without being read unless a filter
names them. Requests go through the filters in the order of the configuration, answers back in the opposite one.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from typing import Any

from strandline.errors import OptionError
from strandline.proxy.routing import NetFilter, RoutingContext
from strandline.wire.kafka_frames import FETCH, PRODUCE, Head, api_name

PASSED = frozenset({PRODUCE, FETCH})


@dataclass(frozen=True, slots=True)
class Forward:
    """The request goes on, perhaps another than came."""

    request: Any


@dataclass(frozen=True, slots=True)
class Answered:
    """The request ends here, with this answer."""

    response: Any


@dataclass(frozen=True, slots=True)
class FilterContext:
    """What a filter has at hand for one request."""

    routing: RoutingContext
    peer: str
    user: str | None
    """Who signed in, where clients have to."""

    def forward(self, request: Any) -> Forward:
        """Let a request go on."""
        return Forward(request)

    def answer(self, response: Any) -> Answered:
        """Answer a request here."""
        return Answered(response)


class Filters:
    """All filters, in order."""

    def __init__(self, filters: Sequence[Any] = ()) -> None:
        self._filters = tuple(filters)

    def sees(self, api_key: int) -> bool:
        """Whether any filter wants to see an API, so that its requests have to be read."""
        return bool(self._filters) and bool(self._methods(api_key, "request") or self._methods(api_key, "response"))

    @cached_property
    def net(self) -> NetFilter | None:
        """The filter that chooses clusters for a connection."""
        return next((one for one in self._filters if hasattr(one, "select_server")), None)

    async def request(self, header: Head, request: Any, context: FilterContext) -> Forward | Answered:
        """What becomes of a request."""
        for method in self._methods(header.api_key, "request"):
            result = await method(header, request, context)
            if isinstance(result, Answered):
                return result
            if not isinstance(result, Forward):
                raise OptionError(f"{method.__qualname__} gives neither context.forward(…) nor context.answer(…)")
            request = result.request
        return Forward(request)

    async def response(self, header: Head, response: Any, context: FilterContext) -> Any:
        """What becomes of an answer."""
        for method in reversed(self._methods(header.api_key, "response")):
            response = await method(header, response, context)
        return response

    def _methods(self, api_key: int, kind: str) -> list[Any]:
        named, every = f"on_{api_name(api_key)}_{kind}", f"on_{kind}"
        found = [
            getattr(one, named, None) or (None if api_key in PASSED else getattr(one, every, None))
            for one in self._filters
        ]
        return [method for method in found if method is not None]


def load_filters(places: Sequence[str]) -> Filters:
    """The filters that a configuration names as `package.module:Class`."""
    filters = [_load(place) for place in places]
    choosing = [place for place, one in zip(places, filters, strict=True) if hasattr(one, "select_server")]
    if len(choosing) > 1:
        raise OptionError(f"filters: {' and '.join(choosing)} both choose the clusters of a connection; one may")
    return Filters(filters)


def _load(place: str) -> Any:
    module, colon, name = place.partition(":")
    if not colon:
        raise OptionError(f"filters: '{place}' is not package.module:Class")
    found = getattr(_of_the_user(f"{place} cannot be imported", partial(import_module, module)), name, None)
    if found is None:
        raise OptionError(f"filters: {module} has no {name}")
    if not inspect.isclass(found):
        raise OptionError(f"filters: {place} is no class")
    return _of_the_user(f"{place} cannot be made", found)


def _of_the_user(problem: str, call: Callable[[], Any]) -> Any:
    """What code of the user's gives; whatever goes wrong in it is told like anything else that is wrong in the file."""
    try:
        return call()
    except Exception as error:
        raise OptionError(f"filters: {problem}: {type(error).__name__}: {error}") from error
