"""Endpoints are few, whatever the paths are, and every request of one shape has the same."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.report.endpoints import MAX_ENDPOINTS, MAX_WORDS, OTHERS, Endpoints, shape

WORDS = st.text(alphabet="abcxyz", min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/orders/17", "/orders/{n}"),
        ("/orders/17/lines?page=2#x", "/orders/{n}/lines"),
        ("/days/2026-01-31", "/days/{date}"),
        ("/days/2026-01-31T10:00:00Z/x", "/days/{date}/x"),
        ("/blobs/0f3a9c1b7d22", "/blobs/{hash}"),
        ("/o/order-17", "/o/order-{n}"),
        ("http://shop:80/orders/17", "/orders/{n}"),
        ("/deadbeef", "/deadbeef"),
        ("*", "*"),
        ("/", "/"),
        ("/v1/users", "/v1/users"),
    ],
)
def test_parts_of_a_path_are_named_by_their_looks(target: str, expected: str) -> None:
    assert shape("GET", target) == f"GET {expected}"


@given(number=st.integers(0, 10**30), identity=st.uuids(), word=WORDS)
def test_requests_of_one_shape_have_one_endpoint(number: int, identity: UUID, word: str) -> None:
    assert shape("GET", f"/{word}/{number}/{identity}") == f"GET /{word}/{{n}}/{{uuid}}"


@given(st.lists(st.text(max_size=8), max_size=30), st.text(max_size=5))
def test_no_target_is_too_odd_or_too_long(segments: list[str], method: str) -> None:
    assert len(shape(method, "/".join(segments))) < 2_000
    assert shape(None, None)


def test_a_place_with_too_many_words_is_one() -> None:
    users = {f"GET /users/{'x' * number}y/posts": 1 for number in range(MAX_WORDS + 1)}
    endpoints = Endpoints({**users, "GET /users": 5, "GET /about/us": 1})
    assert {endpoints.name(found) for found in users} == {"GET /users/{s}/posts"}
    assert endpoints.name("GET /users/never-seen/posts") == "GET /users/{s}/posts"
    assert endpoints.name("GET /about/us") == "GET /about/us"
    few = dict(list(users.items())[:MAX_WORDS])
    assert set(Endpoints(few).names(few).values()) == set(few)


@given(st.dictionaries(st.lists(WORDS, min_size=1, max_size=5).map("/".join), st.integers(1, 9)))
def test_there_are_never_too_many_endpoints(counts: dict[str, int]) -> None:
    endpoints = Endpoints(counts)
    assert len({endpoints.name(found) for found in counts} - {OTHERS}) <= MAX_ENDPOINTS


def test_beyond_the_bound_the_rarest_are_others() -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    counts = {f"GET /{a}/{b}/{c}": 10 for a in letters for b in letters[:20] for c in "xy"} | {"GET /rare": 1}
    endpoints = Endpoints(counts)
    names = {endpoints.name(found) for found in counts}
    assert len(names) == MAX_ENDPOINTS + 1
    assert endpoints.name("GET /rare") == OTHERS
