"""Which errors of the driver mean that the database did not answer, and what is known after each of them."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, TypeVar

import asyncpg

from earmark.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

SILENT = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.CannotConnectNowError,
)
STOPPED = (
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.IdleInTransactionSessionTimeoutError,
)
SILENT_OR_STOPPED = (*SILENT, *STOPPED)
# The server itself said that it stopped the statement, and so kept nothing of it.
UNWRITTEN = (asyncpg.InsufficientResourcesError, asyncpg.ReadOnlySQLTransactionError, asyncpg.QueryCanceledError)
BROKEN = (
    ConnectionError,
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)


WRITES = re.compile(r"\b(INSERT|UPDATE|DELETE|MERGE|nextval|pg_advisory\w*|pg_try_advisory\w*)\b", re.IGNORECASE)


class ConnectionLost(StoreUnavailable):
    """The connection broke before anything was written, so the same may be tried on another one."""


class ConnectionEnded(Exception):
    """The server had ended the connection before anything was sent on it."""


def was_ended_by_server(error: BaseException) -> bool:
    """Whether nothing was sent, because the server had ended the connection.

    Some milliseconds pass between its last message and the end of the connection, which looks open meanwhile.
    """
    return isinstance(error, asyncpg.InternalClientError) and str(error).startswith("cannot switch to state")


def reason(silence: BaseException) -> str:
    """What is known of why there was no answer."""
    return str(silence) or type(silence).__name__


def is_broken(silence: BaseException) -> bool:
    """Whether the connection failed, as opposed to a value that the driver would not send."""
    return isinstance(silence, BROKEN) and not isinstance(silence, ValueError)


def unavailable(silence: BaseException, *, retry: bool) -> StoreUnavailable:
    """The outage to raise when nothing was kept; with `retry`, a broken connection is one to try again after."""
    lost = retry and is_broken(silence)
    return (ConnectionLost if lost else StoreUnavailable)(because=reason(silence))


def only_reads(query: str) -> bool:
    """Whether a statement changes nothing, so that it may be run twice."""
    return query.startswith("SELECT") and not WRITES.search(query)


async def twice(run: Callable[..., Awaitable[T]], *, within: float | None) -> T:
    """Once more, in what is left of the time, when a connection was lost before anything was written."""
    began = asyncio.get_running_loop().time()
    try:
        return await run(within=within)
    except ConnectionLost:
        left = None if within is None else within - (asyncio.get_running_loop().time() - began)
        if left is not None and left <= 0:
            raise
        return await run(within=left)
