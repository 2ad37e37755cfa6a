"""The command that runs another one while holding a lock, so that two machines do not run it at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Console

from earmark import config
from earmark.errors import SetupError
from earmark.locks import LockBusy, LockLost, LocksUnavailable
from earmark.wiring import redis_locks_and_admission as redis_parts

LIFE_SECONDS_MAX = 86_400.0
BUSY = 75
"""`EX_TEMPFAIL` of `sysexits.h`: a later try may succeed."""
END_SECONDS_MAX = 10.0


def run(
    key: Annotated[str, Parameter(help="The lock that the command needs.")],
    /,
    *command: Annotated[str, Parameter(help="The command, and its arguments; after `--`.", allow_leading_hyphen=True)],
    redis: Annotated[str | None, Parameter(help="Where the locks are. Else EARMARK_LOCKS_URL.")] = None,
    prefix: Annotated[str, Parameter(help="What the names of the locks begin with in Redis.")] = "earmark",
    wait: Annotated[
        float | None,
        Parameter(validator=Number(gte=0), help="Seconds to wait for it. Else EARMARK_LOCK_WAIT_SECONDS."),
    ] = None,
    ttl: Annotated[
        float | None,
        Parameter(validator=Number(gt=0), help="Seconds it lives if not renewed. Else EARMARK_LOCK_TTL_SECONDS."),
    ] = None,
) -> int:
    """Run a command while holding a lock, which is renewed until the command ends.

    Exits as the command does; with 75 when another process has the lock, and when the lock was lost while the command
    ran. A command whose lock is lost gets SIGTERM.
    """
    if not command:
        raise SetupError(problem="Say what to run: earmark locks run job:nightly -- backup --all")
    settings = config.read(os.environ, locks_url=redis, lock_wait_seconds=wait, lock_ttl_seconds=ttl)
    return asyncio.run(_run(settings, key, command, prefix=prefix))


async def _run(settings: config.Settings, key: str, command: tuple[str, ...], *, prefix: str) -> int:
    opened = redis_parts.open_locks(settings, prefix=prefix)
    err = Console(stderr=True, highlight=False, soft_wrap=True)
    ended: int | None = None
    try:
        async with opened.lock(key, wait=settings.lock_wait_seconds, renew=True, life=LIFE_SECONDS_MAX):
            ended = await _command(command)
    except LockBusy:
        err.print(f"Another process has the lock on {key}.", markup=False)
        return BUSY
    except LockLost:
        then = "was stopped" if ended is None else f"continued without it and ended with exit code {ended}"
        err.print(f"The lock on {key} was lost: the command {then}.", markup=False)
        return BUSY
    except LocksUnavailable as outage:
        raise SetupError(problem=f"The lock server cannot be reached: {outage.because}") from outage
    finally:
        await opened.close()
    return ended


async def _command(command: tuple[str, ...]) -> int:
    try:
        process = await asyncio.create_subprocess_exec(*command)
    except OSError as missing:
        raise SetupError(problem=f"{command[0]} cannot be run: {missing.strerror or missing}.") from missing
    try:
        return await process.wait()
    except BaseException:
        # The lock is lost, or this process has to stop: stop the command too.
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), timeout=END_SECONDS_MAX)
        raise
