"""kcat through the proxy, where it is installed: what people look into a cluster with."""

import shutil
import subprocess
from collections import Counter

import pytest

from strandline.stack.kafka import KafkaCluster
from tests.proxy.support import Proxied, create
from tests.support import TIMEOUT, wait_for

KCAT = shutil.which("kcat")
pytestmark = pytest.mark.skipif(KCAT is None, reason="kcat is not installed")


def kcat(proxy: Proxied, *arguments: str, text: str = "") -> list[str]:
    """The lines that it prints."""
    command = [KCAT or "kcat", "-b", proxy.address, *arguments]
    return subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=TIMEOUT, check=True
    ).stdout.splitlines()


def test_kcat_writes_reads_and_looks_into_both_clusters_as_one(
    proxy: Proxied, clusters: tuple[KafkaCluster, KafkaCluster]
) -> None:
    topics = ["kcat", "eu.kcat"]
    for cluster, topic in zip(clusters, topics, strict=True):
        create(cluster.settings(), {topic: 2})
        for option in ("enable.idempotence=true", "acks=1"):
            kcat(proxy, "-P", "-t", topic, "-X", option, text="".join(f"{topic}-{option}-{n}\n" for n in range(5)))
    expected = {f'topic "{topic}" with 2 partitions:' for topic in topics}
    # They were made behind the proxy's back: its lists have them a moment later.
    wait_for(lambda: expected <= {line.strip() for line in kcat(proxy, "-L")}, "both are listed")
    written = Counter(
        f"{t}-{option}-{n}" for t in topics for option in ("enable.idempotence=true", "acks=1") for n in range(5)
    )
    group = ("-X", "auto.offset.reset=earliest", "-G", "kcat", *topics, "-c", "20", "-q")
    assert Counter(kcat(proxy, *group)) == written
    for topic in topics:
        assert len(kcat(proxy, "-C", "-t", topic, "-o", "beginning", "-e", "-q")) == 10
        ends = kcat(proxy, "-Q", "-t", f"{topic}:0:-1", "-t", f"{topic}:1:-1")
        assert sum(int(line.split()[-1]) for line in ends) == 10
