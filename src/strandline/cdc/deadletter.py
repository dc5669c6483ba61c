"""Places for records that the stream will never take: a Kafka topic, a directory, a Postgres table.

`write` returns once all are safe there, and raises DeadLetterFailed otherwise: then nothing may be acknowledged.
After a crash the same record may be written again, with the same id.
"""

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, LiteralString, NamedTuple, Protocol

import msgspec
import psycopg
from psycopg import sql

from strandline.errors import DeadLetterFailed, KafkaError, PublisherFull
from strandline.wire.pgoutput import lsn_text

if TYPE_CHECKING:
    from strandline.kafka.producer import Done, Headers, Publisher

WITHIN = timedelta(seconds=30)
MAX_PIECE = 900_000
"""A broker takes 1 MB as it comes, and what Kinesis does not take is often larger."""

CREATE: LiteralString = """
CREATE TABLE IF NOT EXISTS {} (
    lsn pg_lsn NOT NULL, ordinal bigint NOT NULL, reason text NOT NULL, partition_key text, payload bytea,
    written timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (lsn, ordinal))
"""
INSERT: LiteralString = """
INSERT INTO {} (lsn, ordinal, reason, partition_key, payload) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (lsn, ordinal) DO NOTHING
"""


class DeadLetter(NamedTuple):
    """A record, its id, and why it is here."""

    lsn: int
    ordinal: int
    reason: str
    partition_key: str | None
    payload: bytes | None

    @property
    def id(self) -> str:
        """As it is told to people: `16/B374D848 3`."""
        return f"{lsn_text(self.lsn)} {self.ordinal}"


class DeadLetterPlace(Protocol):
    """Where they go. It opens nothing before the first write, and serves one event loop."""

    async def write(self, letters: Sequence[DeadLetter]) -> None:
        """Return once all are safe."""
        ...

    def close(self) -> None: ...


class KafkaTopic:
    """A record each: the id as key, the payload as value, the rest in headers. A large payload comes in pieces."""

    def __init__(self, settings: Mapping[str, object], topic: str) -> None:
        self._settings = {"delivery.timeout.ms": int(WITHIN.total_seconds() * 1000), **settings}
        self._topic = topic
        self._publisher: Publisher | None = None

    async def write(self, letters: Sequence[DeadLetter]) -> None:
        failed: list[KafkaError] = []

        def done(_letter: object, error: KafkaError | None) -> None:
            if error is not None:
                failed.append(error)

        # Not before there is a letter: who only looks at the sink pays for no client of Kafka.
        from strandline.kafka.flushing import flush  # noqa: PLC0415
        from strandline.kafka.producer import Publisher  # noqa: PLC0415

        try:
            if self._publisher is None:
                self._publisher = Publisher(self._settings)
            for letter in letters:
                for value, headers in _pieces(letter):
                    await self._publish(self._publisher, value, letter.id.encode(), headers, done)
            # Longer than any of them takes to be reported on.
            left = await flush(self._publisher, 2 * WITHIN)
        except KafkaError as error:
            raise DeadLetterFailed(f"Kafka topic '{self._topic}'", str(error)) from error
        if failed or left:
            raise DeadLetterFailed(f"Kafka topic '{self._topic}'", str(failed[0]) if failed else "no answer in time")

    async def _publish(
        self, publisher: "Publisher", value: bytes | None, key: bytes, headers: "Headers", done: "Done"
    ) -> None:
        while True:
            try:
                publisher.publish(self._topic, value, key, headers, on_done=done)
            except PublisherFull:
                await publisher.room()
            else:
                return

    def close(self) -> None:
        if self._publisher is not None:
            self._publisher.close()


def _pieces(letter: DeadLetter) -> Iterator[tuple[bytes | None, "Headers"]]:
    payload = letter.payload or b""
    starts = range(0, max(1, len(payload)), MAX_PIECE)
    for number, start in enumerate(starts, 1):
        headers: Headers = [
            ("reason", letter.reason),
            ("lsn", lsn_text(letter.lsn)),
            ("ordinal", str(letter.ordinal)),
            ("partition_key", letter.partition_key),
            ("piece", f"{number}/{len(starts)}"),
        ]
        yield None if letter.payload is None else payload[start : start + MAX_PIECE], headers


class _Line(msgspec.Struct):
    lsn: str
    ordinal: int
    reason: str
    partition_key: str | None
    payload: bytes | None


class Directory:
    """A file for each set, one JSON object a line, the payload in base64.

    A file is whole or not there. It is named by its first id and its content: the same set again is the same file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    async def write(self, letters: Sequence[DeadLetter]) -> None:
        try:
            await asyncio.to_thread(self._write, letters)
        except OSError as error:
            raise DeadLetterFailed(f"directory {self._path}", error.strerror or str(error)) from error

    def _write(self, letters: Sequence[DeadLetter]) -> None:
        lines = [_Line(lsn_text(letter.lsn), *letter[1:]) for letter in letters]
        content = msgspec.json.Encoder().encode_lines(lines)
        first = letters[0]
        name = f"{first.lsn:016X}-{first.ordinal:010d}-{sha256(content).hexdigest()[:16]}.jsonl"
        self._path.mkdir(parents=True, exist_ok=True)
        unfinished = self._path / f".{name}.{os.getpid()}"
        try:
            with unfinished.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(self._path / name)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        directory = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def close(self) -> None:
        """Nothing is open."""


class PostgresTable:
    """A row each, made where the table is missing. It must not be among the tables whose changes are published."""

    def __init__(self, url: str, table: str = "strandline_dead_letters") -> None:
        self._url = url
        self._table = table
        self._name = sql.Identifier(*table.split("."))

    async def write(self, letters: Sequence[DeadLetter]) -> None:
        try:
            async with asyncio.timeout(WITHIN.total_seconds()):
                await self._put(letters)
        except TimeoutError:
            raise DeadLetterFailed(f"table {self._table}", "no answer in time") from None
        except psycopg.Error as error:
            if isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None:
                # The reason may quote the string, and with it a password.
                raise DeadLetterFailed(f"table {self._table}", "the connection string cannot be read") from None
            problem = " ".join(str(error).split()) or type(error).__name__
            raise DeadLetterFailed(f"table {self._table}", problem) from error

    async def _put(self, letters: Sequence[DeadLetter]) -> None:
        try:
            await self._insert(letters, create=False)
        except psycopg.errors.UndefinedTable:
            try:
                await self._insert(letters, create=True)
            except (psycopg.errors.DuplicateTable, psycopg.errors.UniqueViolation):
                # Another task has made it at the same moment.
                await self._insert(letters, create=False)

    async def _insert(self, letters: Sequence[DeadLetter], *, create: bool) -> None:
        rows = [(lsn_text(letter.lsn), *letter[1:]) for letter in letters]
        async with await psycopg.AsyncConnection.connect(self._url) as connection, connection.cursor() as cursor:
            # Whatever the server's defaults are: it must be on disk when it is committed, and it is no error that
            # another task writes the same at the same moment.
            await cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            await cursor.execute("SET LOCAL synchronous_commit = on")
            if create:
                await cursor.execute(sql.SQL(CREATE).format(self._name))
            await cursor.executemany(sql.SQL(INSERT).format(self._name), rows)

    def close(self) -> None:
        """Nothing is open."""
