"""How a transaction on a connection ends, and when its end is not to be believed."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import asyncpg

from earmark.errors import OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from earmark.store.postgres.connections import Connections

ROLLBACK_SECONDS = 1.0


async def commit(scope: Any, connection: Any, *, connections: Connections) -> None:
    """A connection whose commit was not answered is never used again."""
    heard: list[Any] = []

    def hear(_: object, message: Any) -> None:
        heard.append(message)

    connection.add_log_listener(hear)
    try:
        await scope.commit()
    except BaseException:
        connections.abandon(connection)
        raise
    finally:
        with contextlib.suppress(asyncpg.InterfaceError):  # it was cut
            connection.remove_log_listener(hear)
    check_warnings([message for message in heard if message.severity_en == "WARNING"])


def check_warnings(warnings: Sequence[Any]) -> None:
    """A commit whose wait for a synchronous standby was cancelled is reported as a success, with a warning.

    Then one machine alone has it. The text of a warning depends on the server's language, so any warning leaves the
    outcome unknown; it is looked up.
    """
    if warnings:
        raise OutcomeUnknown


async def roll_back(scope: Any, connection: Any, *, connections: Connections) -> None:
    """Within a second, or the connection is cut, which rolls back too: it may be the very thing that broke.

    Waited for as a task: Python before 3.11.3 confuses a deadline inside a deadline that has just passed.
    """
    rolling = asyncio.ensure_future(scope.rollback())
    rolling.add_done_callback(lambda rolled: rolled.cancelled() or rolled.exception())
    try:
        await asyncio.wait({rolling}, timeout=ROLLBACK_SECONDS)
    finally:
        if not rolling.done() or rolling.cancelled() or rolling.exception():
            connections.abandon(connection)
            rolling.cancel()
