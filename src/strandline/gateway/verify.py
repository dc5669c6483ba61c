"""Proves that a gateway loses, repeats and reorders nothing: clients that drop, freeze and come back while records are
written, each held against what was written.
"""

import asyncio
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

import msgspec
from websockets.exceptions import InvalidStatus, WebSocketException

from strandline.core.audience import Wanted
from strandline.errors import GatewayRefused
from strandline.gateway.address import shown
from strandline.gateway.visitor import Outcome, Trial, Visitor
from strandline.gateway.written import END, Writer

__all__ = ["Outcome", "Trial", "verify"]

# How long nothing may come, once all is written, before those who still wait are given up.
SETTLE_S = 60.0
CALL_S = 10.0
TELL_EVERY_S = 0.5


async def verify(
    trial: Trial, meanwhile: Coroutine[Any, Any, None] | None = None, tell: Callable[[Outcome], None] | None = None
) -> Outcome:
    """Run a trial against a gateway and the Kafka behind it; `meanwhile` may do to them what it likes.

    `tell` hears all the while how it stands.
    """
    await _call(trial)
    outcome = Outcome()
    writer = await asyncio.to_thread(
        Writer, trial.kafka, trial.topic, rate=trial.rate, deletes=trial.deletes, seed=trial.seed
    )
    clients = [Visitor(trial, number, outcome, writer) for number in range(trial.clients)]
    running = [asyncio.create_task(client.run()) for client in clients]
    trouble = asyncio.create_task(_nothing() if meanwhile is None else meanwhile)
    telling = asyncio.create_task(_nothing() if tell is None else _tell(tell, outcome, writer))
    try:
        await writer.write(trial.seconds / (trial.recreates + 1))
        for _ in range(trial.recreates):
            await writer.make_anew()
            await writer.write(trial.seconds / (trial.recreates + 1))
        while not trouble.done():
            await writer.write(1.0)
        await trouble
        await _settle(writer, clients, outcome)
    finally:
        for task in (*running, trouble, telling):
            task.cancel()
        await asyncio.gather(*running, trouble, telling, return_exceptions=True)
    outcome.written = writer.written
    for client in clients:
        outcome.faults += _faults(client, writer)
    return outcome


async def _call(trial: Trial) -> None:
    """See that the gateway is there and serves the topic, before anything is written."""
    name = shown(trial.url)
    try:
        async with asyncio.timeout(CALL_S), trial.dial() as connection:
            await connection.send(msgspec.json.encode({"type": "subscribe", "data": {"channels": [END]}}), text=True)
            told = msgspec.json.decode(await connection.recv())
    except TimeoutError:
        raise GatewayRefused(name, f"nobody can be served there: no answer within {CALL_S:g} s") from None
    except (WebSocketException, OSError) as error:
        raise GatewayRefused(name, f"nobody can be served there: {_problem(trial, error)}") from None
    match told:
        case {"positions": positions} if trial.topic in positions:
            return
        case {"positions": _}:
            raise GatewayRefused(name, f"topic '{trial.topic}' is not among those that it serves")
        case _:
            raise GatewayRefused(name, f"it does not let us hear '{END}': {told.get('message')}")


def _problem(trial: Trial, error: Exception) -> str:
    """What is wrong, and what may be done about it."""
    problem = str(error) or "the connection was broken off"
    if isinstance(error, InvalidStatus):
        if error.response.status_code != HTTPStatus.UNAUTHORIZED:
            return problem
        remedy = "name a file with a token: --token-file" if trial.token is None else "it does not take this token"
        return f"{problem} ({remedy})"
    if trial.url.lower().startswith("wss:"):
        return f"{problem} (is there TLS on this port? without it write ws:)"
    return problem


async def _nothing() -> None:
    pass


async def _tell(tell: Callable[[Outcome], None], outcome: Outcome, writer: Writer) -> None:
    while True:
        outcome.written = writer.written
        tell(outcome)
        await asyncio.sleep(TELL_EVERY_S)


async def _settle(writer: Writer, clients: list[Visitor], outcome: Outcome) -> None:
    """Wait until every client has seen the last records, or nothing more comes: a machine may be slow."""
    ends = await writer.finish()
    for client in clients:
        client.ends = len(writer.logs) - 1, ends
    loop = asyncio.get_running_loop()
    come, deadline = -1, loop.time()
    while not all(client.is_done for client in clients):
        if come != outcome.seen + outcome.gaps:
            come, deadline = outcome.seen + outcome.gaps, loop.time() + SETTLE_S
        elif loop.time() > deadline:
            return
        await asyncio.sleep(0.05)


def _faults(client: Visitor, writer: Writer) -> list[str]:
    if not client.witnesses:
        return [f"{client.name} was never served"]
    wanted = Wanted(client.patterns)
    last = len(writer.logs) - 1
    found = []
    for number, witness in [*client.past, *client.witnesses.items()]:
        is_past = client.witnesses[number] is not witness
        # Of a log that it saw nothing of nobody can say which it was.
        generation = witness.generation if is_past else last
        faults = witness.faults
        if generation is not None:
            log = writer.logs[generation]
            written, end = log.channels[number], witness.next
            if is_past and witness.ended is not None:
                end = witness.ended
            heard = [offset for offset in sorted(written) if wanted.has(written[offset])]
            faults = witness.check(heard, end, range(log.starts.get(number, 0)))
            if end > log.end(number):
                faults.append(f"the log was told to end at {end}, and ended at {log.end(number)}")
            if not is_past and end < log.end(number):
                faults.append(f"nothing came from offset {end} on, and the log goes on to {log.end(number) - 1}")
        found += [f"{client.name}, partition {number}: {fault}" for fault in faults]
    told = max((sum(number == its for its, _ in client.past) for number in client.witnesses), default=0)
    if told > last:
        found.append(f"{client.name} was told {told} times that the topic was made anew, which it was {last} times")
    return found
