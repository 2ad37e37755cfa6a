"""A command under a lock: one at a time, and with its own exit code."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pytest

from earmark.cli import main
from earmark.locks import Locks
from earmark.testservers import Valkey, start_valkey

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

SAY = (sys.executable, "-c")


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    with start_valkey() as server:
        yield server


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["locks", "run", *arguments])
    return int(ended.value.code or 0)


async def so(fact: Callable[[], Awaitable[bool]]) -> None:
    """Wait for the fact."""
    for _ in range(3000):
        if await fact():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("never so")


async def _waits(locks: Locks) -> bool:
    found = await locks.find("job:nightly")
    return bool(found and found.waiters)


def test_a_command_ends_as_it_does_alone(valkey: Valkey, capfd: pytest.CaptureFixture[str]) -> None:
    """Its output and its exit code, options that begin with a dash included; and the lock is free afterwards."""
    told = ("--redis", valkey.url, "job:nightly", "--", *SAY, "print('made'); raise SystemExit(3)")
    assert run(*told) == 3
    assert capfd.readouterr().out == "made\n"
    assert run(*told) == 3


async def test_the_second_command_is_refused_or_waits(valkey: Valkey, capfd: pytest.CaptureFixture[str]) -> None:
    """Fails at once by default; with a wait, it is next."""
    async with Locks.from_url(valkey.url) as locks:
        async with locks.lock("job:nightly", ttl=60):
            assert await asyncio.to_thread(run, "job:nightly", "--redis", valkey.url, "--", *SAY, "print('no')") == 75
            out, err = capfd.readouterr()
            assert (out, err) == ("", "Another process has the lock on job:nightly.\n")
            waiting = asyncio.create_task(
                asyncio.to_thread(run, "job:nightly", "--redis", valkey.url, "--wait", "60", "--", *SAY, "print('yes')")
            )
            await so(lambda: _waits(locks))
        assert await waiting == 0
    assert capfd.readouterr().out == "yes\n"


async def test_a_command_whose_lock_is_taken_away_is_stopped(valkey: Valkey, capfd: pytest.CaptureFixture[str]) -> None:
    """Two must not run at once, so the command that has lost the lock is ended."""
    sleep = "import time; time.sleep(600)"
    running = asyncio.create_task(
        asyncio.to_thread(run, "job:nightly", "--redis", valkey.url, "--ttl", "0.5", "--", *SAY, sleep)
    )
    async with Locks.from_url(valkey.url) as locks:
        await so(lambda: locks.evict("job:nightly"))
    assert await running == 75
    assert "was lost" in capfd.readouterr().err


def test_a_command_that_ends_without_its_lock_reports_it(valkey: Valkey, capfd: pytest.CaptureFixture[str]) -> None:
    """The command ended before the next renewal could stop it: its exit code alone would hide the loss."""
    take_away = (
        "import sys; from earmark.locks import Locks\n"
        "with Locks.from_url(sys.argv[1]) as locks: assert locks.sync.evict('job:nightly')\n"
        "print('made')"
    )
    told = ("job:nightly", "--redis", valkey.url, "--ttl", "600", "--", *SAY, take_away, valkey.url)
    assert run(*told) == 75
    out, err = capfd.readouterr()
    assert out == "made\n"
    assert "The lock on job:nightly was lost: the command continued without it and ended with exit code 0." in err


def test_a_command_that_cannot_run_is_one_line(valkey: Valkey, capfd: pytest.CaptureFixture[str]) -> None:
    """No command, no such command, no Redis."""
    assert run("job:nightly", "--redis", valkey.url) == 1
    assert "Say what to run" in capfd.readouterr().err
    assert run("job:nightly", "--redis", valkey.url, "--", "no-such-command") == 1
    assert "cannot be run" in capfd.readouterr().err
    assert run("job:nightly", "--redis", "redis://127.0.0.1:1", "--", *SAY, "") == 1
    assert "cannot be reached" in capfd.readouterr().err
