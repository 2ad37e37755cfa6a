"""Where this process is told that a lease was handed to it.

Whoever releases a lock hands it to the first in line inside the same script. A waiter in the same process is named in
the script's answer; any other is told on the channel of its process. Redis counts who heard that, so a waiter whose
process died is passed over there and then.
Messages can be lost: every waiter asks again when the lease it waits for should have run out, and whenever the
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


class HandedOver(NamedTuple):
    """A lease that was handed to a waiter."""

    fence: int
    at: int
    """By the server's clock, in microseconds."""


class Post:
    """Who in this process waits for what, shared by the inboxes of all servers it listens to."""

    def __init__(self, *, prefix: str) -> None:
        self.channel = f"{prefix}:wake:{secrets.token_hex(8)}"
        self.return_to_sender: Callable[[str], None] = lambda _: None
        """Told of a lease that was handed to somebody who is not here any more."""
        self._waiting: dict[str, asyncio.Future[HandedOver | None]] = {}
        self._known: set[str] = set()

    def expect(self, owner: str) -> asyncio.Future[HandedOver | None]:
        """Done when a lease is handed to this owner, or (with None) when it had better ask again."""
        future = asyncio.get_running_loop().create_future()
        self._known.add(owner)
        self._waiting[owner] = future
        return future

    def settle(self, owner: str) -> None:
        """The owner has its lease: later messages about it say nothing new."""
        self._waiting.pop(owner, None)

    def forget(self, owner: str) -> None:
        """The owner is gone: a lease that still reaches it is given back."""
        self._waiting.pop(owner, None)
        self._known.discard(owner)

    def read(self, message: bytes) -> None:
        """A message from another process: it handed a lease to one of ours."""
        owner, fence, at = message.decode().rsplit("|", 2)
        self.deliver(owner, HandedOver(fence=int(fence), at=int(at)))

    def deliver_all(self, handed: Sequence[Any]) -> None:
        """Leases that one of our own calls handed to others of ours: owner, fence and time of each, in turn."""
        for owner, fence, at in zip(handed[::3], handed[1::3], handed[2::3], strict=True):
            self.deliver(owner.decode(), HandedOver(fence=fence, at=at))

    def deliver(self, owner: str, handed_over: HandedOver) -> None:
        """A lease was handed to this owner."""
        future = self._waiting.get(owner)
        if future is not None and not future.done():
            future.set_result(handed_over)
        elif owner not in self._known:
            self.return_to_sender(owner)

    def close(self) -> None:
        """Send everybody home."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(LocksUnavailable(because="the locks were closed"))

    def rouse(self) -> None:
        """Let everybody ask again: messages may have been lost."""
        for future in self._waiting.values():
            if not future.done():
                future.set_result(None)


class Inbox:
    """A subscription to one server."""

    def __init__(self, pool: ConnectionPool, post: Post, *, timeout: float) -> None:
        self._pool = pool
        self._post = post
        self._timeout = timeout
        self._listening: asyncio.Future[None] | None = None
        self._reader: asyncio.Task[None] | None = None

    @property
    def open(self) -> bool:
        """Whether messages arrive now."""
        return self._listening is not None and self._listening.done() and not self._listening.exception()

    @property
    def reader(self) -> object:
        """Which subscription this is: a new one for every connection."""
        return self._reader

    async def listen(self) -> None:
        """Return once messages arrive."""
        if self._reader is None or self._reader.done():
            self._listening = asyncio.get_running_loop().create_future()
            self._reader = asyncio.get_running_loop().create_task(self._read(self._listening))
        listening = self._listening
        assert listening is not None
        await asyncio.wait([listening], timeout=self._timeout)
        if not listening.done():
            # A connection that nobody answers on is given up; the next who waits makes another.
            if self._listening is listening:
                await self.close()
            raise LocksUnavailable(because=f"no answer to SUBSCRIBE in {self._timeout:g} s")
        if error := listening.exception():
            raise LocksUnavailable(because=str(error)) from error

    async def close(self) -> None:
        """Stop listening. Who listens again meanwhile has a connection of its own, which this does not touch."""
        reader, self._reader, self._listening = self._reader, None, None
        if reader is not None:
            reader.cancel()
            await asyncio.wait([reader])

    async def _read(self, listening: asyncio.Future[None]) -> None:
        """Read until the connection breaks; then everybody asks again, which opens a new one."""
        connection = self._pool.make_connection()
        try:
            await connection.connect()
            await connection.send_command("SUBSCRIBE", self._post.channel, check_health=False)
            await connection.read_response()
            listening.set_result(None)
            while True:
                _, _, message = await connection.read_response()
                self._post.read(message)
        except (RedisError, OSError, AttributeError) as error:
            if not listening.done():
                listening.set_exception(error)
                listening.exception()  # Seen, even if nobody is left to ask.
        finally:
            if not listening.done():
                listening.set_exception(RedisConnectionError("the subscription was given up"))
                listening.exception()
            if self._listening is listening:
                self._listening = None
            await connection.disconnect(nowait=True)
            self._post.rouse()
