"""The seat map of an event, read in one snapshot and in pages.

So the rows of a stadium are never in memory all at once, and large pages are decoded in a thread.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from earmark.engine.ports.store import MAP_HORIZON, SeatMap
from earmark.store.postgres import convert_rows_and_values

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping
    from datetime import timedelta

    from earmark.domain.id_types import EventId, SeatId
    from earmark.engine.ports.store import SeatOnMap

    Pages = Callable[[], Awaitable[list[Any]]]

PAGE_ROWS = 2000
SEATS_AT_ONCE_MAX = 500
"""More than these are decoded in a thread, so that the event loop serves other requests meanwhile."""


async def read_map(
    connection: Any,
    event_id: EventId,
    *,
    offset: timedelta,
    sql: Mapping[str, str],
    pooled: bool = False,
    ids: Collection[SeatId] | None = None,
) -> SeatMap:
    """The seats (all, or just these) and the pools in one snapshot, and when the next hold lapses."""
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        # First, so that it is the moment of the snapshot: a later one would judge rows that have changed since.
        now = await connection.fetchval(sql["begin"], offset)
        if ids is None:
            pages = await (_declare if pooled else _open)(connection, sql["read_map"], event_id)
            seats = await _read_seats(pages)
        else:
            seats = _decode(await connection.fetch(sql["read_some_seats"], event_id, list(ids)))
        pools = await connection.fetch(sql["read_pools"], event_id, now)
        ends_at = await connection.fetchval(sql["next_lapse"], event_id, now, now + MAP_HORIZON)
    return SeatMap(now=now, seats=seats, pools=[convert_rows_and_values.pool(row) for row in pools], ends_at=ends_at)


async def _open(connection: Any, statement: str, event_id: EventId) -> Pages:
    cursor = await connection.cursor(statement, event_id)
    return partial(cursor.fetch, PAGE_ROWS)


async def _declare(connection: Any, statement: str, event_id: EventId) -> Pages:
    """A cursor that ends with the transaction, whatever ends it.

    The driver's own has a named statement, which stays on the server's connection when a reader gives up; the next
    client of that connection may use the same name.
    """
    await connection.execute(f"DECLARE seats_of_the_event NO SCROLL CURSOR FOR {statement}", event_id)
    return partial(connection.fetch, f"FETCH {PAGE_ROWS} FROM seats_of_the_event")


async def _read_seats(pages: Pages) -> list[SeatOnMap]:
    seats: list[SeatOnMap] = []
    while page := await pages():
        seats += _decode(page) if len(page) <= SEATS_AT_ONCE_MAX else await asyncio.to_thread(_decode, page)
        if len(page) < PAGE_ROWS:
            break
    return seats


def _decode(page: list[Any]) -> list[SeatOnMap]:
    return [convert_rows_and_values.seat_on_map(row) for row in page]
