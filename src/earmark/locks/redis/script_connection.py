"""Sends the calls of a Lua script to one Redis server, over connections of redis-py that stay open.

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
from earmark.shared_deadline_timer import DeadlineTimer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from redis.asyncio.connection import AbstractConnection, ConnectionPool

    from earmark.locks.redis.encode_and_decode_script_calls import LuaScript, ScriptCall


# A connection that is cut while redis-py makes it has no writer any more, and redis-py stumbles over that.
BROKEN = (RedisConnectionError, OSError, AttributeError)


class ScriptConnection(Protocol):
    """Sends calls to the servers that have their keys."""

    async def send(self, calls: Sequence[ScriptCall], *, deadline: float | None = None) -> list[Any]:
        """The answers, in the order of the calls; `LocksUnavailable` when there is none in time.

        The deadline is by the event loop's clock; without one, the connection's own timeout applies.
        Where calls go to several servers, the `LocksUnavailable` of a silent one stands in the place of its answers.
        """
        ...

    async def wait_for_abandoned_calls(self) -> None:
        """Return when each call whose caller was cancelled is answered or timed out."""
        ...

    async def close(self) -> None:
        """Wait for abandoned calls, then close the connections."""
        ...


class ServerConnection:
    """Connections to one server, or to the one that a Sentinel names as the primary."""

    def __init__(self, pool: ConnectionPool, *, script: LuaScript, timeout: float) -> None:
        self._pool = pool
        self._script = script
        self._timeout = timeout
        self._idle: list[AbstractConnection] = []
        self._deadlines: DeadlineTimer[_AnswerDeadline] = DeadlineTimer()
        self._closed = False
        self._disconnecting: set[asyncio.Task[None]] = set()
        self._abandoned_reads: set[asyncio.Task[None]] = set()

    async def send(self, calls: Sequence[ScriptCall], *, deadline: float | None = None) -> list[Any]:
        """All calls in one script, one round trip."""
        arguments = self._script.frame(calls)
        try:
            answers, repeated = await self._execute(("EVALSHA", *arguments), deadline)
        except NoScriptError:
            arguments[0] = self._script.source
            answers, repeated = await self._execute(("EVAL", *arguments), deadline)
        try:
            return self._script.read(calls, answers, repeated=repeated)
        except LocksUnavailable:
            # After an answer that the script cannot give, no further answer on these connections is trusted.
            await self._disconnect_idle()
            raise

    async def command(self, *arguments: Any, deadline: float | None = None) -> Any:
        """One command within the deadline.

        A server that answers with an error (out of memory, read-only, a full disk) counts as unavailable; only for a
        script that it does not know is the error passed on, so that the caller sends the source.
        """
        answer, _ = await self._execute(arguments, deadline)
        return answer

    async def wait_for_abandoned_calls(self) -> None:
        """Wait for the answers to calls whose callers were cancelled."""
        if self._abandoned_reads:
            await asyncio.wait(self._abandoned_reads)

    async def close(self) -> None:
        """Disconnect. A connection on which a call still waits for its answer is closed when that has come."""
        self._closed = True
        await self.wait_for_abandoned_calls()
        await self._disconnect_idle()
        if self._disconnecting:
            await asyncio.wait(self._disconnecting)

    async def _execute(self, arguments: tuple[Any, ...], deadline: float | None) -> tuple[Any, bool]:
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
                # An idle connection may be to a server that was restarted, and a new one may break once: all calls can
                # be repeated.
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
                self._script.note_lost_answer()
            return answer, repeated

    async def _disconnect_idle(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.disconnect(nowait=True)

    async def _exchange(self, connection: AbstractConnection, deadline: float, arguments: tuple[Any, ...]) -> Any:
        # A timer that disconnects costs less than a timeout around the read, and nests in the caller's own.
        timer = _AnswerDeadline(deadline, lambda: self._disconnect_soon(connection))
        self._deadlines.watch(timer)
        try:
            if not connection.is_connected:
                await connection.connect()
                if timer.has_passed:  # There was no connection to disconnect yet.
                    raise RedisConnectionError("connected too late")  # noqa: TRY301
            # Packed by hiredis: the connection would do it in Python, at a third of the whole cost.
            await connection.send_packed_command(pack_command(arguments), check_health=False)
        except BaseException:
            timer.cancel()
            await connection.disconnect(nowait=True)
            raise
        return await self._answer(connection, timer)

    async def _answer(self, connection: AbstractConnection, timer: _AnswerDeadline) -> Any:
        """Read the answer to a command that was sent."""
        over, usable = True, False
        try:
            answer = await connection.read_response(disconnect_on_error=False)
            usable = True
        except asyncio.CancelledError:
            # The server may carry it out all the same: that is known when it has answered.
            over = False
            self._keep_task(self._abandoned_reads, self._read_abandoned(connection, timer))
            raise
        except BROKEN:
            raise
        except RedisError:
            usable = True
            raise
        finally:
            if over:
                await self._give_back(connection, timer, usable=usable)
        return answer

    async def _read_abandoned(self, connection: AbstractConnection, timer: _AnswerDeadline) -> None:
        usable = False
        try:
            await connection.read_response(disconnect_on_error=False)
            usable = True
        except (*BROKEN, RedisError):
            pass
        finally:
            await self._give_back(connection, timer, usable=usable)

    async def _give_back(self, connection: AbstractConnection, timer: _AnswerDeadline, *, usable: bool) -> None:
        timer.cancel()
        if usable and not self._closed:
            self._idle.append(connection)
        else:
            await connection.disconnect(nowait=True)

    def _disconnect_soon(self, connection: AbstractConnection) -> None:
        self._keep_task(self._disconnecting, connection.disconnect(nowait=True))

    def _keep_task(self, tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)


class _AnswerDeadline:
    """When the answer to one command is given up. It acts one turn of the event loop after its time.

    When this process was kept busy past the deadline, the answer and the timer are found together: then the answer,
    which came in time, is read first.
    """

    __slots__ = ("_act", "_handle", "deadline", "has_passed", "is_over")

    def __init__(self, deadline: float, act: Callable[[], None]) -> None:
        self.deadline = deadline
        self.has_passed = False
        self._act = act
        self._handle: asyncio.Handle | None = None
        self.is_over = False
        """Whether the answer was read, or the command failed."""

    def expire(self) -> None:
        """Act, unless the answer is read in this turn of the event loop."""
        self.has_passed = True
        self._handle = asyncio.get_running_loop().call_soon(self._act)

    def cancel(self) -> None:
        """The answer was read, or the command failed."""
        self.is_over = True
        if self._handle is not None:
            self._handle.cancel()
