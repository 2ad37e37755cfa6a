"""The database that is measured on, from the outside: fresh houses before a cell, honest counts after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import asyncpg
import msgspec

from earmark.bench.booking.bench.queries import sql
from earmark.errors import SetupError
from earmark.store.postgres.migrate import split_url

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

COUNT_SECONDS = 600
CONFIRMED = ("confirmed",)
LIVE = ("held", "confirmed")


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """What the tables say after a cell."""

    confirmed: int = 0
    held: int = 0
    seats: int = 0
    """Those that belong to a sale."""
    oversold: int = 0
    """Seats sold more than once, and units beyond a pool's capacity."""
    double_charged: int = 0
    lost: int = 0
    """What a client was told it has, and is not there."""


class House:
    """One connection for what is not measured."""

    def __init__(self, connection: Any, url: str) -> None:
        self._connection = connection
        self._sql = sql("house.sql")
        self.url = url

    @classmethod
    async def open(cls, url: str) -> House:
        """On a database that is there."""
        dsn, _ = split_url(url)
        try:
            return cls(await asyncpg.connect(dsn, timeout=10, command_timeout=COUNT_SECONDS), url)
        except (OSError, asyncpg.PostgresError, ValueError) as refused:
            raise SetupError(problem=f"The database to measure on cannot be used: {refused}") from refused

    async def close(self) -> None:
        """Let go of the connection."""
        await self._connection.close()

    async def open_event(self, event_id: str, *, seats: int = 0, units: int = 0) -> None:
        """An event with seats S0, S1, … and, where it has units, the pool GA."""
        async with self._connection.transaction():
            await self._connection.execute(self._sql["open_event"], event_id)
            if seats:
                await self._connection.execute(self._sql["open_seats"], event_id, seats)
            if units:
                await self._connection.execute(self._sql["open_pool"], event_id, units)

    async def tidy(self) -> None:
        """Nobody pays for what another left behind."""
        await self._connection.execute(self._sql["tidy_tables"])

    async def count(
        self, event_ids: Sequence[str], *, confirmed: Sequence[UUID] = (), held: Sequence[UUID] = ()
    ) -> Counted:
        """From the tables, and beside it what the clients believe to have confirmed or at least to hold."""
        fetch, named = self._connection.fetchval, self._sql
        row = await self._connection.fetchrow(named["count_bookings"], event_ids)
        return Counted(
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
        """The server's version, in short."""
        number: int = self._connection.get_server_version().major
        return number

    @property
    def dsn(self) -> str:
        """The address as libpq takes it."""
        return split_url(self.url)[0]

    async def settings(self, names: Sequence[str]) -> dict[str, str]:
        """How the server is set up, by name."""
        rows = await self._connection.fetch(self._sql["read_settings"], names)
        return {row["name"]: row["setting"] for row in rows}

    async def make_log_files(self, count: int) -> None:
        """So many files of the write-ahead log, ready to be used again, as a server has that has run for a day.

        A server that was made a moment ago must make each of them in the middle of what is measured: sixteen megabytes
        of zeros for which every commit waits, and whoever writes most, most often.
        """
        for _ in range(count):
            await self._connection.execute(self._sql["write_to_log"])
            await self._connection.execute(self._sql["next_log_file"])
        await self.checkpoint()

    async def checkpoint(self) -> None:
        """What was written so far weighs on nobody who comes after."""
        await self._connection.execute(self._sql["checkpoint"])

    async def deadlocks(self) -> int:
        """So far, those included that were tried again and that no client saw."""
        cut: int = await self._connection.fetchval(self._sql["count_deadlocks"])
        return cut

    async def empty(self) -> None:
        """As it was when it was made."""
        async with self.unguarded():
            await self._connection.execute(self._sql["empty_tables"])

    def unguarded(self) -> _Unguarded:
        """For a while the schema's guards are not asked. Only a superuser may."""
        return _Unguarded(self._connection, self._sql)

    async def copy(self, table: str, columns: Sequence[str], source: Any) -> None:
        """Rows by COPY, from chunks of text."""
        await self._connection.copy_to_table(table, source=source, columns=columns, timeout=COUNT_SECONDS)


class _Unguarded:
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
    """The address of another database of the same server."""
    parts = urlsplit(url)
    # Spelled out, because urlunsplit drops the slashes of an address without a host.
    address = f"{parts.scheme}://{parts.netloc}/{quote(database, safe='')}"
    return f"{address}?{parts.query}" if parts.query else address
