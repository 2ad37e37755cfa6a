"""The command that explains a booking from its journal, or which booking has a seat and why."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Annotated, TypeVar
from uuid import UUID

import msgspec
from cyclopts import Parameter
from rich.console import Console

from earmark import config
from earmark.cli.commands.migrate_and_verify import Database
from earmark.cli.explain import booking as booking_text
from earmark.cli.explain import over_http
from earmark.cli.explain import seat as seat_text
from earmark.cli.run_on_service_or_database import Service, service_url
from earmark.domain.bookable_event import Event
from earmark.domain.booking import Booking
from earmark.domain.id_types import BookingId, EventId, SeatId
from earmark.engine.ports.store import BookingFilter, Store
from earmark.errors import BookingUnknown, EventUnknown, SeatUnknown, SetupError
from earmark.wiring import open_and_maintain_databases

T = TypeVar("T")
Explained = (
    booking_text.BookingExplanation
    | seat_text.SeatExplanation
    | over_http.ServiceBookingExplanation
    | over_http.ServiceSeatExplanation
)

PAGE_SIZE = 500
PAGES_MAX = 1000


def explain(
    booking: Annotated[str, Parameter(help="The booking's id; or a seat, as `event/seat`.")],
    /,
    *,
    url: Service = None,
    database: Database = None,
    as_json: Annotated[
        bool, Parameter(name="--json", negative="", help="The rows, or the service's responses, as JSON.")
    ] = False,
) -> None:
    """Explain a booking from its journal, or who has a seat and why.

    For a booking: everything from the first hold to what will happen next, with its payments. For a seat, named as
    `event/seat`: which booking has it and why, since when and until when, and which bookings had it before. A service
    returns the same, except for what its API does not show; the last line says what is missing.
    """
    service = service_url(url, database)
    explained = asyncio.run(_ask(service, booking) if service else _look(database, booking))
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(explained), indent=2).decode() + "\n")
        return
    out = Console(highlight=False, soft_wrap=True)
    for line in _lines(explained):
        out.print(line, markup=False)


def _lines(explained: Explained) -> Iterator[str]:
    match explained:
        case booking_text.BookingExplanation():
            return booking_text.lines(explained)
        case seat_text.SeatExplanation():
            return seat_text.lines(explained)
        case _:
            return over_http.lines(explained)


async def _look(database: str | None, what: str) -> Explained:
    """Explain from the rows of a database."""
    url = config.read(os.environ, database_url=database).database_url
    event_id, slash, seat_id = what.partition("/")
    if slash:
        return await _within(url, partial(_read_seat, event_id=EventId(event_id), seat_id=SeatId(seat_id)))
    return await _within(url, partial(_read, booking_id=_booking_id(what)))


async def _ask(url: str, what: str) -> Explained:
    """Explain from the responses of a service."""
    from earmark.client import AsyncClient

    event_id, slash, seat_id = what.partition("/")
    booking_id = None if slash else _booking_id(what)
    key = os.environ.get("EARMARK_KEY")
    async with AsyncClient(url, key=key) as client:
        if booking_id is not None:
            return await over_http.read(client, booking_id, key=key)
        return await over_http.read_seat(client, event_id=EventId(event_id), seat_id=SeatId(seat_id), key=key)


def _booking_id(text: str) -> BookingId:
    try:
        return BookingId(UUID(text))
    except ValueError as odd:
        problem = f"{text!r} is not a booking's id, which looks like {UUID(int=0)}. A seat is named as event/seat."
        raise SetupError(problem=problem) from odd


async def _within(url: str, read: Callable[[Store], Awaitable[T]]) -> T:
    store = await open_and_maintain_databases.open_store(url)
    try:
        await store.check()
        return await read(store)
    finally:
        await store.close()


async def _read(store: Store, *, booking_id: BookingId) -> booking_text.BookingExplanation:
    now, booking = await store.read_booking(booking_id)
    if booking is None:
        raise BookingUnknown(booking_id=str(booking_id))
    return booking_text.BookingExplanation(
        now=now,
        booking=booking,
        history=await store.read_history(booking_id),
        payments=await store.list_payments(booking_id),
    )


async def _read_seat(store: Store, *, event_id: EventId, seat_id: SeatId) -> seat_text.SeatExplanation:
    event = await store.read_event(event_id)
    if event is None:
        raise EventUnknown(event_id=event_id)
    seen = await store.read_map(event_id, seat_id=seat_id)
    if not seen.seats:
        raise SeatUnknown(seats=[seat_id])
    (seat,) = seen.seats
    owner = await _read(store, booking_id=seat.owner_id) if seat.owner_id else None
    had = [booking async for booking in _who_had(store, event, seat_id)]
    return seat_text.SeatExplanation(now=seen.now, seat=seat, owner=owner, had=had)


async def _who_had(store: Store, event: Event, seat_id: SeatId) -> AsyncIterator[Booking]:
    """Every booking of the event that lists the seat, oldest first. It needs no index: the command is rarely used."""
    after: BookingId | None = None
    for _ in range(PAGES_MAX):
        wanted = BookingFilter(mode=event.mode, event_id=event.id, after=after, limit=PAGE_SIZE)
        _, page = await store.list_bookings(wanted)
        for booking in page:
            if any(line.id == seat_id for line in booking.lines.seats):
                yield booking
        if len(page) < PAGE_SIZE:
            return
        after = page[-1].id
