"""The stack's Kinesis endpoint alone: records a second and CPU a record, keeping nothing and keeping all, beside moto.

Requests are written beforehand and sent over plain sockets, so that what is measured is the endpoint and not an SDK.

`python -m bench.kinesis_endpoint`, with `--quick` for a smoke run.
"""

import base64
import http.client
import json
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from urllib.parse import urlsplit

from tests.moto import Moto

from bench.amounts import parse
from bench.figures import Figure, report
from bench.process import cpu_seconds
from strandline.stack import Kinesis

RECORD_BYTES = 400
RECORDS_A_REQUEST = 500
CLIENTS = 2
SHARDS = 4
STREAM = "bench"


@dataclass(frozen=True)
class Amounts:
    """How many requests are sent to our endpoint, each time, and to moto's server."""

    requests: int = 400
    peer_requests: int = 8


QUICK = Amounts(requests=20, peer_requests=2)


def headers(action: str) -> dict[str, str]:
    """What the SDK sends, as far as it is looked at."""
    return {
        "Content-Type": "application/x-amz-json-1.1",
        "X-Amz-Target": f"Kinesis_20131202.{action}",
        "Authorization": "AWS4-HMAC-SHA256 Credential=local/20260101/us-east-1/kinesis/aws4_request, "
        "SignedHeaders=host, Signature=0",
    }


def bodies(count: int) -> list[bytes]:
    """Requests of records with keys and data of their own."""
    chance = random.Random(1)
    return [
        json.dumps(
            {
                "StreamName": STREAM,
                "Records": [
                    {
                        "Data": base64.b64encode(chance.randbytes(RECORD_BYTES)).decode(),
                        "PartitionKey": f"key-{chance.randrange(1_000_000)}",
                    }
                    for _ in range(RECORDS_A_REQUEST)
                ],
            }
        ).encode()
        for _ in range(count)
    ]


def send(endpoint: str, action: str, requests: list[bytes]) -> None:
    """Send requests one after another over one connection."""
    connection = http.client.HTTPConnection(urlsplit(endpoint).netloc, timeout=60)
    for body in requests:
        connection.request("POST", "/", body, headers(action))
        answer = connection.getresponse()
        told = answer.read()
        if answer.status != 200 or b'"ErrorCode"' in told:
            raise AssertionError(f"status {answer.status}: {told[:200]!r}")
    connection.close()


def measure(endpoint: str, pid: Callable[[], int], requests: int) -> tuple[float, float]:
    """Records a second, and microseconds of the server's CPU for each."""
    send(endpoint, "CreateStream", [json.dumps({"StreamName": STREAM, "ShardCount": SHARDS}).encode()])
    written = bodies(min(20, requests))
    shares = [[written[n % len(written)] for n in range(requests // CLIENTS)] for _ in range(CLIENTS)]
    send(endpoint, "PutRecords", written[:2])
    records = RECORDS_A_REQUEST * sum(map(len, shares))
    cpu, begin = cpu_seconds(pid()), time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(lambda share: send(endpoint, "PutRecords", share), shares))
    elapsed, cpu = time.perf_counter() - begin, cpu_seconds(pid()) - cpu
    send(endpoint, "DeleteStream", [json.dumps({"StreamName": STREAM}).encode()])
    return records / elapsed, 1e6 * cpu / records


def ours(keep_bytes: int, requests: int) -> tuple[float, float]:
    """Our endpoint, started for this."""
    with TemporaryDirectory() as directory:
        kinesis = Kinesis(Path(directory, "kinesis"), keep_bytes=keep_bytes)
        kinesis.start(Event())
        try:
            return measure(kinesis.endpoint, lambda: kinesis.pid, requests)
        finally:
            kinesis.stop()


if __name__ == "__main__":
    amounts, is_quick = parse("bench.kinesis_endpoint", Amounts(), QUICK)
    null_per_s, null_us = ours(0, amounts.requests)
    kept_per_s, kept_us = ours(1 << 30, amounts.requests)
    with Moto() as moto:
        moto_per_s, moto_us = measure(moto.endpoint, lambda: moto.server.pid, amounts.peer_requests)
    report(
        f"The Kinesis endpoint: {RECORDS_A_REQUEST} records of {RECORD_BYTES} bytes a request, {CLIENTS} connections",
        [
            Figure("kinesis.records_per_s", null_per_s, "nothing kept, only counted"),
            Figure("kinesis.cpu_us_per_record", null_us, "CPU of the endpoint's process", ceiling=4.0),
            Figure("kinesis.kept_records_per_s", kept_per_s, "all kept, to be read back"),
            Figure("kinesis.kept_cpu_us_per_record", kept_us, "CPU of the endpoint's process"),
            Figure("kinesis.moto_records_per_s", moto_per_s, "peer: moto's server, all kept"),
            Figure("kinesis.moto_cpu_us_per_record", moto_us, "CPU of moto's process"),
            Figure("kinesis.kept_vs_moto", kept_per_s / moto_per_s, "how many times faster, both keeping all"),
        ],
        is_quick=is_quick,
    )
