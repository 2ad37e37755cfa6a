"""News between processes, over Redis: which event has got which number, and nothing else.

The herald stands beside a relay and tells; the ear tells the hub of its process what it hears. A message that is lost,
late or wrong only delays: a number makes the hub read on from the store, and entries are counted now and then whatever
was heard. While Redis is away, they are counted as often as without one.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from redis.exceptions import RedisError

from earmark.domain.ids import EventId
from earmark.observability import logs

if TYPE_CHECKING:
    from redis.asyncio.connection import ConnectionPool

    from earmark.seatmap.entry_feed import EntryFeed

CHANNEL = "earmark:news"
ANSWER_SECONDS_MAX = 2.0
PING_SECONDS = 5.0
BACKOFF_SECONDS = 0.1
BACKOFF_SECONDS_MAX = 5.0
BROKEN = (RedisError, OSError, TimeoutError, AttributeError)
"""What a connection fails with; redis-py raises the last of them when it is closed under a reader."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, int]).decode
log = logs.get()


class Listener(Protocol):
    """Who wants to know."""

    def promise(self, event_id: EventId, number: int) -> None:
        """This event has an entry with this number."""
        ...

    def hear(self, *, hearing: bool) -> None:
        """Whether news arrives from now on."""
        ...


async def herald(feed: EntryFeed, pool: ConnectionPool) -> None:
    """Tell the other processes what the relay of this one has numbered, until cancelled."""
    async with feed.subscribe() as follower:
        async for first in follower:
            newest = {first.entry.event_id: first.sequence}
            for one in follower.taken():
                newest[one.entry.event_id] = one.sequence
            try:
                async with asyncio.timeout(ANSWER_SECONDS_MAX):
                    await _publish(pool, _encode(newest))
            except BROKEN as silence:
                log.debug("herald", outcome="unavailable", because=str(silence) or type(silence).__name__)


async def _publish(pool: ConnectionPool, message: bytes) -> None:
    connection: Any = await pool.get_connection()  # type: ignore[no-untyped-call]
    answered = False
    try:
        await connection.send_command("PUBLISH", CHANNEL, message, check_health=False)
        await connection.read_response()
        answered = True
    finally:
        if not answered:
            await connection.disconnect(nowait=True)
        await pool.release(connection)


async def listen(listener: Listener, pool: ConnectionPool) -> None:
    """Hear what other processes tell, over one connection, made again whenever it breaks, until cancelled."""
    failures = 0
    while True:
        began = time.monotonic()
        try:
            await _hear(listener, pool)
        except BROKEN as silence:
            because = str(silence) or type(silence).__name__
            (log.warning if failures == 0 else log.debug)("ear", outcome="unavailable", because=because)
        finally:
            listener.hear(hearing=False)
        failures = failures + 1 if time.monotonic() - began < BACKOFF_SECONDS_MAX else 1
        longest = min(BACKOFF_SECONDS * 2.0**failures, BACKOFF_SECONDS_MAX)
        await asyncio.sleep(random.uniform(BACKOFF_SECONDS, longest))  # noqa: S311 (jitter, not a secret)


async def _hear(listener: Listener, pool: ConnectionPool) -> None:
    connection: Any = pool.make_connection()  # type: ignore[no-untyped-call]
    pinging: asyncio.Task[None] | None = None
    try:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            await connection.connect()
            await connection.send_command("SUBSCRIBE", CHANNEL, check_health=False)
            await connection.read_response()
        listener.hear(hearing=True)
        heard = [time.monotonic()]

        async def ping() -> None:
            """A connection that is dead without a word is given up."""
            while time.monotonic() - heard[0] < 2 * PING_SECONDS:
                with contextlib.suppress(*BROKEN):
                    await connection.send_command("PING", check_health=False)
                await asyncio.sleep(PING_SECONDS)
            await connection.disconnect(nowait=True)

        pinging = asyncio.create_task(ping())
        while True:
            kind, *_, message = await connection.read_response()
            heard[0] = time.monotonic()
            if kind == b"message":
                with contextlib.suppress(msgspec.MsgspecError):
                    for event_id, number in _decode(message).items():
                        listener.promise(EventId(event_id), number)
    finally:
        if pinging is not None:
            pinging.cancel()
            await asyncio.wait([pinging])
        await connection.disconnect(nowait=True)
