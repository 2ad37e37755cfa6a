"""Backends that were left in the middle of a call: cutting a connection does not end them.

A commit that waits for a synchronous standby notices neither that its client has gone nor a `statement_timeout`. With
a new connection for each of them, PostgreSQL would fill with backends whose clients have gone. So they count as in use
until PostgreSQL says that they have ended, and while many are left no further transaction is begun. Nothing is done to
the wait itself: a cancelled wait would show others what one machine alone has.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from earmark.store import queries

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ASK_SECONDS = 1.0
"""How long an answer of PostgreSQL about them is believed."""
ASK_OFTEN_SECONDS = 0.1
"""The same, while so many are left that no transaction can be begun."""
ANSWER_SECONDS_MAX = 2.0


class Abandoned(msgspec.Struct):
    """The process ids of those backends, as far as they are not known to have ended."""

    pids: set[int] = msgspec.field(default_factory=set)
    hanging: int = 0
    """How many of them waited for a synchronous standby when PostgreSQL was asked last."""
    asked_at: float = float("-inf")
    lock: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)

    def __len__(self) -> int:
        return len(self.pids)

    async def recount(self, fetch: Callable[..., Awaitable[list[Any]]], *, believed: float = ASK_SECONDS) -> int:
        """Ask which of them are still at work, unless that was done lately; how many of these wait for a standby."""
        loop = asyncio.get_running_loop()
        async with self.lock:
            if self.pids and loop.time() - self.asked_at >= believed:
                # Also when there is no answer: a server that hangs is not asked by every request in turn.
                self.asked_at = loop.time()
                async with asyncio.timeout(ANSWER_SECONDS_MAX):
                    asked = list(self.pids)
                    found = await fetch(queries.sql("postgres")["still_at_work"], asked)
                self.pids -= set(asked) - {row["pid"] for row in found}
                self.hanging = sum(row["hanging"] for row in found)
                self.asked_at = loop.time()
            return self.hanging
