"""Where the results of a replay are, a topic or files: looked at before Spark starts, and read by it."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (as everybody calls them)

from strandline.errors import OptionError
from strandline.kafka.cluster import Cluster
from strandline.spark.ordered_options import SourceOptions

FILES = ("*.jsonl", "part-*.json")
"""As `strandline replay --results` writes them, and `strandline.spark.replay`."""
ANSWER_WITHIN = timedelta(seconds=10)
GLOB = re.compile(r"[\\*?\[\]{}]")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResults:
    """Results in a topic."""

    topic: str
    kafka: Mapping[str, str] = field(repr=False)
    start: str = "earliest"
    end: str | None = None

    def __str__(self) -> str:
        return f"topic {self.topic}"

    def check(self) -> None:
        """Refuse what is wrong, and a topic that is not there, or a cluster."""
        asyncio.run(_ask(SourceOptions.parse(self.options())))

    def options(self) -> dict[str, str]:
        """For `kafka_ordered`."""
        options = {f"kafka.{name}": value for name, value in self.kafka.items()}
        options |= {"topics": self.topic, "start": self.start}
        return options if self.end is None else options | {"end": self.end}

    def read(self, spark: SparkSession) -> DataFrame:
        """The records, in a column `value`."""
        slices = str(spark.sparkContext.defaultParallelism)
        return spark.read.format("kafka_ordered").options(**self.options(), slices=slices).load()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileResults:
    """Results in a file of JSON lines, or in all such files of a directory."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def check(self) -> None:
        """Refuse a directory without results, and a file that cannot be read."""
        for file in self.files():
            try:
                file.open("rb").close()
            except OSError as error:
                raise OptionError(f"{file}: cannot be read: {error.strerror}") from None

    def files(self) -> list[Path]:
        """All of them; raises OptionError where there are none."""
        if not self.path.is_dir():
            return [self.path]
        found = sorted({file for pattern in FILES for file in self.path.glob(pattern)})
        if not found:
            raise OptionError(f"{self.path} holds no file {' or '.join(FILES)}")
        return found

    def read(self, spark: SparkSession) -> DataFrame:
        """The records, in a column `value`."""
        lines = spark.read.text([literal(file) for file in self.files()])
        return lines.where("value != ''").select(F.col("value").cast("binary").alias("value"))


Results = TopicResults | FileResults


def literal(path: Path) -> str:
    """A path for `spark.read`, which takes some characters for a pattern."""
    return GLOB.sub(r"\\\g<0>", str(path.absolute()))


async def _ask(options: SourceOptions) -> None:
    cluster = Cluster(options.settings)
    cluster.patience = ANSWER_WITHIN
    try:
        await cluster.partitions(options.topics)
    finally:
        cluster.close()
