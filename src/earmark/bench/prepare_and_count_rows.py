"""The database of a measurement: new events before it, counts of its rows after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import asyncpg
import msgspec

from earmark.bench.named_sql import named_sql
from earmark.errors import SetupError
from earmark.store.postgres.migrate import split_url

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

COUNT_SECONDS = 600
CONFIRMED = ("confirmed",)
LIVE = ("held", "confirmed")


class CountedRows(msgspec.Struct, frozen=True, kw_only=True):
    """The rows after a measurement."""

    confirmed: int = 0
    held: int = 0
    seats: int = 0
    """Seats that belong to a sale."""
    oversold: int = 0
    """Seats sold more than once, and units beyond a pool's capacity."""
    double_charged: int = 0
    lost: int = 0
    """Bookings that were confirmed to a client and are not in the tables."""


class BenchDatabase:
    """One connection for all that is not measured."""

    def __init__(self, connection: Any, url: str) -> None:
        self._connection = connection
        self._sql = named_sql("earmark.bench", "prepare_and_count_rows")
        self.url = url

    @classmethod
    async def open(cls, url: str) -> BenchDatabase:
        """Connect to an existing database."""
        dsn, _ = split_url(url)
        try:
            return cls(await asyncpg.connect(dsn, timeout=10, command_timeout=COUNT_SECONDS), url)
        except (OSError, asyncpg.PostgresError, ValueError) as refused:
            raise SetupError(problem=f"The database to measure on cannot be used: {refused}") from refused

    async def close(self) -> None:
        """Close the connection to the server under test."""
        await self._connection.close()

    async def open_event(self, event_id: str, *, seats: int = 0, units: int = 0) -> None:
        """Create an event with seats S0, S1, … and, where it has units, the pool GA."""
        async with self._connection.transaction():
            await self._connection.execute(self._sql["open_event"], event_id)
            if seats:
                await self._connection.execute(self._sql["open_seats"], event_id, seats)
            if units:
                await self._connection.execute(self._sql["open_pool"], event_id, units)

    async def tidy(self) -> None:
        """Vacuum and analyse, so that no contender is slowed by the rows of another."""
        await self._connection.execute(self._sql["tidy_tables"])

    async def count(
        self, event_ids: Sequence[str], *, confirmed: Sequence[UUID] = (), held: Sequence[UUID] = ()
    ) -> CountedRows:
        """Count the rows, and compare them with the bookings that clients were told they have."""
        fetch, named = self._connection.fetchval, self._sql
        row = await self._connection.fetchrow(named["count_bookings"], event_ids)
        return CountedRows(
            confirmed=row["confirmed"],
            held=row["held"],
            seats=await fetch(named["count_seats"], event_ids),
            oversold=await fetch(named["count_oversold_seats"], event_ids)
            + await fetch(named["count_oversold_units"], event_ids),
            double_charged=await fetch(named["count_double_charged"], event_ids),
            lost=await fetch(named["count_lost"], confirmed, CONFIRMED) + await fetch(named["count_lost"], held, LIVE),
        )

    @property
    def version(self) -> str:
        """The server's name and version."""
        return f"PostgreSQL {self._connection.get_settings().server_version.split()[0]}"

    @property
    def major(self) -> int:
        """The server's major version."""
        number: int = self._connection.get_server_version().major
        return number

    @property
    def dsn(self) -> str:
        """The address as libpq takes it."""
        return split_url(self.url)[0]

    async def settings(self, names: Sequence[str]) -> dict[str, str]:
        """Settings of the server, by name."""
        rows = await self._connection.fetch(self._sql["read_settings"], names)
        return {row["name"]: row["setting"] for row in rows}

    async def make_log_files(self, count: int) -> None:
        """Create files of the write-ahead log that can be used again, as a server has that has run for a day.

        A new server creates each of them during a measurement: sixteen megabytes of zeros, for which every commit
        waits, most often those of the contender that writes most.
        """
        for _ in range(count):
            await self._connection.execute(self._sql["write_to_log"])
            await self._connection.execute(self._sql["next_log_file"])
        await self.checkpoint()

    async def checkpoint(self) -> None:
        """Write all changed pages to the disk, so that later measurements do not wait for that."""
        await self._connection.execute(self._sql["checkpoint"])

    async def deadlocks(self) -> int:
        """The deadlocks so far, including those that were retried and that no client saw."""
        count: int = await self._connection.fetchval(self._sql["count_deadlocks"])
        return count

    async def empty(self) -> None:
        """Remove all rows of the last measurement."""
        async with self.guards_off():
            await self._connection.execute(self._sql["empty_tables"])

    def guards_off(self) -> _GuardsOff:
        """A context without the guards of the schema. Only a superuser may enter it."""
        return _GuardsOff(self._connection, self._sql)

    async def copy(self, table: str, columns: Sequence[str], source: Any) -> None:
        """Insert rows by COPY, from chunks of text."""
        await self._connection.copy_to_table(table, source=source, columns=columns, timeout=COUNT_SECONDS)


class _GuardsOff:
    def __init__(self, connection: Any, named: dict[str, str]) -> None:
        self._connection = connection
        self._sql = named

    async def __aenter__(self) -> None:
        try:
            await self._connection.execute(self._sql["as_replica"])
        except asyncpg.InsufficientPrivilegeError as refused:
            raise SetupError(
                problem="Growth loads bookings of the past, which takes a superuser of the database: "
                "leave that workload out, or leave --database out."
            ) from refused

    async def __aexit__(self, *_: object) -> None:
        await self._connection.execute(self._sql["as_origin"])


def sibling(url: str, database: str) -> str:
    """The URL of another database of the same server."""
    parts = urlsplit(url)
    # Spelled out, because urlunsplit drops the slashes of an address without a host.
    address = f"{parts.scheme}://{parts.netloc}/{quote(database, safe='')}"
    return f"{address}?{parts.query}" if parts.query else address
