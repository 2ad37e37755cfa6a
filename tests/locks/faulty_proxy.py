"""A wire that misbehaves on purpose: a small TCP proxy in front of one server.

    client ──requests──▶ proxy ──▶ server
           ◀──answers───       ◀──

Each direction passes, holds (nothing arrives until it passes again, then all of it, in order) or loses what comes.
Losing the answers is the most useful fault: the effect happened, and the client does not know.

It runs in a thread of its own, so that neither a blocked event loop nor a blocked thread of the test stops it. What
it does to connections it can do to some only: those that subscribed, or those that did not.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from enum import StrEnum
from typing import TYPE_CHECKING, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

_CHUNK_BYTES = 65_536
_CALL_SECONDS_MAX = 30.0

_Answer = TypeVar("_Answer")


class Kind(StrEnum):
    """What a connection is used for."""

    COMMANDS = "commands"
    SUBSCRIPTION = "subscription"


class Flow(StrEnum):
    """What becomes of the bytes of one direction."""

    PASS = "pass"
    HOLD = "hold"
    LOSE = "lose"


class Direction(StrEnum):
    """Which way bytes go."""

    REQUESTS = "requests"
    ANSWERS = "answers"


class Link:
    """One connection of a client, with its own connection to the server."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.kind = Kind.COMMANDS
        self.stranded = False
        self.doomed = False
        self.client = client
        self.server = server


class Proxy:
    """Stands on a port of its own and speaks to the server on another."""

    def __init__(self, port: int) -> None:
        self.target = port
        """Where new connections lead. Moved to another port it is what a service address is in a failover."""
        self.received = 0
        """How often a client used the proxy: connections and requests, whatever their outcome."""
        self.lost = 0
        """How many pieces of answers were lost so far."""
        self.unheard = 0
        """How many requests were lost so far."""
        self._break_after = b""
        self._flows = {(kind, direction): Flow.PASS for kind in Kind for direction in Direction}
        self._links: set[Link] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._welcome, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        """As locks take it."""
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cut everything and end the thread."""
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def flow(self) -> None:
        """Let everything pass again, also what was held. What was lost stays lost."""
        self._set(Flow.PASS, tuple(Direction), None)

    def hold(self, kind: Kind | None = None) -> None:
        """Let nothing arrive on either side: a network that has stopped, and whose connections stand."""
        self._set(Flow.HOLD, tuple(Direction), kind)

    def hold_answers(self, kind: Kind | None = None) -> None:
        """The server receives everything, and no client receives its answers until they flow again."""
        self._set(Flow.HOLD, (Direction.ANSWERS,), kind)

    def lose_answers(self, kind: Kind | None = None) -> None:
        """The effect happens and the answer is gone for ever."""
        self._set(Flow.LOSE, (Direction.ANSWERS,), kind)

    def lose_requests(self, kind: Kind | None = None) -> None:
        """Nothing arrives on the other side."""
        self._set(Flow.LOSE, (Direction.REQUESTS,), kind)

    def cut(self, kind: Kind | None = None) -> None:
        """Close the present connections on both sides."""
        self._each(kind, _close_both)

    def break_after(self, request: bytes) -> None:
        """The effect of the next request with these bytes in it happens, and the connection breaks over its answer."""
        self._break_after = request

    def strand(self, kind: Kind | None = None) -> None:
        """Forget the present connections without a word to either side, as a firewall does; new ones are served."""
        self._each(kind, _strand)

    def _set(self, flow: Flow, directions: tuple[Direction, ...], kind: Kind | None) -> None:
        async def change() -> None:
            for which in Kind if kind is None else (kind,):
                for direction in directions:
                    self._flows[which, direction] = flow
            self._wake()

        self._run(change())

    def _each(self, kind: Kind | None, act: Callable[[Link], None]) -> None:
        async def act_on_all() -> None:
            for link in self._links:
                if kind in (None, link.kind):
                    act(link)
            self._wake()

        self._run(act_on_all())

    def _wake(self) -> None:
        """Let each thread that holds data back check again what to do with it."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _run(self, work: Coroutine[object, object, _Answer]) -> _Answer:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_SECONDS_MAX)

    async def _close(self) -> None:
        self._server.close()
        for link in self._links:
            _close_both(link)
        for pump in self._pumps:
            pump.cancel()
        if self._pumps:
            await asyncio.wait(self._pumps)
        # Once more round the loop, so that the sockets are closed before the loop is.
        await asyncio.sleep(0)

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.received += 1
        task = asyncio.current_task()
        assert task is not None
        self._pumps.add(task)
        task.add_done_callback(self._pumps.discard)
        try:
            answers, server = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        link = Link(writer, server)
        self._links.add(link)
        back = self._loop.create_task(self._pump(link, answers, writer, Direction.ANSWERS))
        self._pumps.add(back)
        back.add_done_callback(self._pumps.discard)
        try:
            await self._pump(link, reader, server, Direction.REQUESTS)
        finally:
            # The client has disconnected: no client is left to hold the answer back from.
            _close_both(link)
            self._links.discard(link)

    def _look_at(self, link: Link, request: bytes) -> None:
        if b"SUBSCRIBE" in request:
            link.kind = Kind.SUBSCRIPTION
        if self._break_after and self._break_after in request:
            self._break_after = b""
            link.doomed = True

    async def _pump(
        self, link: Link, source: asyncio.StreamReader, sink: asyncio.StreamWriter, direction: Direction
    ) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            while data := await source.read(_CHUNK_BYTES):
                if direction is Direction.REQUESTS:
                    self.received += 1
                    self._look_at(link, data)
                while (flow := self._flows[link.kind, direction]) is Flow.HOLD and not link.stranded:
                    await self._changed.wait()
                if link.doomed and direction is Direction.ANSWERS:
                    self.lost += 1
                    _close_both(link)
                elif flow is Flow.PASS and not link.stranded:
                    sink.write(data)
                    await sink.drain()
                elif direction is Direction.ANSWERS:
                    self.lost += 1
                else:
                    self.unheard += 1
        if direction is Direction.ANSWERS and not link.stranded:
            sink.close()


def _close_both(link: Link) -> None:
    link.client.close()
    link.server.close()


def _strand(link: Link) -> None:
    link.stranded = True
