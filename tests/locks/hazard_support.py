"""What the hazards are played with: a resource that checks the fence, a server that is stopped, a look inside Redis."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.locks.conformance.support import BOUND
from tests.locks.topologies import ask

from earmark.locks import LockBusy, LocksUnavailable
from earmark.locks.redis.encode_and_decode_script_calls import RedisKeys

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from earmark.locks import Locks
    from earmark.testservers import Valkey

KEY = "account:42"
RETURN_SECONDS_MAX = 3.0
"""Ten times the deadline that these tests give to a call, so that a busy machine fails none of them."""
TIMEOUT = 0.3


class Account:
    """A balance in a database file that any process can open: what the lock is meant to protect.

    A write without a fence is accepted. One with a fence is refused when a greater one was there before,
    be it to read or to write: a reader who was overtaken must not write what it made of what it read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with closing(self._connect()) as database:
            database.execute("CREATE TABLE IF NOT EXISTS accounts (balance INTEGER NOT NULL, fence INTEGER NOT NULL)")
            database.execute("INSERT INTO accounts SELECT 100, 0 WHERE NOT EXISTS (SELECT 1 FROM accounts)")

    def read(self, fence: int | None = None) -> int:
        """The balance. With a fence: from now on every smaller one is refused."""
        with closing(self._connect()) as database:
            if fence is not None:
                seen = database.execute("UPDATE accounts SET fence = ? WHERE fence <= ?", (fence, fence))
                assert seen.rowcount == 1, "a reader was overtaken before it began"
            return int(database.execute("SELECT balance FROM accounts").fetchone()[0])

    def write(self, balance: int, fence: int | None = None) -> bool:
        """False if the fence was too small, and then nothing was written."""
        with closing(self._connect()) as database:
            if fence is None:
                return database.execute("UPDATE accounts SET balance = ?", (balance,)).rowcount == 1
            written = database.execute(
                "UPDATE accounts SET balance = ?, fence = ? WHERE fence <= ?", (balance, fence, fence)
            )
            return written.rowcount == 1

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, isolation_level=None, timeout=BOUND)


class Inside:
    """What one Redis has of one key, seen past the toolkit."""

    def __init__(self, server: Valkey, *, prefix: str = "earmark", key: str = KEY) -> None:
        self._server = server
        self.lease_name, self.queue_name = RedisKeys(prefix).pair(key)

    def lease(self) -> str | None:
        """The holder and its fence, as they are stored; None when there is no lease, or one that has ended."""
        found: str | None = ask(self._server, "GET", self.lease_name)
        return found if found and self.ttl_seconds() >= 0 else None

    def ttl_seconds(self) -> float:
        """Until the lease runs out by the server's clock. One with a queue contains its own end."""
        stored: str = ask(self._server, "GET", self.lease_name) or ""
        _, *numbers = stored.split("|")
        if len(numbers) == 2:
            seconds, micros = ask(self._server, "TIME")
            return int(numbers[1]) / 1e6 - int(seconds) - int(micros) / 1e6
        return int(ask(self._server, "PTTL", self.lease_name)) / 1000

    def queue(self) -> list[str]:
        """The tokens of the waiters, in the order of the queue."""
        return [entry.partition("@")[0] for entry in self._entries()]

    def waiting_holders(self) -> list[str]:
        """The same by the names that people gave them."""
        return [entry.partition("@")[2].partition("|")[0] for entry in self._entries()]

    def is_empty(self) -> bool:
        """Whether the key is free and has no queue."""
        return self.lease() is None and self.queue() == []

    def _entries(self) -> list[str]:
        entries: list[str] = ask(self._server, "LRANGE", self.queue_name, "0", "-1")
        return entries

    async def until_empty(self) -> None:
        """Until the key is free and has no queue."""
        await until(self.is_empty)

    async def until_waiting(self, count: int) -> None:
        """Until so many callers are queued."""
        await until(lambda: len(self.queue()) == count)


def pause(pid: int) -> None:
    """Stop a process by SIGSTOP, and return when it has stopped."""
    os.kill(pid, signal.SIGSTOP)
    status = Path(f"/proc/{pid}/stat")
    if status.exists():
        wait(lambda: status.read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T")


def resume(pid: int) -> None:
    """Let a stopped process go on."""
    os.kill(pid, signal.SIGCONT)


@contextmanager
def stopped(server: Valkey) -> Iterator[None]:
    """A server that is there, whose connections stand, and that does not say a word."""
    pause(server.pid)
    try:
        yield
    finally:
        resume(server.pid)


def wait(fact: Callable[[], bool], *, seconds: float = BOUND) -> None:
    """Wait for a fact, in a thread."""
    deadline = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < deadline, "the fact never came"
        time.sleep(0.005)


async def until(fact: Callable[[], bool], *, seconds: float = BOUND) -> None:
    """Wait for a fact, in a task."""
    deadline = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < deadline, "the fact never came"
        await asyncio.sleep(0.005)


async def until_served(locks: Locks, key: str = KEY) -> None:
    """Until a lock is to be had again, by asking for it as a program would."""
    await until_true(lambda: _is_served(locks, key))


async def until_true(fact: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a fact that has to be asked for."""
    deadline = time.monotonic() + BOUND
    while not await fact():
        assert time.monotonic() < deadline, "the fact never came"
        await asyncio.sleep(0.02)


async def _is_served(locks: Locks, key: str) -> bool:
    try:
        # Should the answer be lost, the lease without a holder keeps other callers out only briefly.
        async with locks.lock(key, ttl=1):
            return True
    except (LocksUnavailable, LockBusy):
        return False


async def outcome(call: Awaitable[Any]) -> Any:
    """What a call answers or raises. One that does not return in time is cancelled, and says so."""
    try:
        async with asyncio.timeout(RETURN_SECONDS_MAX):
            return await call
    except TimeoutError:
        return f"did not return within {RETURN_SECONDS_MAX:g} s"
    except Exception as error:  # noqa: BLE001 -- the error is the answer here
        return error
