"""Receives the messages that hand a released lease to a waiter of this process.

The script that releases a lock hands it to the first waiter in the queue. A waiter in the same process is named in the
script's answer; any other gets a message on the channel of its process. Redis counts the subscribers that received it,
so a waiter whose process died is passed over at once.
Messages can be lost: every waiter calls Redis again when the lease it waits for should have run out, and whenever the
connection broke.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from earmark.locks.errors import LocksUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redis.asyncio.connection import ConnectionPool


class Handover(NamedTuple):
    """A lease that was handed to a waiter."""

    fence: int
    at: int
    """By the server's clock, in microseconds."""


class HandoverWaiters:
    """The waiters of this process, shared by its subscriptions to all servers."""

    def __init__(self, *, prefix: str) -> None:
        self.channel = f"{prefix}:wake:{secrets.token_hex(8)}"
        self.on_unknown_owner: Callable[[str], None] = lambda _: None
        """Called with the owner of a lease that was handed over and that no waiter here knows any more."""
        self._waiting: dict[str, asyncio.Future[Handover | None]] = {}
        self._known: set[str] = set()

    def expect(self, owner: str) -> asyncio.Future[Handover | None]:
        """Done when a lease is handed to this owner, or (with None) when the waiter should call Redis again."""
        future = asyncio.get_running_loop().create_future()
        self._known.add(owner)
        self._waiting[owner] = future
        return future

    def mark_granted(self, owner: str) -> None:
        """The owner has its lease: later messages about it are ignored."""
        self._waiting.pop(owner, None)

    def forget(self, owner: str) -> None:
        """The owner waits no longer: a lease that is still handed to it is given back."""
        self._waiting.pop(owner, None)
        self._known.discard(owner)

    def read_message(self, message: bytes) -> None:
        """Read a message of another process that handed a lease to a waiter of this one."""
        owner, fence, at = message.decode().rsplit("|", 2)
        self.deliver(owner, Handover(fence=int(fence), at=int(at)))

    def deliver_all(self, handed: Sequence[Any]) -> None:
        """Leases that a call of this process handed to its own waiters: owner, fence and time of each, in turn."""
        for owner, fence, at in zip(handed[::3], handed[1::3], handed[2::3], strict=True):
            self.deliver(owner.decode(), Handover(fence=fence, at=at))

    def deliver(self, owner: str, handed_over: Handover) -> None:
        """Wake the waiter that this lease was handed to."""
        future = self._waiting.get(owner)
        if future is not None and not future.done():
            future.set_result(handed_over)
        elif owner not in self._known:
            self.on_unknown_owner(owner)

    def close(self) -> None:
        """Fail all waiters: the locks are closed."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(LocksUnavailable(because="the locks were closed"))

    def wake_all(self) -> None:
        """Let all waiters call Redis again: messages may have been lost."""
        for future in self._waiting.values():
            if not future.done():
                future.set_result(None)


class HandoverSubscription:
    """A subscription to one server."""

    def __init__(self, pool: ConnectionPool, handovers: HandoverWaiters, *, timeout: float) -> None:
        self._pool = pool
        self._handovers = handovers
        self._timeout = timeout
        self._confirmed: asyncio.Future[None] | None = None
        self._reader: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether messages arrive now."""
        return self._confirmed is not None and self._confirmed.done() and not self._confirmed.exception()

    @property
    def reader(self) -> object:
        """Which subscription this is: a new one for every connection."""
        return self._reader

    async def subscribe(self) -> None:
        """Return once messages arrive."""
        if self._reader is None or self._reader.done():
            self._confirmed = asyncio.get_running_loop().create_future()
            self._reader = asyncio.get_running_loop().create_task(self._read(self._confirmed))
        confirmed = self._confirmed
        assert confirmed is not None
        await asyncio.wait([confirmed], timeout=self._timeout)
        if not confirmed.done():
            # A connection without an answer is given up; the next waiter makes another.
            if self._confirmed is confirmed:
                await self.close()
            raise LocksUnavailable(because=f"no answer to SUBSCRIBE in {self._timeout:g} s")
        if error := confirmed.exception():
            raise LocksUnavailable(because=str(error)) from error

    async def close(self) -> None:
        """End the subscription. One that was opened meanwhile has a connection of its own and stays."""
        reader, self._reader, self._confirmed = self._reader, None, None
        if reader is not None:
            reader.cancel()
            await asyncio.wait([reader])

    async def _read(self, confirmed: asyncio.Future[None]) -> None:
        """Read until the connection breaks; then all waiters call Redis again, which opens a new one."""
        connection = self._pool.make_connection()
        try:
            await connection.connect()
            await connection.send_command("SUBSCRIBE", self._handovers.channel, check_health=False)
            await connection.read_response()
            confirmed.set_result(None)
            while True:
                _, _, message = await connection.read_response()
                self._handovers.read_message(message)
        except (RedisError, OSError, AttributeError) as error:
            if not confirmed.done():
                confirmed.set_exception(error)
                confirmed.exception()  # Read here, or the event loop would log it where no waiter is left.
        finally:
            if not confirmed.done():
                confirmed.set_exception(RedisConnectionError("the subscription was given up"))
                confirmed.exception()
            if self._confirmed is confirmed:
                self._confirmed = None
            await connection.disconnect(nowait=True)
            self._handovers.wake_all()
