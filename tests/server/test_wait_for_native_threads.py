"""A process ends only when threads that are not Python's own have ended, also those that garbage still refers to."""

from __future__ import annotations

import _thread
import asyncio
import gc
from typing import TYPE_CHECKING

import pytest

from earmark.server import wait_for_native_threads

if TYPE_CHECKING:
    from collections.abc import Iterator


class Foreign:
    """A thread that `threading` knows nothing of, as a server in another language has them."""

    def __init__(self) -> None:
        self._may_end = _thread.allocate_lock()
        self._may_end.acquire()
        self.runs = True
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        self._may_end.acquire()
        self.runs = False

    def end(self) -> None:
        """Let it go."""
        self._may_end.release()


class Request:
    """Keeps a thread until nothing refers to it; and it refers to itself, by way of an error's frames."""

    def __init__(self, thread: Foreign) -> None:
        self._thread = thread
        self._error = self

    def __del__(self) -> None:
        self._thread.end()


@pytest.fixture
def _no_collector() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def test_a_thread_that_began_inside_is_waited_for() -> None:
    """A program that ended before it would be aborted."""
    async with wait_for_native_threads.threads_ended():
        thread = Foreign()
        asyncio.get_running_loop().call_later(0.05, thread.end)
    assert not thread.runs


@pytest.mark.usefixtures("_no_collector")
async def test_a_thread_that_garbage_refers_to_ends_too() -> None:
    """A refused request may still be in memory, and no collection is due when a server stops."""
    async with wait_for_native_threads.threads_ended():
        thread = Foreign()
        Request(thread)
    assert not thread.runs


@pytest.mark.usefixtures("_no_collector")
async def test_control_without_a_collection_the_process_ends_while_the_thread_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though it waits as long as it may."""
    with monkeypatch.context() as without:
        without.setattr(wait_for_native_threads, "SECONDS_MAX", 0.1)
        without.setattr("earmark.server.wait_for_native_threads.gc.collect", lambda: 0)
        async with wait_for_native_threads.threads_ended():
            thread = Foreign()
            Request(thread)
    assert thread.runs
    gc.collect()
