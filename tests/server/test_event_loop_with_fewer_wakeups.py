"""A server's event loop is woken once for many calls of threads, and misses none of them."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from earmark.server import event_loop_with_fewer_wakeups

THREADS = 4
CALLS = 5_000
BOUND = 60.0


async def call_from_threads() -> int:
    """Threads schedule calls, now in bursts and now while the loop sleeps; how many it has made in the end."""
    loop, made, all_made = asyncio.get_running_loop(), 0, asyncio.Event()

    def call() -> None:
        nonlocal made
        made += 1
        if made == THREADS * CALLS:
            all_made.set()

    def work() -> None:
        pause = threading.Event()
        for number in range(CALLS):
            loop.call_soon_threadsafe(call)
            if number % 50 == 0:
                pause.wait(0.0005)

    with ThreadPoolExecutor(THREADS) as threads:
        for _ in range(THREADS):
            threads.submit(work)
        await asyncio.wait_for(all_made.wait(), BOUND)
    return made


def test_no_call_of_a_thread_is_lost() -> None:
    """A call that woke nothing is made all the same."""
    assert event_loop_with_fewer_wakeups.run(call_from_threads()) == THREADS * CALLS


def test_a_sleeping_loop_is_woken_each_time() -> None:
    """There is nothing else that would wake it."""

    async def sleeping() -> int:
        loop, heard = asyncio.get_running_loop(), 0
        for _ in range(200):
            called = asyncio.Event()
            threading.Timer(0.001, loop.call_soon_threadsafe, [called.set]).start()
            await asyncio.wait_for(called.wait(), BOUND)
            heard += 1
        return heard

    assert event_loop_with_fewer_wakeups.run(sleeping()) == 200


class Counting:
    """The socket that wakes the loop, and how many bytes were sent to it."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self.sent = 0

    def send(self, data: bytes) -> int:
        """As the socket does."""
        self.sent += len(data)
        return int(self._socket.send(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


@pytest.mark.parametrize(
    "kind, bytes_sent", [(event_loop_with_fewer_wakeups.ServerEventLoop, 1), (asyncio.SelectorEventLoop, 100)]
)
def test_a_burst_of_calls_sends_one_byte(kind: type[asyncio.SelectorEventLoop], bytes_sent: int) -> None:
    """And asyncio's own loop, the control, one for each call."""

    async def burst() -> int:
        loop: Any = asyncio.get_running_loop()
        counting = loop._csock = Counting(loop._csock)
        for _ in range(100):
            loop.call_soon_threadsafe(lambda: None)
        await asyncio.sleep(0)
        loop._csock = counting._socket
        return counting.sent

    with asyncio.Runner(loop_factory=kind) as runner:
        assert runner.run(burst()) == bytes_sent
