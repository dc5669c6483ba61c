"""What one member is to replay, and how."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from fractions import Fraction
from pathlib import Path

from strandline.core.pacing import Pace
from strandline.errors import OptionError
from strandline.kafka.partition import Partition
from strandline.kafka.starts import TOPIC_NAME
from strandline.replay.beginning import From
from strandline.replay.health import WhenDown
from strandline.replay.limits import Limits
from strandline.replay.results import WIDEST
from strandline.replay.results import Limits as ResultLimits
from strandline.replay.retries import DefaultRetry, RetryPolicy
from strandline.replay.target import Target
from strandline.replay.transforms import Transform
from strandline.wire.traffic import TOPIC

SESSION, SESSION_TIMEOUT_MS = "session.timeout.ms", 45_000
"""librdkafka's setting, and its default."""


class Until(Enum):
    """Where to end."""

    LIVE = "live"
    """When all that there was at the start has been replayed."""
    NEVER = "never"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to replay, and how."""

    kafka: Mapping[str, object]
    """librdkafka's names, `group.id` among them."""
    target: Target
    transform: Transform
    topic: str = TOPIC
    results_topic: str = ""
    """Without it, the topic's name with `-results`."""
    dead_letters: str = ""
    """Without it, the topic's name with `-dead-letters`."""
    results: Path | None = None
    tuples: Path | None = None
    start: From | datetime = From.COMMITTED
    until: Until | datetime = Until.NEVER
    speed: Fraction = Fraction(1)
    reference: Pace | None = None
    """Which source time is which time of the monotonic clock, where several members share one."""
    ends: Mapping[Partition, int] | None = None
    """Where the log ended when the run began, where others have looked, and sent the group to the start."""
    is_led: bool = False
    """Whether somebody else gives the reference (`begin`) and says that all is done (`finish`)."""
    lookahead: timedelta = timedelta(seconds=400)
    """How far ahead of the clock is read, in source time."""
    packet_timeout: timedelta = timedelta(seconds=70)
    """After how long without a sign of it a source connection is taken for gone, in source time."""
    drain: timedelta = timedelta(seconds=10)
    """How long requests that are on their way have when the replay is stopped."""
    when_down: WhenDown = WhenDown.PAUSE
    policy: RetryPolicy = field(default_factory=DefaultRetry)
    limits: Limits = field(default_factory=Limits)
    marks: bool = True
    """Whether requests carry the header that names them."""
    kept: ResultLimits = WIDEST
    """How much of each part a result holds."""

    @property
    def topics(self) -> tuple[str, str, str]:
        """Where the capture is, where results go, and where dead letters go."""
        return (
            self.topic,
            self.results_topic or f"{self.topic}-results",
            self.dead_letters or f"{self.topic}-dead-letters",
        )

    @property
    def session_timeout(self) -> timedelta:
        """After how long without a sign of life the group takes a member for dead."""
        return timedelta(milliseconds=int(str(self.kafka.get(SESSION, SESSION_TIMEOUT_MS))))

    @property
    def stalled_after(self) -> timedelta:
        """How long this process may stand still before it must prove its ownership: half of a session's time-out."""
        return self.session_timeout / 2

    def __post_init__(self) -> None:
        if not str(self.kafka.get(SESSION, SESSION_TIMEOUT_MS)).isdecimal():
            raise OptionError(f"'{SESSION}' takes a whole number of milliseconds")
        for name in self.topics:
            if not TOPIC_NAME.fullmatch(name):
                raise OptionError(f"'{name}' is not the name of a topic")
        if len(set(self.topics)) < len(self.topics):
            named = ", ".join(f"'{name}'" for name in self.topics)
            raise OptionError(f"the capture, its results and its dead letters need a topic each, not {named}")
        if self.kafka.get("group.id") == "":
            raise OptionError("a group needs a name; give one by --group")
        counts = {"concurrency": self.limits.concurrency, "memory": self.limits.memory}
        spans = {"packet_timeout": self.packet_timeout, "answer_within": self.limits.answer_within}
        for name, count in counts.items():
            if count < 1:
                raise OptionError(f"{name} is to be at least 1, not {count}")
        for name, span in spans.items():
            if span <= timedelta(0):
                raise OptionError(f"{name} is to be above 0, not {span.total_seconds():g} s")
        if min(self.drain, self.limits.quiescence) < timedelta(0):
            raise OptionError("drain and quiescence cannot be below 0")
        if self.lookahead <= self.packet_timeout:
            raise OptionError("lookahead is to exceed packet_timeout, else silent connections never come to an end")
