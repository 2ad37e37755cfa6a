"""A proxy in front of PostgreSQL that can lose requests or answers when a test says so."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from types import TracebackType

_PORT = 5432


class PostgresProxy:
    """Stands between a store and its server, and passes everything on until a test stops it."""

    def __init__(self, url: str) -> None:
        self._target = url
        self._folder = tempfile.TemporaryDirectory(prefix="em-wire-")
        self._lines: list[_ProxiedConnection] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.lets: Callable[[], Awaitable[bool]] | None = None
        """Called before anything is passed on, either way; after the first False, nothing more is passed that way."""

    @property
    def url(self) -> str:
        """The same database, through this proxy."""
        parts = urlsplit(self._target)
        return f"postgresql://{parts.username}@{parts.path}?host={self._folder.name}&port={_PORT}"

    def lose_answers(self) -> None:
        """From now on, connected clients send requests and get no answers."""
        for line in self._lines:
            line.answers = False

    def lose_requests(self) -> None:
        """From now on, connected clients send requests, and nothing of them arrives."""
        for line in self._lines:
            line.questions = False

    def keep_open(self) -> None:
        """From now on, a connection that the server closes stays open on the client's side."""
        for line in self._lines:
            line.closes = False

    @property
    def closed_by_server(self) -> bool:
        """Whether the server has closed every connection."""
        return all(line.left for line in self._lines)

    def cut(self) -> None:
        """Break every open connection; new ones can be made."""
        for line in self._lines:
            line.abort()
        self._lines.clear()

    async def __aenter__(self) -> Self:
        path = Path(self._folder.name) / f".s.PGSQL.{_PORT}"
        self._server = await asyncio.start_unix_server(self._connect, path)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._folder.cleanup()

    async def _lets(self) -> bool:
        return self.lets is None or await self.lets()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parts = urlsplit(self._target)
        asked = parse_qs(parts.query)
        if parts.hostname:
            there = await asyncio.open_connection(parts.hostname, parts.port or _PORT)
        else:
            there = await asyncio.open_unix_connection(f"{asked['host'][0]}/.s.PGSQL.{asked['port'][0]}")
        line = _ProxiedConnection(client=(reader, writer), server=there, lets=self._lets)
        self._lines.append(line)
        for pump in (line.ask(), line.answer()):
            task = asyncio.ensure_future(pump)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


class TcpPostgresProxy(PostgresProxy):
    """The same, over TCP on this machine."""

    port = 0

    @property
    def url(self) -> str:
        """The same database, through this proxy."""
        parts = urlsplit(self._target)
        return f"postgresql://{parts.username}@127.0.0.1:{self.port}{parts.path}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self


@asynccontextmanager
async def a_frozen_host() -> AsyncIterator[tuple[int, list[asyncio.StreamWriter]]]:
    """A host that accepts connections and never answers; the accepted ones are listed."""
    came: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: came.append(writer), "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], came
    finally:
        for writer in came:
            writer.transport.abort()
        server.close()


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _ProxiedConnection:
    """One connection, and which directions still work."""

    def __init__(self, *, client: Stream, server: Stream, lets: Callable[[], Awaitable[bool]]) -> None:
        self._lets = lets
        self._client = client
        self._server = server
        self.questions = True
        self.answers = True
        self.closes = True
        self.left = False

    def abort(self) -> None:
        """Break it on both sides."""
        for _, writer in (self._client, self._server):
            writer.transport.abort()

    async def ask(self) -> None:
        """From the client to the server."""
        with suppress(OSError):
            while said := await self._client[0].read(65536):
                self.questions = self.questions and await self._lets()
                if self.questions:
                    self._server[1].write(said)
        self._server[1].close()

    async def answer(self) -> None:
        """From the server to the client."""
        with suppress(OSError):
            while said := await self._server[0].read(65536):
                self.answers = self.answers and await self._lets()
                if self.answers:
                    self._client[1].write(said)
        self.left = True
        if self.closes:
            self._client[1].close()
