"""Backends that were left in the middle of a call: closing a connection does not end them.

A commit that waits for a synchronous standby notices neither that its client has gone nor a `statement_timeout`. With
a new connection for each of them, PostgreSQL would fill with backends whose clients have gone. So they count as in use
until PostgreSQL says that they have ended, and while many are left no further transaction is begun. Nothing is done to
the wait itself: a cancelled wait would show others what one machine alone has.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from earmark.store import load_named_sql

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ASK_SECONDS = 1.0
"""How long an answer of PostgreSQL about them is used."""
ASK_OFTEN_SECONDS = 0.1
"""The same, while so many are left that no transaction can be begun."""
ANSWER_SECONDS_MAX = 2.0


class AbandonedBackends(msgspec.Struct):
    """The process ids of those backends, as far as they are not known to have ended."""

    pids: dict[int, float] = msgspec.field(default_factory=dict)
    """Each with the event loop's time at which it was left: the number may since belong to a newer backend."""
    server: object = None
    """The server whose backends they are."""
    hanging: int = 0
    """How many of them waited for a synchronous standby when PostgreSQL was asked last."""
    asked_at: float = float("-inf")
    lock: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)

    def __len__(self) -> int:
        return len(self.pids)

    def add(self, pid: int, *, server: object) -> None:
        """Count a backend that was left in a call. One of a server that is no longer connected to does not count."""
        if server == self.server:
            self.pids[pid] = asyncio.get_running_loop().time()

    def note_server(self, server: object) -> None:
        """Note the server that connections go to now, and forget the backends of another one."""
        if server != self.server:
            self.pids.clear()
            self.hanging = 0
            self.server = server

    async def recount(self, fetch: Callable[..., Awaitable[list[Any]]], *, valid_seconds: float = ASK_SECONDS) -> int:
        """Read which of them still run, unless that was read recently; returns how many of these wait for a standby."""
        loop = asyncio.get_running_loop()
        async with self.lock:
            if self.pids and loop.time() - self.asked_at >= valid_seconds:
                # Also when there is no answer: a server that hangs is not asked again by every request.
                self.asked_at = now = loop.time()
                async with asyncio.timeout(ANSWER_SECONDS_MAX):
                    asked = self.pids.copy()
                    ages = [now - left_at for left_at in asked.values()]
                    sql = load_named_sql.sql("postgres", "server_and_connection_checks.sql")
                    found = await fetch(sql["still_running"], list(asked), ages)
                hanging = {row["pid"]: row["hanging"] for row in found}
                for pid, left_at in asked.items():
                    # One that was left anew meanwhile was not asked about.
                    if pid not in hanging and self.pids.get(pid) == left_at:
                        del self.pids[pid]
                self.hanging = sum(hangs for pid, hangs in hanging.items() if pid in self.pids)
                self.asked_at = loop.time()
            return self.hanging
