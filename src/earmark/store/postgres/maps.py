"""A whole house, read in one snapshot and in pages: a stadium is never in memory as rows, nor decoded in the loop."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from earmark.engine.ports.store import MAP_HORIZON, SeatMap
from earmark.store.postgres import rows

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping
    from datetime import timedelta

    from earmark.domain.ids import EventId, SeatId
    from earmark.engine.ports.store import SeatOnMap

    Pages = Callable[[], Awaitable[list[Any]]]

PAGE_ROWS = 2000
SEATS_AT_ONCE_MAX = 500
"""More than these are decoded in a thread, so that others are answered meanwhile."""


async def read_map(
    connection: Any,
    event_id: EventId,
    *,
    offset: timedelta,
    sql: Mapping[str, str],
    pooled: bool = False,
    ids: Collection[SeatId] | None = None,
) -> SeatMap:
    """Everything as one moment left it, or just these seats and the pools, and how long the clock leaves it so."""
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        # First, for it is then the moment of the snapshot: a later one would judge the rows by what they were.
        now = await connection.fetchval(sql["begin"], offset)
        if ids is None:
            pages = await (_declare if pooled else _open)(connection, sql["read_map"], event_id)
            seats = await _read_seats(pages)
        else:
            seats = _decode(await connection.fetch(sql["read_some_seats"], event_id, list(ids)))
        pools = await connection.fetch(sql["read_pools"], event_id, now)
        ends_at = await connection.fetchval(sql["next_lapse"], event_id, now, now + MAP_HORIZON)
    return SeatMap(now=now, seats=seats, pools=[rows.pool(row) for row in pools], ends_at=ends_at)


async def _open(connection: Any, statement: str, event_id: EventId) -> Pages:
    cursor = await connection.cursor(statement, event_id)
    return partial(cursor.fetch, PAGE_ROWS)


async def _declare(connection: Any, statement: str, event_id: EventId) -> Pages:
    """A cursor that ends with the transaction, whatever ends it.

    The driver's own has a named statement, which stays on the server's connection when a reader gives up, and whoever
    is given that connection next may want the same name.
    """
    await connection.execute(f"DECLARE seats_of_the_house NO SCROLL CURSOR FOR {statement}", event_id)
    return partial(connection.fetch, f"FETCH {PAGE_ROWS} FROM seats_of_the_house")


async def _read_seats(pages: Pages) -> list[SeatOnMap]:
    seats: list[SeatOnMap] = []
    while page := await pages():
        seats += _decode(page) if len(page) <= SEATS_AT_ONCE_MAX else await asyncio.to_thread(_decode, page)
        if len(page) < PAGE_ROWS:
            break
    return seats


def _decode(page: list[Any]) -> list[SeatOnMap]:
    return [rows.seat_on_map(row) for row in page]
