"""What admission is tried with: a look inside Redis, and servers that are slow or talk nonsense."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, Self

from tests.locks.faulty_proxy import Direction, Proxy
from tests.locks.topologies import ask

from earmark.admission.encode_and_decode_script_calls import SOURCE
from earmark.admission.local_taken_seats_cache import LocalHints
from earmark.admission.redis_servers import open_servers
from earmark.admission.seat_admission import TTL_SECONDS, AdmissionPass, SeatAdmission
from earmark.domain.id_types import EventId, SeatId, SeatRef
from earmark.engine.ports.seat_admission import Busy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from tests.locks.faulty_proxy import Link

    from earmark.admission.recently_refused_seats_and_buyers import RefusedSeats
    from earmark.testservers import Valkey

EVENT = EventId("concert-1")
PATIENCE = 15.0
"""How long a request waits for Redis in tests that are about something else: a busy machine fails none of them."""
DEADLINE = 0.1
COOLDOWN_SECONDS = 0.1
BOUND = 20.0
"""How long a test waits for a fact. It is not reached when all is well."""


def seats(*names: str) -> tuple[SeatId, ...]:
    return tuple(map(SeatId, names))


def refs(*names: str, event: EventId = EVENT) -> list[SeatRef]:
    return [SeatRef(event, SeatId(name)) for name in names]


def admission_on(
    url: str,
    *,
    prefix: str,
    timeout: float = PATIENCE,
    ttl_seconds: float = TTL_SECONDS,
    remember_seconds: float = 0.0,
    refused_seats: RefusedSeats | None = None,
    source: bytes = SOURCE,
    cooldown_seconds: float = COOLDOWN_SECONDS,
) -> SeatAdmission:
    """Admission as `open_admission` makes it, except for what a test changes."""
    servers = open_servers(url, timeout=timeout, ttl_seconds=ttl_seconds, source=source)
    for server in servers:
        # Tried again soon, however often it failed before: a test waits for that.
        server.breaker._cooldown_seconds = server.breaker._cooldown_seconds_least = cooldown_seconds
        server.breaker._cooldown_seconds_max = cooldown_seconds
    hints = LocalHints(seconds_max=remember_seconds)
    return SeatAdmission(servers, prefix=prefix, ttl_seconds=ttl_seconds, hints=hints, refused_seats=refused_seats)


async def refused(call: Awaitable[AdmissionPass | Busy | None]) -> list[str]:
    """The seats that a request was refused for; empty if it was not."""
    found = await call
    return list(found.seats) if isinstance(found, Busy) else []


async def passed(call: Awaitable[AdmissionPass | Busy | None]) -> AdmissionPass:
    """The pass of a request that Redis let through."""
    found = await call
    assert isinstance(found, AdmissionPass), "Redis was not asked, or refused"
    return found


async def until(fact: Callable[[], bool], *, seconds: float = BOUND) -> None:
    """Wait for a fact."""
    await until_true(lambda: _said(fact()), seconds=seconds)


async def until_true(fact: Callable[[], Awaitable[bool]], *, seconds: float = BOUND) -> None:
    """Wait for a fact that has to be asked for."""
    deadline = time.monotonic() + seconds
    while not await fact():
        assert time.monotonic() < deadline, "the fact never came"
        await asyncio.sleep(0.005)


async def _said(fact: bool) -> bool:  # noqa: FBT001 -- it is the fact itself
    return fact


class Inside:
    """What one Redis has of the seats of one event, read directly."""

    def __init__(self, server: Valkey, *, prefix: str, event: EventId = EVENT) -> None:
        self.server = server
        self._start = f"{prefix}:admit:{{{event}}}:"

    def name(self, seat: str) -> str:
        """What the seat's key is called."""
        return self._start + seat

    def kind(self, seat: str) -> str:
        """`f` for a request in flight, `h` for a hint, and nothing for neither."""
        value: str = ask(self.server, "GET", self.name(seat)) or ""
        return value[:1]

    def left_ms(self, seat: str) -> int:
        """How long it still lives."""
        return int(ask(self.server, "PTTL", self.name(seat)))

    def write(self, seat: str, value: str, *options: str) -> None:
        """Put something there by hand."""
        ask(self.server, "SET", self.name(seat), value, *options)

    def kinds(self, *names: str) -> str:
        """The same for several seats in a row, with a dash for nothing."""
        return "".join(self.kind(name) or "-" for name in names)


class Slow(Proxy):
    """A wire on which every answer takes its time."""

    def __init__(self, port: int, *, seconds: float) -> None:
        super().__init__(port)
        self.seconds = seconds

    async def _pump(
        self, link: Link, source: asyncio.StreamReader, sink: asyncio.StreamWriter, direction: Direction
    ) -> None:
        if direction is Direction.REQUESTS:
            await super()._pump(link, source, sink, direction)
            return
        with contextlib.suppress(OSError, asyncio.CancelledError):
            while data := await source.read(65_536):
                await asyncio.sleep(self.seconds)
                sink.write(data)
        sink.close()


class Liar:
    """Something that listens where Redis should, and says the same to whatever it is asked."""

    def __init__(self, says: bytes) -> None:
        self.says = says
        self.asked = 0
        """How often it was asked anything."""
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="liar", daemon=True)
        self._thread.start()
        starting = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._welcome, "127.0.0.1", 0), self._loop)
        self._server = starting.result(BOUND)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(BOUND)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            while await reader.read(65_536):
                self.asked += 1
                writer.write(self.says)
        writer.close()
        self._tasks.discard(task)

    async def _close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.sleep(0)
