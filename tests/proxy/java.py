"""Kafka's own command-line tools, as people use them: each a JVM that writes, reads or asks, and ends."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from threading import Event

from strandline.stack.jars import tools_jars
from strandline.stack.kafka import Runtime, kafka_runtime
from tests.support import TIMEOUT

TOOLS = "org.apache.kafka.tools."
GROUPS = "consumer.group.ConsumerGroupCommand"
CONFIGS = "kafka.admin.ConfigCommand"
REASSIGN = "reassign.ReassignPartitionsCommand"
CONSUMER = "consumer.ConsoleConsumer"
SHARE_GROUPS = "consumer.group.ShareGroupCommand"
SHARE_CONSUMER = "consumer.ConsoleShareConsumer"


@cache
def _runtime() -> Runtime:
    # The class path of the brokers is the beginning of this one, so their archive of classes serves here too.
    runtime = kafka_runtime(Event())
    return replace(runtime, jars=tools_jars(runtime.java, Event()))


def command(address: str, name: str, *arguments: str) -> list[str]:
    """The command line of a tool."""
    main = name if name.startswith("kafka.") else TOOLS + name
    where = ("--bootstrap-server", address)
    # Of the two that have subcommands, one takes the address behind it and one before.
    asked = (*arguments, *where) if name == "ClusterTool" else (*where, *arguments)
    return [str(part) for part in _runtime().command(main, *asked, options=["-XX:+UseSerialGC"])]


def _run(address: str, name: str, *arguments: str, text: str = "") -> "subprocess.CompletedProcess[str]":
    asked = command(address, name, *arguments)
    return subprocess.run(asked, input=text, capture_output=True, text=True, timeout=2 * TIMEOUT, check=False)


def tool(address: str, name: str, *arguments: str, text: str = "") -> str:
    """What a tool prints that does what it is asked for."""
    done = _run(address, name, *arguments, text=text)
    assert done.returncode == 0, f"{name} {' '.join(arguments)}: {done.stdout}\n{done.stderr}"
    return done.stdout


def complaints(address: str, name: str, *arguments: str) -> str:
    """What a tool says that cannot do what it is asked for. Not all of them tell it by their exit code too."""
    return _run(address, name, *arguments).stderr


@contextmanager
def running(address: str, name: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """A tool that goes on until it is told to end, as by Ctrl-C."""
    process = subprocess.Popen(
        command(address, name, *arguments), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def console_produce(address: str, topic: str, values: list[str], *options: str) -> None:
    """Write lines."""
    tool(address, "ConsoleProducer", "--topic", topic, *options, text="".join(f"{value}\n" for value in values))


# Who subscribes by an expression looks again after five minutes, unless told, and a topic that was just made in a
# cluster is in the lists of the proxy a second later.
LOOKS_AGAIN = ("--command-property", "metadata.max.age.ms=1000")


def console_consume(address: str, topics: str, count: int, *options: str) -> list[str]:
    """So many lines of the topics that an expression names, from the beginning unless the group has been there."""
    within = ("--max-messages", str(count), "--timeout-ms", str(int(TIMEOUT * 1000)), "--from-beginning")
    return tool(address, CONSUMER, "--include", topics, *within, *LOOKS_AGAIN, *options).splitlines()
