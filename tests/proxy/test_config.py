"""The configuration of the proxy: what cannot be is told with its place, before anything starts."""

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strandline.stack.kafka import KafkaCluster
from tests.proxy.support import configured
from tests.support import run_warm

Content = dict[str, Any]
# What is wrong is seen when the clusters have answered: they are waited for, however slow the machine is.
PATIENT = {"connect_s": 120, "health_s": 120}


def both_primary(content: Content) -> None:
    for cluster in content["clusters"].values():
        cluster["primary"] = True


CHANGES: dict[str, tuple[Callable[[Content], object], str]] = {
    "unknown": (lambda c: c.update(clustres={}), "key 'clustres' is unknown; did you mean 'clusters'?"),
    "missing": (lambda c: c.pop("clusters"), "key 'clusters' is missing"),
    "blocks": (lambda c: c["clusters"]["east"].update(block=1), "clusters east and west both have block 1"),
    "block": (lambda c: c["clusters"]["east"].update(block=3000), "cluster east has block 3000"),
    "width": (lambda c: c.update(block_width=10), "block_width"),
    "narrow": (
        lambda c: c.update(block_width=1_000_000_000, clusters={**c["clusters"], "north": {"bootstrap": "h:1"}}),
        "with 1,000,000,000 ids each, 0 to 1 fit",
    ),
    "idle": (lambda c: c.update(idle_s=0), "idle_s"),
    "primaries": (both_primary, "clusters east and west are both primary"),
    "route": (lambda c: c["routes"].update(groups=[{"match": "x", "cluster": "north"}]), "cluster 'north' is none of"),
    "rename": (lambda c: c["routes"].update(topic_names={"north": {"prefix": "n."}}), "cluster 'north' is none of"),
    "ports": (lambda c: c["listen"].update(first_broker_port=65_530), "would have ports up to"),
    "bootstrap": (lambda c: c["listen"].update(first_broker_port=c["listen"]["bootstrap_port"]), "is among the ports"),
    "tls": (lambda c: c["listen"].update(tls={"certificate": "no.pem", "key": "no.key"}), "no.pem cannot be read"),
    "nobody": (lambda c: c.update(auth={"users": {}}), "auth.users"),
    "timeouts": (lambda c: c.update(timeouts={"connect_s": 0}), "timeouts.connect_s"),
    "breaker": (lambda c: c["clusters"]["west"].update(breaker={"failures": 0}), "clusters.west.breaker.failures"),
    "timeout": (lambda c: c.update(timeouts={"conect_s": 1}), "did you mean 'connect_s'?"),
    "workers": (lambda c: c.update(workers=0), "workers"),
    "lasting": (lambda c: c.update(offsets_last_days=-1), "offsets_last_days"),
    "allow": (lambda c: c.update(allow=["acl"]), "allow"),
    "allowed": (lambda c: c.update(allow={"acls": "north"}), "allow.acls: cluster 'north' is none of"),
    "address": (lambda c: c["clusters"]["east"].update(bootstrap="nowhere:port"), "is not host:port"),
    "words": (
        lambda c: c["clusters"]["east"].update(bootstrap="foo bar"),
        "clusters.east.bootstrap: 'foo bar' is not host:port",
    ),
    "user": (
        lambda c: c["clusters"]["east"].update(bootstrap="proxy:hunter2@h:1"),
        "clusters.east.bootstrap: an address has no user and no password; name them in clusters.east.sasl",
    ),
    "password": (lambda c: c.update(auth={"users": {"alice": ""}}), "auth.users.alice: the password is empty"),
    "pages": (lambda c: c.update(observe="me:hunter2@h"), "observe takes HOST:PORT, not '***@h'"),
    "itself": (
        lambda c: c["clusters"]["west"].update(bootstrap=f"h:1, localhost:{c['listen']['bootstrap_port']}"),
        "is where the proxy itself listens",
    ),
}


@pytest.mark.parametrize("fault", CHANGES)
def test_a_file_that_cannot_be_is_told_with_its_place(fault: str, tmp_path: Path) -> None:
    change, told = CHANGES[fault]
    file = configured(tmp_path, {"east": "127.0.0.1:1", "west": "127.0.0.1:2"})
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    ended = run_warm("proxy", "--config", str(file))
    assert ended.returncode == 2
    assert told in ended.stderr
    assert "hunter2" not in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_one_cluster_under_two_names_is_not_served(
    workers: int, clusters: tuple[KafkaCluster, KafkaCluster], tmp_path: Path
) -> None:
    address = clusters[0].address
    file = configured(tmp_path, {"east": address, "west": address}, workers=workers, timeouts=PATIENT)
    ended = run_warm("proxy", "--config", str(file))
    assert (ended.returncode, ended.stdout) == (1, "")
    last = ended.stderr.splitlines()[-1]
    assert f"clusters east and west are one cluster of Kafka (id {clusters[0].cluster_id})" in last


@pytest.mark.parametrize("workers", [1, 2])
def test_where_a_port_for_a_broker_is_taken_nothing_is_served(
    workers: int, clusters: tuple[KafkaCluster, KafkaCluster], tmp_path: Path
) -> None:
    file = configured(tmp_path, {"east": clusters[0].address}, workers=workers, timeouts=PATIENT)
    with socket.create_server(
        ("127.0.0.1", json.loads(file.read_text())["listen"]["first_broker_port"] + 1)
    ) as stranger:
        ended = run_warm("proxy", "--config", str(file))
        port = stranger.getsockname()[1]
    assert (ended.returncode, ended.stdout) == (1, "")
    told = f"cannot listen on 127.0.0.1:{port}: Address already in use; change listen.first_broker_port in the file"
    assert ended.stderr.splitlines()[-1].endswith(told)
