"""The connection to a broker that belongs to one client connection: requests out in order, their answers in that order.

    CONNECTING ── connected, signed in ──> READY ──> CLOSED
         └──────────── no answer in time ─────────────^

An answer is passed on while it comes, or gathered for whoever asked. Answers that come together go on together, in one
piece. Correlation ids are our own, one after the other.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from strandline.errors import AuthenticationFailed, BrokerUnreachable, MalformedFrame
from strandline.kafka.security import Security
from strandline.proxy.link import Link, keep_alive, piece_for, widen
from strandline.wire.kafka_frames import (
    ANSWER_CORRELATION_AT,
    ANSWER_HEAD,
    FETCH,
    PRODUCE,
    SIZE,
    decode_answer,
    encode_request,
)
from strandline.wire.skim import Seen, Skim, fetched, produced

# No broker sends more: an answer holds at least one whole batch, however few bytes were asked for.
LARGEST_ANSWER = 256 << 20
LARGEST_GATHERED = 64 << 20
CORRELATIONS = 0x7FFF_FFFF
# A broker may hold an answer back for as long as a client's rebalance takes: to JoinGroup, to SyncGroup.
HOLD_BACK: Final = frozenset({11, 14})
LONGEST_ANSWER_S: Final = 900.0


@dataclass(slots=True)
class Passed:
    """An answer that goes to the client as it comes."""

    correlation_id: int
    """The client's."""
    api_key: int
    version: int
    then: Callable[[], None] | None = None
    """Called when all of it has gone on, before anything else does."""


@dataclass(slots=True)
class Gathered:
    """An answer that somebody waits for."""

    answer: "asyncio.Future[memoryview]"


class Backend:
    """Of one client connection. `onto` takes what goes to the client; `ended` is told when there is no more.

    `seen` says what is added to node ids, and keeps the errors of answers that pass.
    """

    def __init__(
        self,
        sock: socket.socket,
        address: str,
        *,
        seen: Seen,
        client: Link,
        onto: Callable[[memoryview], None],
        drained: Callable[[], None],
        ended: Callable[[Exception | None], None],
    ) -> None:
        self.address = address
        self._loop = asyncio.get_running_loop()
        self._seen = seen
        self._client = client
        self._onto = onto
        self._tell = ended
        self.link = Link(sock, self._take, self._end, drained, piece=piece_for(sock))
        self._correlation = 0
        self._expected: deque[tuple[int, Passed | Gathered]] = deque()
        self._last: Passed | None = None
        self._silent_since = 0.0
        self._heard = 0
        self.passed = 0
        """Requests whose answers pass to the client."""
        self.answered = 0
        """How many of these answers have passed."""
        self._remaining = 0
        self._skim: Skim | None = None
        self._whole: bytearray | None = None
        self.link.resume()

    def silent_for(self, now: float, limit: float) -> float | None:
        """The limit, if the broker has owed an answer for longer. Asked every moment.

        While the client takes nothing, nothing is read either, and it is not the broker who is silent. Whoever waits
        for an answer of our own has a limit too (`ask`).
        """
        if self.link.received != self._heard or not self.link.is_reading:
            self._heard, self._silent_since = self.link.received, now
        first = self._expected[0][1] if self._expected else None
        if not isinstance(first, Passed):
            return None
        longest = LONGEST_ANSWER_S if first.api_key in HOLD_BACK else limit
        return longest if now - self._silent_since > longest else None

    def next_correlation(self, answer: Passed | Gathered | None) -> int:
        """The correlation id of the next request, whose answer is expected; None where none will come."""
        self._correlation = (self._correlation + 1) & CORRELATIONS
        if answer is not None:
            if not self._expected:
                self._silent_since = self._loop.time()
            self._expected.append((self._correlation, answer))
            if isinstance(answer, Passed):
                self._last = answer
                self.passed += 1
        return self._correlation

    def behind_all(self, then: Callable[[], None]) -> None:
        """Call this when the answer to the last request that was passed has gone on, if it has not yet."""
        if self._last is not None and self.answered < self.passed:
            self._last.then = then

    async def ask(self, request: Any, client_id: str | None, *, within: float) -> Any:
        """Send a request of our own and wait for its answer. While the client takes nothing, nothing is read, and no
        time is over.
        """
        api_key, version = request.__api_key__, request.__version__
        answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        if self.link.is_closed:
            raise BrokerUnreachable(self.address, "the connection was closed")
        frame = encode_request(request, self.next_correlation(Gathered(answer)), client_id)
        self.link.write(frame)
        while True:
            try:
                async with asyncio.timeout(within):
                    return decode_answer(await asyncio.shield(answer), api_key, version)
            except TimeoutError:
                if not self.link.is_reading:
                    continue
                answer.cancel()
                error = BrokerUnreachable(self.address, f"no answer to {type(request).__name__} within {within:g} s")
                self._end(error)
                raise error from None

    def close(self, *, after_sending: bool = False) -> None:
        """Close at once, or once all is sent."""
        self.link.close(after_sending=after_sending)
        self._give_up(None)

    def _take(self, view: memoryview) -> int:
        sent = at = 0
        end = len(view)
        while at < end:
            head = 0
            if not self._remaining:
                if end - at < ANSWER_HEAD.size:
                    break
                head = ANSWER_HEAD.size
                self._begin(view[at:])
            stop = min(at + self._remaining, end)
            if self._whole is not None:
                self._send_on(view[sent:at])
                self._whole += view[at:stop]
                used, sent = stop - at, stop
            elif self._skim is not None:
                used = head + self._skim.feed(view[at + head : stop])
            else:
                used = stop - at
            self._remaining -= used
            at += used
            if not self._remaining:
                sent = self._finish(view, sent, at)
            elif at < stop:
                if stop - at == self._remaining:
                    raise MalformedFrame(f"{self.address} sent an answer that ends too early")
                break
        self._send_on(view[sent:at])
        if at == end and self._skim is not None:
            straight = min(self._skim.skip, self._remaining - 1)
            if self.link.straight(straight, self._client):
                self._remaining -= straight
                self._skim.skip -= straight
        return at

    def _begin(self, view: memoryview) -> None:
        size, correlation_id = ANSWER_HEAD.unpack_from(view)
        if not self._expected or self._expected[0][0] != correlation_id:
            raise MalformedFrame(f"{self.address} sent an answer that nobody asked for")
        if not SIZE.size <= size <= LARGEST_ANSWER:
            raise MalformedFrame(f"{self.address} sent an answer of {size} bytes")
        self._remaining = size + SIZE.size
        answer = self._expected[0][1]
        if isinstance(answer, Passed):
            SIZE.pack_into(view, ANSWER_CORRELATION_AT, answer.correlation_id)
            if answer.api_key == FETCH:
                self._skim = Skim(fetched(answer.version, self._seen))
                return
            if answer.api_key != PRODUCE:
                return
            if self._remaining <= len(view):
                produced(view[: self._remaining], answer.version, self._seen)
                return
        if size > LARGEST_GATHERED:
            raise MalformedFrame(f"{self.address} sent an answer of {size} bytes to a request that has short ones")
        self._whole = bytearray()

    def _finish(self, view: memoryview, sent: int, at: int) -> int:
        """An answer has come to its end; up to where all has been sent on."""
        _, answer = self._expected.popleft()
        whole, self._whole, self._skim = self._whole, None, None
        self._silent_since = self._loop.time()
        if isinstance(answer, Gathered):
            if not answer.answer.done():
                answer.answer.set_result(memoryview(whole or b""))
            return sent
        if whole is not None:
            produced(memoryview(whole), answer.version, self._seen)
            self._send_on(memoryview(whole))
        self.answered += 1
        if answer.then is None:
            return sent
        self._send_on(view[sent:at])
        answer.then()
        return at

    def _send_on(self, part: memoryview) -> None:
        if part:
            self._onto(part)

    def _end(self, error: Exception | None) -> None:
        self.link.close()
        self._give_up(error)
        self._tell(error)

    def _give_up(self, error: Exception | None) -> None:
        for _, answer in self._expected:
            if isinstance(answer, Gathered) and not answer.answer.done():
                answer.answer.set_exception(BrokerUnreachable(self.address, str(error or "it closed the connection")))
        self._expected.clear()


