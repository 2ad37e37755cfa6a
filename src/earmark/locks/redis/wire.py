"""Sends a script to one Redis server, over connections of redis-py that stay open.

redis-py's client takes a connection from its pool, counts, times and wraps retries around every command; that cost
is more than the command's own. Its connections do what is needed (reconnect, authenticate, find the primary that a
Sentinel names, parse with hiredis), so they are used as they are, and the deadline and the one retry are here.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from hiredis import pack_command
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError

from earmark.locks.errors import LocksUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from redis.asyncio.connection import AbstractConnection, ConnectionPool

    from earmark.locks.redis.script import Call, Script


# A connection that is cut while redis-py makes it has no writer any more, and redis-py stumbles over that.
BROKEN = (RedisConnectionError, OSError, AttributeError)


class Wire(Protocol):
    """Carries calls to wherever their keys live."""

    async def send(self, calls: Sequence[Call], *, deadline: float | None = None) -> list[Any]:
        """The answers, in the order of the calls; `LocksUnavailable` when there is none in time.

        The deadline is by the event loop's clock; without one, a call has the wire's own timeout.
        Where calls go to several servers, that of a silent one stands in the place of its answers.
        """
        ...

    async def settle(self) -> None:
        """Return when each call whose caller has gone was answered, or its time is over."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class ServerWire:
    """A wire to one server, or to whichever a Sentinel calls the primary."""

    def __init__(self, pool: ConnectionPool, *, script: Script, timeout: float) -> None:
        self._pool = pool
        self._script = script
        self._timeout = timeout
        self._idle: list[AbstractConnection] = []
        self._closed = False
        self._closing: set[asyncio.Task[None]] = set()
        self._reading_out: set[asyncio.Task[None]] = set()

    async def send(self, calls: Sequence[Call], *, deadline: float | None = None) -> list[Any]:
        """All calls in one script, one round trip."""
        arguments = self._script.frame(calls)
        try:
            answers, repeated = await self._ask(("EVALSHA", *arguments), deadline)
        except NoScriptError:
            arguments[0] = self._script.source
            answers, repeated = await self._ask(("EVAL", *arguments), deadline)
        try:
            return self._script.read(calls, answers, repeated=repeated)
        except LocksUnavailable:
            # Whoever says such a thing is not to be believed in what it says next either.
            await self._hang_up()
            raise

    async def command(self, *arguments: Any, deadline: float | None = None) -> Any:
        """One command within the deadline.

        A server that answers with an error (out of memory, read-only, a full disk) is no more use than a silent one;
        only a script it does not know is the caller's to mend.
        """
        answer, _ = await self._ask(arguments, deadline)
        return answer

    async def settle(self) -> None:
        """Wait for the answers to calls that were given up."""
        if self._reading_out:
            await asyncio.wait(self._reading_out)

    async def close(self) -> None:
        """Disconnect. A connection on which a call still waits for its answer is closed when that has come."""
        self._closed = True
        await self.settle()
        await self._hang_up()
        if self._closing:
            await asyncio.wait(self._closing)

    async def _ask(self, arguments: tuple[Any, ...], deadline: float | None) -> tuple[Any, bool]:
        """The answer, and whether the command was sent again because a connection broke."""
        if deadline is None:
            deadline = asyncio.get_running_loop().time() + self._timeout
        repeated, breaks = False, 0
        while True:
            connection = self._idle.pop() if self._idle else self._pool.make_connection()
            breaks += not connection.is_connected
            try:
                answer = await self._exchange(connection, deadline, arguments)
            except BROKEN as error:
                late = asyncio.get_running_loop().time() >= deadline
                # One that idled may be to a server that has gone and come back, and a new one may break once: all calls
                # can be repeated.
                if late or breaks > 1:
                    because = f"no answer in {self._timeout:g} s" if late else str(error) or type(error).__name__
                    raise LocksUnavailable(because=because) from error
                repeated = True
                continue
            except NoScriptError:
                raise
            except RedisError as error:
                raise LocksUnavailable(because=str(error)) from error
            if repeated:
                self._script.lost()
            return answer, repeated

    async def _hang_up(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.disconnect(nowait=True)

    async def _exchange(self, connection: AbstractConnection, deadline: float, arguments: tuple[Any, ...]) -> Any:
        # A timer that cuts the connection costs less than a timeout around the read, and nests in the caller's own.
        timer = _Timer(deadline, lambda: self._cut(connection))
        try:
            if not connection.is_connected:
                await connection.connect()
                if timer.rang:  # Then there was nothing to cut yet.
                    raise RedisConnectionError("connected too late")  # noqa: TRY301
            # Packed by hiredis: the connection would do it in Python, at a third of the whole cost.
            await connection.send_packed_command(pack_command(arguments), check_health=False)
        except BaseException:
            timer.cancel()
            await connection.disconnect(nowait=True)
            raise
        return await self._answer(connection, timer)

    async def _answer(self, connection: AbstractConnection, timer: _Timer) -> Any:
        """What the server says to a command that was sent."""
        over, usable = True, False
        try:
            answer = await connection.read_response(disconnect_on_error=False)
            usable = True
        except asyncio.CancelledError:
            # The server may be about to carry it out. Nobody knows before it has answered.
            over = False
            self._keep(self._reading_out, self._read_out(connection, timer))
            raise
        except BROKEN:
            raise
        except RedisError:
            usable = True
            raise
        finally:
            if over:
                await self._let_go(connection, timer, usable=usable)
        return answer

    async def _read_out(self, connection: AbstractConnection, timer: _Timer) -> None:
        usable = False
        try:
            await connection.read_response(disconnect_on_error=False)
            usable = True
        except (*BROKEN, RedisError):
            pass
        finally:
            await self._let_go(connection, timer, usable=usable)

    async def _let_go(self, connection: AbstractConnection, timer: _Timer, *, usable: bool) -> None:
        timer.cancel()
        if usable and not self._closed:
            self._idle.append(connection)
        else:
            await connection.disconnect(nowait=True)

    def _cut(self, connection: AbstractConnection) -> None:
        self._keep(self._closing, connection.disconnect(nowait=True))

    def _keep(self, tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)


class _Timer:
    """Acts one turn of the event loop after its time.

    When this process was kept busy past the deadline, the answer and the timer are found together: then the answer,
    which came in time, is read first.
    """

    __slots__ = ("_act", "_handle", "_loop", "rang")

    def __init__(self, at: float, act: Callable[[], None]) -> None:
        self.rang = False
        self._act = act
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.Handle = self._loop.call_at(at, self._ring)

    def cancel(self) -> None:
        self._handle.cancel()

    def _ring(self) -> None:
        self.rang = True
        self._handle = self._loop.call_soon(self._act)
