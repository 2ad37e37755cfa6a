"""What the modules of the tables beside bookings need of a store, the same for PostgreSQL and SQLite.

A statement has the same name, parameters and columns in both dialects. A store takes and gives Python's own values
(UUIDs, aware datetimes, lists) and translates them where its database has no such type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime

    from earmark.domain.idempotency_record import IdempotencyKey
    from earmark.engine.ports.store import TransactionStart

T = TypeVar("T")

SECONDS_MAX = 10.0
"""How long one transaction or read of these tables may take."""


class StatementTransaction(Protocol):
    """One transaction of the store, which runs named statements."""

    wrote: bool
    """Whether there is something to commit; `execute` sets it when a row changed."""

    async def begin(self, keys: Sequence[IdempotencyKey]) -> TransactionStart:
        """The moment of the transaction."""
        ...

    async def fetch(self, name: str, *arguments: Any) -> list[Any]:
        """The rows that a statement finds or returns."""
        ...

    async def execute(self, name: str, *arguments: Any) -> int:
        """How many rows a statement wrote."""
        ...


class StatementStore(Protocol):
    """A store that runs named statements."""

    async def transact(self, work: Callable[[Any], Awaitable[T]], *, within: float) -> T:
        """Run the work in one transaction."""
        ...

    async def read_rows(self, name: str, *arguments: Any) -> list[Any]:
        """The rows that one statement finds, outside of a transaction."""
        ...

    async def now(self) -> datetime:
        """The moment by the clock that decides."""
        ...


def from_row(row: Any, kind: type[T], **decoded: Any) -> T:
    """The value that a row stands for, with some columns decoded by the caller."""
    return msgspec.convert(dict(row) | decoded, kind, strict=False)


async def execute_alone(store: StatementStore, name: str, *arguments: object) -> int:
    """Run a named statement in a transaction of its own. Returns how many rows it wrote."""

    async def work(transaction: StatementTransaction) -> int:
        return await transaction.execute(name, *arguments)

    return await store.transact(work, within=SECONDS_MAX)
