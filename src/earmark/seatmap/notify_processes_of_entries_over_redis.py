"""Notifications between processes over Redis: the newest entry number of each event, and nothing else.

A process with a relay publishes numbers (`publish_numbers`); a process with followers passes them to its hub
(`receive_numbers`). A message that is lost, late or wrong only delays: a number makes the hub read on from the store,
and the hub counts entries every few seconds anyway. While Redis does not answer, it counts as often as without Redis.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from redis.exceptions import RedisError

from earmark.domain.id_types import EventId
from earmark.observability import logs

if TYPE_CHECKING:
    from redis.asyncio.connection import ConnectionPool

    from earmark.seatmap.broadcast_journal_entries_in_process import EntryFeed

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
    """What receives the notifications: the hub."""

    def on_number(self, event_id: EventId, number: int) -> None:
        """An entry of this event has this number."""
        ...

    def on_connection(self, *, connected: bool) -> None:
        """Whether notifications arrive from now on."""
        ...


async def publish_numbers(feed: EntryFeed, pool: ConnectionPool) -> None:
    """Publish the numbers that the relay of this process gives, until cancelled."""
    async with feed.subscribe() as follower:
        async for first in follower:
            newest = {first.entry.event_id: first.sequence}
            for one in follower.take_all():
                newest[one.entry.event_id] = one.sequence
            try:
                async with asyncio.timeout(ANSWER_SECONDS_MAX):
                    await _publish(pool, _encode(newest))
            except BROKEN as silence:
                log.debug("redis_notifications", outcome="unavailable", because=str(silence) or type(silence).__name__)


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


async def receive_numbers(listener: Listener, pool: ConnectionPool) -> None:
    """Receive the numbers that other processes publish, over one connection that is reopened when it breaks."""
    failures = 0
    while True:
        began = time.monotonic()
        try:
            await _receive(listener, pool)
        except BROKEN as silence:
            because = str(silence) or type(silence).__name__
            (log.warning if failures == 0 else log.debug)("redis_notifications", outcome="unavailable", because=because)
        finally:
            listener.on_connection(connected=False)
        failures = failures + 1 if time.monotonic() - began < BACKOFF_SECONDS_MAX else 1
        longest = min(BACKOFF_SECONDS * 2.0**failures, BACKOFF_SECONDS_MAX)
        await asyncio.sleep(random.uniform(BACKOFF_SECONDS, longest))  # noqa: S311 (jitter, not a secret)


async def _receive(listener: Listener, pool: ConnectionPool) -> None:
    connection: Any = pool.make_connection()  # type: ignore[no-untyped-call]
    pinging: asyncio.Task[None] | None = None
    try:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            await connection.connect()
            await connection.send_command("SUBSCRIBE", CHANNEL, check_health=False)
            await connection.read_response()
        listener.on_connection(connected=True)
        received_at = [time.monotonic()]

        async def ping() -> None:
            """Close a connection that has received nothing for two pings."""
            while time.monotonic() - received_at[0] < 2 * PING_SECONDS:
                with contextlib.suppress(*BROKEN):
                    await connection.send_command("PING", check_health=False)
                await asyncio.sleep(PING_SECONDS)
            await connection.disconnect(nowait=True)

        pinging = asyncio.create_task(ping())
        while True:
            kind, *_, message = await connection.read_response()
            received_at[0] = time.monotonic()
            if kind == b"message":
                with contextlib.suppress(msgspec.MsgspecError):
                    for event_id, number in _decode(message).items():
                        listener.on_number(EventId(event_id), number)
    finally:
        if pinging is not None:
            pinging.cancel()
            await asyncio.wait([pinging])
        await connection.disconnect(nowait=True)
