"""Ends a transaction: commits it or rolls it back, and abandons a connection that did not answer.

`store.py` notices when a connection broke, and raises `OutcomeUnknown` if a commit had been sent on it. This module
raises that only for a commit which PostgreSQL reports with a warning.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import asyncpg

from earmark.errors import OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from earmark.store.postgres.connections import PostgresConnections

ROLLBACK_SECONDS = 1.0


async def commit(scope: Any, connection: Any, *, connections: PostgresConnections) -> None:
    """A connection whose commit was not answered is never used again."""
    messages: list[Any] = []

    def keep(_: object, message: Any) -> None:
        messages.append(message)

    connection.add_log_listener(keep)
    try:
        await scope.commit()
    except BaseException:
        connections.abandon(connection)
        raise
    finally:
        with contextlib.suppress(asyncpg.InterfaceError):  # it was cut
            connection.remove_log_listener(keep)
    check_warnings([message for message in messages if message.severity_en == "WARNING"])


def check_warnings(warnings: Sequence[Any]) -> None:
    """A commit whose wait for a synchronous standby was cancelled is reported as a success, with a warning.

    Then only one machine has it. The text of a warning depends on the server's language, so any warning makes the
    outcome unknown, and the journal is read.
    """
    if warnings:
        raise OutcomeUnknown


async def roll_back(scope: Any, connection: Any, *, connections: PostgresConnections) -> None:
    """Within a second, or the connection is closed, which rolls back too: it may be what failed.

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
