"""The pages that a server shows of itself."""

import socket
import urllib.error
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, Counter

from strandline.errors import StrandlineError
from strandline.observe import Observed
from tests.support import TIMEOUT


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_three_pages() -> None:
    registry = CollectorRegistry()
    Counter("strandline_marks", "marks made", registry=registry).inc(3)
    reasons = ["kafka is starting", "postgres is starting"]
    with Observed("127.0.0.1", 0, registry, lambda: reasons) as pages:
        assert "strandline_marks_total 3.0" in get(f"{pages.address}/metrics")[1]
        assert get(f"{pages.address}/healthz?x=1") == (200, "ok\n")
        assert get(f"{pages.address}/readyz") == (503, "kafka is starting\npostgres is starting\n")
        reasons.clear()
        assert get(f"{pages.address}/readyz") == (200, "ok\n")
        assert get(f"{pages.address}/etc/passwd")[0] == 404


def test_a_client_that_says_nothing_keeps_nobody_waiting() -> None:
    with Observed("127.0.0.1", 0, CollectorRegistry(), list) as pages:
        host, _, port = pages.address.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port))):
            assert get(f"{pages.address}/healthz") == (200, "ok\n")


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        with pytest.raises(StrandlineError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            Observed("127.0.0.1", port, CollectorRegistry(), list)
        with pytest.raises(StrandlineError, match=r"Address already in use; change observe in the file$"):
            Observed("127.0.0.1", port, CollectorRegistry(), list, setting="observe in the file")
