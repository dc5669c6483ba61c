"""The report finds every difference that a test plants among noise, and invents none: on a real broker, through Spark.

What is planted, where, how often, and what is noise is drawn anew for each run, and the report is told none of it. The
seed is printed.
"""

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any
from uuid import UUID

import msgspec
import pytest
from pyspark.sql import SparkSession

from strandline.errors import OptionError, StrandlineError
from strandline.report.gates import parse_gates
from strandline.report.rules import Rules
from strandline.report.summary import Kind, Summary, Verdict
from strandline.spark.following import checked, follow
from strandline.spark.report import Plan, report
from strandline.spark.results import FileResults, TopicResults
from strandline.spark.session import stopped_by
from strandline.stack import KafkaCluster
from tests.ordered.support import create_topic, produce
from tests.report.support import START_US, answer, result

ENDPOINTS = ("products", "orders", "users", "carts")
NOW = START_US
# A first query takes minutes of a machine that many use.

Place = tuple[str, Kind, str]


@dataclass
class Service:
    """Answers of a source and of a changed target; both draw some fields anew for each answer."""

    chance: random.Random
    planted: set[Place] = field(default_factory=set)
    slow: str = ""

    def __post_init__(self) -> None:
        chance = self.chance
        self.noise = {
            name: chance.sample(["token", "at", "trace", "etag"], k=chance.randint(1, 3)) for name in ENDPOINTS
        }
        self.kinds = dict(
            zip(chance.sample(ENDPOINTS, 4), chance.sample(["renamed", "value", "type", "status"], 4), strict=True)
        )
        self.header = chance.choice(ENDPOINTS)
        self.field = {name: chance.choice(["price", "name", "state"]) for name in ENDPOINTS}
        # An endpoint that always fails would show nothing else.
        shares = [0.5, 0.15, 1.0]
        self.share = {name: chance.choice(shares[: 2 if self.kinds[name] == "status" else 3]) for name in ENDPOINTS}
        self.slow = chance.choice(ENDPOINTS)
        for name, kind in self.kinds.items():
            endpoint, place = f"GET /{name}/{{n}}", f"$.item.{self.field[name]}"
            if kind == "renamed":
                self.planted |= {(endpoint, Kind.BODY, place), (endpoint, Kind.BODY, f"{place}_new")}
            elif kind == "status":
                self.planted.add((endpoint, Kind.STATUS, ""))
            else:
                self.planted.add((endpoint, Kind.BODY, place))
        self.planted.add((f"GET /{self.header}/{{n}}", Kind.HEADER, "cache-control"))

    def body(self, name: str, number: int, moment: int) -> dict[str, Any]:
        chance = self.chance
        drawn = {
            "token": str(UUID(int=chance.getrandbits(128))),
            "at": chance.randrange(10**15),
            "trace": f"{chance.getrandbits(64):x}",
            "etag": f'"{chance.getrandbits(40):x}"',
        }
        # A state that moves with time, the same for source and target.
        item = {"price": number * 1.5, "name": f"{name} {number}", "state": ("new", "paid", "sent")[moment % 3]}
        return {"item": item, "tags": [number, "x"], "meta": {key: drawn[key] for key in self.noise[name]}}

    def exchange(self, number: int) -> tuple[bytes, bytes]:
        """One exchange of the run, and of a second run against the same target."""
        chance = self.chance
        name, item, moment = chance.choice(ENDPOINTS), chance.randrange(12), chance.randrange(3)
        source = answer(
            200, self.body(name, item, moment), X_Id=f"{chance.getrandbits(64):x}", Cache_Control="max-age=1"
        )
        is_changed = (item * 7 + moment) % 20 < 20 * self.share[name]
        made = []
        for _ in range(2):
            body = self.body(name, item, moment)
            target = answer(200, self._changed(name, body) if is_changed else body, **self._headers(name))
            if is_changed and self.kinds[name] == "status":
                target = answer(503, {"error": "busy"})
            took = 90_000 if name == self.slow else 10_000
            asked = f"GET /{name}/{item}?v={moment}"
            times: Any = {"source_us": 10_000 + chance.randrange(2_000), "target_us": took + chance.randrange(2_000)}
            made.append(result(source, target, request=asked, number=number, connection=f"c{number % 7}", **times))
        return made[0], made[1]

    def _headers(self, name: str) -> dict[str, str]:
        changed = "no-store" if name == self.header else "max-age=1"
        return {"X_Id": f"{self.chance.getrandbits(64):x}", "Cache_Control": changed}

    def _changed(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        item, place = body["item"], self.field[name]
        if self.kinds[name] == "renamed":
            item[f"{place}_new"] = item.pop(place)
        elif self.kinds[name] == "value":
            item[place] = f"{item[place]}!" if isinstance(item[place], str) else item[place] + 1
        elif self.kinds[name] == "type":
            item[place] = [item[place]]
        return body


def places(summary: Summary) -> set[Place]:
    return {(found.endpoint, found.kind, found.path) for found in summary.differences}


def lines(file: Path, records: list[bytes]) -> FileResults:
    file.write_bytes(b"".join(record + b"\n" for record in records))
    return FileResults(path=file)


def test_all_that_is_planted_is_found_and_nothing_is_invented(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    sys.stdout.write(f"seed {seed}\n")
    service = Service(random.Random(seed))
    first = [service.exchange(number)[0] for number in range(1_500)]
    topic = f"results-{seed}"
    create_topic(kafka.address, topic, 3)
    # Delivered at least once: some results again, and some records that are none.
    repeated = service.chance.sample(first, 100)
    rubbish = [b"", b"{", b'{"id": 1}', b"\xff\xfe", first[0][:-5]]
    written = [
        (number % 3, START_US // 1000 + number, record) for number, record in enumerate([*first, *repeated, *rubbish])
    ]
    produce(kafka.address, topic, written)
    gates = tuple(parse_gates("mismatch>99%,mismatch>0,malformed>4,regressions>1"))
    results = TopicResults(topic=topic, kafka=kafka.settings())
    summary = report(spark, Plan(results=results, out=tmp_path / "out", gates=gates), now_us=NOW)
    assert places(summary) == service.planted
    assert (summary.exchanges, summary.repeats, summary.malformed) == (1_500, 100, len(rubbish))
    assert [gate.passed for gate in summary.gates] == [True, False, False, True]
    noise = {(each.endpoint, each.path) for each in summary.noise}
    assert noise == {(f"GET /{name}/{{n}}", f"$.meta.{key}") for name in ENDPOINTS for key in service.noise[name]} | {
        (f"GET /{name}/{{n}}", "x-id") for name in ENDPOINTS
    }
    assert [each.name for each in summary.endpoints if each.regressed] == [f"GET /{service.slow}/{{n}}"]
    assert {found.example for found in summary.differences} <= set(summary.examples)
    assert sum(summary.verdicts.values()) == 1_500
    check_tables(spark, tmp_path / "out", summary)


def check_tables(spark: SparkSession, out: Path, summary: Summary) -> None:
    """The tables say what the summary says."""
    kept = msgspec.json.decode((out / "summary.json").read_bytes(), type=Summary)
    assert kept == summary
    exchanges = spark.read.parquet(str(out / "tables" / "exchanges"))
    counts = {Verdict(row.verdict): row["count"] for row in exchanges.groupBy("verdict").count().collect()}
    assert counts == summary.verdicts
    differences = spark.read.parquet(str(out / "tables" / "differences")).collect()
    assert {(row.endpoint, Kind(row.kind), row.path): row["count"] for row in differences} == {
        (found.endpoint, found.kind, found.path): found.count for found in summary.differences
    }
    names = {row.endpoint for row in spark.read.parquet(str(out / "tables" / "endpoints")).collect()}
    assert names == {endpoint.name for endpoint in summary.endpoints}
    assert sum(moment.sent for moment in summary.timeline) == summary.exchanges
    assert not (out / ".work").exists()


def test_a_report_that_follows_goes_on_after_a_restart(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    service = Service(random.Random(4))
    records = [service.exchange(number)[0] for number in range(300)]
    written = [(number % 3, START_US // 1000 + number, record) for number, record in enumerate([*records, b"{"])]
    create_topic(kafka.address, "growing", 3)
    plan = Plan(results=TopicResults(topic="growing", kafka=kafka.settings()), out=tmp_path / "stream")
    produce(kafka.address, "growing", written[:100])
    half = follow(spark, plan, now_us=lambda: NOW, only_what_is_there=True)
    assert (half.exchanges, half.repeats, half.malformed) == (100, 0, 0)
    produce(kafka.address, "growing", written[100:])
    # An epoch that was cut off while it was written is written again.
    kept = tmp_path / "stream" / ".stream" / "results"
    torn = kept / f"epoch={len(list(kept.glob('epoch=*')))}"
    torn.mkdir()
    (torn / "part-0.parquet").write_bytes(b"PAR1 torn")
    whole = follow(spark, plan, now_us=lambda: NOW, only_what_is_there=True)
    assert (whole.exchanges, whole.repeats, whole.malformed) == (300, 0, 1)
    assert sum(whole.verdicts.values()) == 300
    assert whole.fidelity.order_violations == 0
    # What was begun goes on with nothing else.
    for other, named in (
        (replace(plan, results=TopicResults(topic="another", kafka=kafka.settings())), "--results"),
        (replace(plan, results=TopicResults(topic="growing", kafka=kafka.settings(), start="-1h")), "--from"),
        (replace(plan, rules=Rules(ruled_headers=frozenset({"x"}))), "--rules"),
    ):
        with pytest.raises(OptionError, match=f"was begun with other {named}; name another --out"):
            follow(spark, other, now_us=lambda: NOW, only_what_is_there=True)
    assert checked(replace(plan, rules=Rules(learns=False))) == plan.results


def test_a_stop_cancels_what_spark_does_and_is_told_in_one_line(spark: SparkSession) -> None:
    stopped = Event()
    endless = spark.range(10**15).selectExpr("sum(id * id)")
    with pytest.raises(StrandlineError) as told, stopped_by(stopped, spark.sparkContext, "stopped; there is none"):
        stopped.set()
        endless.collect()
    assert str(told.value) == "stopped; there is none"


def test_two_runs_tell_noise_where_no_request_is_asked_twice(spark: SparkSession, tmp_path: Path) -> None:
    def pair(number: int) -> Iterator[bytes]:
        fickle = number % 9 == 0
        for run in range(2):
            source = answer(200, {"n": number, "at": f"source {number}", "flag": True})
            body = {"n": number, "at": f"run {run} {number}", "flag": not (fickle and (number // 9) % 2 == run)}
            if number % 4 == 0:
                body["n"] = -number - 1
            yield result(source, answer(200, body), request=f"POST /things/{number}", number=number)

    runs = zip(*(pair(number) for number in range(300)), strict=True)
    first, second = (lines(tmp_path / f"{name}.jsonl", list(run)) for name, run in zip("ab", runs, strict=True))
    alone = report(spark, Plan(results=first, out=tmp_path / "alone"), now_us=NOW)
    assert {path for _, _, path in places(alone)} == {"$.at", "$.n", "$.flag"}
    both = report(spark, Plan(results=first, baseline=second, out=tmp_path / "both"), now_us=NOW)
    assert {path for _, _, path in places(both)} == {"$.n", "$.flag"}
    assert [(each.path, each.count) for each in both.noise] == [("$.at", 300)]


def test_fidelity_tells_lateness_drift_and_order(spark: SparkSession, tmp_path: Path) -> None:
    same = answer(200, {"a": 1})
    records = [
        result(same, same, number=n, connection=f"c{n % 4}", at_us=n * 10_000, late_us=1_000 + n * 10)
        for n in range(1000)
    ]
    # Sent again after a crash: the order is that of the last sending.
    records += [
        result(same, same, number=n, connection=f"c{n % 4}", at_us=n * 10_000 + 50_000_000, late_us=0)
        for n in range(900, 1000)
    ]
    # Number 500 is sent before 496, which is its predecessor on its connection.
    records[500] = result(same, same, number=500, connection="c0", at_us=4_950_000, late_us=0)
    summary = report(spark, Plan(results=lines(tmp_path / "a.jsonl", records), out=tmp_path / "out"), now_us=NOW)
    kept = summary.fidelity
    assert summary.verdicts == {Verdict.SAME: 1000}
    assert (kept.order_violations, kept.connections, kept.reuse) == (1, 4, 250)
    assert kept.late_max_us == 1_000 + 9_990
    assert kept.late_p50_us == pytest.approx(6_000, rel=0.02)
    assert kept.late_p99_us == pytest.approx(10_900, rel=0.02)
    assert kept.drift_us_per_s == pytest.approx(1_000, rel=0.05)


def test_a_replay_without_differences_has_none(spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(4)
    records = []
    for number in range(400):
        source, target = (
            answer(200, {"n": number % 5, "id": chance.random()}, X_Id=str(chance.random())) for _ in "ab"
        )
        times: Any = {side: round(10_000 * chance.lognormvariate(0, 0.4)) for side in ("source_us", "target_us")}
        records.append(result(source, target, request=f"GET /a/{number % 5}", number=number, **times))
    # Its time is absurd, and hides nothing of the others.
    records.append(result(None, answer(200, {}), request="GET /b", number=400, connection="d", at_us=10**15))
    records.append(result(answer(200, {}), None, request="GET /c", number=401))
    gates = tuple(parse_gates("differences>0,mismatch>1,regressions>0,order>0"))
    plan = Plan(results=lines(tmp_path / "a.jsonl", records), out=tmp_path / "out", gates=gates)
    summary = report(spark, plan, now_us=NOW)
    assert summary.verdicts == {Verdict.SAME: 400, Verdict.NO_SOURCE: 1, Verdict.FAILED: 1}
    assert not summary.differences
    assert all(gate.passed for gate in summary.gates)
    assert {example.verdict for example in summary.examples.values()} == set(Verdict) & set(summary.verdicts)
    assert [moment.sent for moment in summary.timeline if moment.sent][:3] == [100, 100, 100]


def test_what_holds_no_results_is_refused_in_one_line(spark: SparkSession, kafka: KafkaCluster, tmp_path: Path) -> None:
    with pytest.raises(StrandlineError) as none:
        report(spark, Plan(results=lines(tmp_path / "a.jsonl", [b"{}"]), out=tmp_path / "out"), now_us=NOW)
    assert str(none.value) == f"{tmp_path / 'a.jsonl'} holds no results, only 1 record that is none"
    with pytest.raises(StrandlineError) as unknown:
        report(
            spark, Plan(results=TopicResults(topic="no-such", kafka=kafka.settings()), out=tmp_path / "out"), now_us=NOW
        )
    assert "has no topic 'no-such'" in str(unknown.value)
    assert "\n" not in str(unknown.value)
