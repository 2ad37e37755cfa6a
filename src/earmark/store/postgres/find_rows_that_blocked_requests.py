"""After a wait for a lock has failed: the rows that are locked, and the requests' names for them.

A request names seats, pools and a buyer, or a booking. What it locks may be more: a lapsed booking that a seat points
to, or the pools of a booking. So a locked row is returned with every row through which a request led to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from earmark.store.postgres import convert_rows_and_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from earmark.domain.booking import Booking
    from earmark.domain.id_types import BookingId, PoolRef, SeatRef, TotalRef
    from earmark.domain.seat import SeatSeen
    from earmark.engine.commands_and_results import Row


@dataclass(kw_only=True, slots=True)
class WantedLocks:
    """The rows that a transaction asked to lock, and what it knew of bookings and seats by then."""

    bookings: set[BookingId] = field(default_factory=set)
    totals: set[TotalRef] = field(default_factory=set)
    pools: set[PoolRef] = field(default_factory=set)
    seats: set[SeatRef] = field(default_factory=set)
    known_bookings: dict[BookingId, Booking] = field(default_factory=dict)
    known_seats: dict[SeatRef, SeatSeen] = field(default_factory=dict)


async def find_locked(connection: Any, wanted: WantedLocks, *, sql: Mapping[str, str]) -> dict[Row, Row]:
    """The locked ones among these rows and all that leads to them, each with the locked row that it leads to."""
    totals, pools, seats = sorted(wanted.totals), sorted(wanted.pools), sorted(wanted.seats)
    if not (wanted.bookings or totals or pools or seats):
        return {}
    found = await connection.fetchrow(
        sql["find_locked"],
        list(wanted.bookings),
        *convert_rows_and_values.columns(totals, width=2),
        *convert_rows_and_values.columns(pools, width=2),
        *convert_rows_and_values.columns(seats, width=2),
    )
    busy: set[Row] = {("bookings", booking_id) for booking_id in found["bookings"]}
    busy |= {("totals", totals[n - 1]) for n in found["totals"]}
    busy |= {("pools", pools[n - 1]) for n in found["pools"]}
    busy |= {("seats", seats[n - 1]) for n in found["seats"]}
    leads = {row: row for row in busy}
    for booking in wanted.known_bookings.values():
        if locked := next((row for row in _rows_of(booking) if row in busy), None):
            leads.setdefault(("bookings", booking.id), locked)
    for ref, seat in wanted.known_seats.items():
        if locked := leads.get(("bookings", seat.pointer)):
            leads.setdefault(("seats", ref), locked)
    return leads


def _rows_of(booking: Booking) -> Iterable[Row]:
    """What a change of this booking locks beside itself."""
    pools = (("pools", ref) for ref in booking.pool_deltas())
    return (*pools, ("totals", booking.total_ref), *(("seats", ref) for ref in booking.seat_refs))