async def connect(address: tuple[str, int], security: Security, *, within: float) -> socket.socket:
    """A socket to a broker, encrypted where the settings say so."""
    host, port = address
    loop = asyncio.get_running_loop()
    sock: socket.socket | None = None
    try:
        async with asyncio.timeout(within):
            sock = await _first_that_answers(await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))
            if security.tls is not None:
                sock = security.tls.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
                await shake_hands(sock)
    except ssl.SSLCertVerificationError as error:
        _drop(sock)
        raise AuthenticationFailed(f"the certificate of {host}:{port} is refused: {error.verify_message}") from error
    except (OSError, TimeoutError) as error:
        _drop(sock)
        raise BrokerUnreachable(f"{host}:{port}", str(error) or f"no answer within {within:g} s") from error
    except BaseException:
        _drop(sock)
        raise
    return sock


async def _first_that_answers(places: list[Any]) -> socket.socket:
    """A connection to the first of several addresses of a name that takes one."""
    failure = OSError("it has no address")
    for family, kind, protocol, _, place in places:
        sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(sock)
        widen(sock)
        try:
            await asyncio.get_running_loop().sock_connect(sock, place)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure


async def shake_hands(sock: ssl.SSLSocket) -> None:
    """Complete the handshake of TLS on a socket that does not block."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            sock.do_handshake()
        except ssl.SSLWantReadError:
            await _ready(sock, loop.add_reader, loop.remove_reader)
        except ssl.SSLWantWriteError:
            await _ready(sock, loop.add_writer, loop.remove_writer)
        else:
            return


async def _ready(sock: socket.socket, add: Callable[..., None], remove: Callable[..., object]) -> None:
    ready = asyncio.Event()
    add(sock.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        remove(sock.fileno())


def _drop(sock: socket.socket | None) -> None:
    if sock is not None:
        sock.close()
