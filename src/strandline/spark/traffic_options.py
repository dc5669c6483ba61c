"""The options of `http_traffic`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from strandline.spark.options import KAFKA, choice, count, span
from strandline.spark.ordered_options import EPOCHS, RANGE, RangeOptions, SourceOptions, read_range, split
from strandline.units import nanos
from strandline.wire.assembly import Bounds, Capture
from strandline.wire.traffic import TOPIC

OWN = ("topic", "onUnreadable", "expireAfter", "bodyBytes", "heldBytes")
OPTIONS = {name.lower(): name for name in (*OWN, *RANGE)}
# What a stream has besides, and what of it goes to `kafka_ordered`.
STATE = "stateBytes"
STREAM = OPTIONS | {name.lower(): name for name in (STATE, *EPOCHS)}
PASSED_ON = {name.lower() for name in (*RANGE, *EPOCHS)}
# So that an epoch fits into the memory of a task, which sorts the records of a partition.
EPOCH_BYTES = 64 << 20
EXPIRE_AFTER = timedelta(seconds=70)
"""As a replay has it."""
STATE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficOptions(RangeOptions):
    """What to read of a capture, and how much to hold of it."""

    skip_unreadable: bool
    expire_after: timedelta
    bounds: Bounds

    @classmethod
    def parse(cls, raw: Mapping[str, str]) -> "TrafficOptions":
        """Read the options of a batch; raises OptionError."""
        return cls.read(*split(raw, OPTIONS))

    @classmethod
    def read(cls, settings: Mapping[str, str], options: Mapping[str, str]) -> "TrafficOptions":
        """Read options whose names are known."""
        held = count(options, "heldBytes")
        default = Bounds()
        return cls(
            settings=settings,
            topics=(options.get("topic", TOPIC),),
            skip_unreadable=choice(options, "onUnreadable", ("error", "skip")) == "skip",
            expire_after=span(options, "expireAfter") or EXPIRE_AFTER,
            bounds=Bounds(
                body=count(options, "bodyBytes") or default.body,
                requests=held // 2 if held else default.requests,
                answers=held // 2 if held else default.answers,
            ),
            **read_range(options),
        )

    def capture(self, *, is_spread: bool) -> Capture:
        """The same for who puts transactions together."""
        return Capture(
            topic=self.topics[0],
            is_spread=is_spread,
            expire_after=nanos(self.expire_after),
            skip_unreadable=self.skip_unreadable,
            bounds=self.bounds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """The same for a stream."""

    traffic: TrafficOptions
    state_bytes: int
    ordered: Mapping[str, str] = field(repr=False)
    """The options of `kafka_ordered` underneath."""

    @classmethod
    def parse(cls, raw: Mapping[str, str]) -> "StreamOptions":
        """Read the options of a stream; raises OptionError."""
        settings, options = split(raw, STREAM)
        traffic = TrafficOptions.read(settings, options)
        ordered = {
            **{f"{KAFKA}{name}": value for name, value in settings.items()},
            "maxBytesPerEpoch": str(EPOCH_BYTES),
            **{STREAM[name]: value for name, value in options.items() if name in PASSED_ON},
            "topics": traffic.topics[0],
        }
        SourceOptions.parse(ordered).for_stream()
        return cls(traffic=traffic, state_bytes=count(options, STATE) or STATE_BYTES, ordered=ordered)
