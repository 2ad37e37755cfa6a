"""The command that tells what became of a booking, or whose a seat is and why."""

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
from earmark.cli.commands.bookings import Service, service_url
from earmark.cli.commands.database import Database
from earmark.cli.explain import booking as story
from earmark.cli.explain import over_http
from earmark.cli.explain import seat as seat_story
from earmark.domain.booking import Booking
from earmark.domain.event import Event
from earmark.domain.ids import BookingId, EventId, SeatId
from earmark.engine.ports.store import BookingFilter, Store
from earmark.errors import BookingUnknown, EventUnknown, SeatUnknown, SetupError
from earmark.wiring import databases

T = TypeVar("T")
Told = story.Story | seat_story.SeatStory | over_http.ServiceStory | over_http.ServiceSeatStory

PAGE_SIZE = 500
PAGES_MAX = 1000


def explain(
    booking: Annotated[str, Parameter(help="The booking's id; or a seat, as `event/seat`.")],
    /,
    *,
    url: Service = None,
    database: Database = None,
    as_json: Annotated[
        bool, Parameter(name="--json", negative="", help="The rows, or the service's answers, instead of the words.")
    ] = False,
) -> None:
    """Tell the whole story of a booking with its money, from the first hold to what is still to come.

    Of a seat, named as `event/seat`: whose it is and why, since when and until when, and who had it before. A service
    tells the same, but for what its API does not answer; the last line says what that is.
    """
    service = service_url(url, database)
    told = asyncio.run(_ask(service, booking) if service else _look(database, booking))
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(told), indent=2).decode() + "\n")
        return
    out = Console(highlight=False, soft_wrap=True)
    for line in _lines(told):
        out.print(line, markup=False)


def _lines(told: Told) -> Iterator[str]:
    match told:
        case story.Story():
            return story.lines(told)
        case seat_story.SeatStory():
            return seat_story.lines(told)
        case _:
            return over_http.lines(told)


async def _look(database: str | None, what: str) -> Told:
    """In a database."""
    url = config.read(os.environ, database_url=database).database_url
    event_id, slash, seat_id = what.partition("/")
    if slash:
        return await _within(url, partial(_read_seat, event_id=EventId(event_id), seat_id=SeatId(seat_id)))
    return await _within(url, partial(_read, booking_id=_booking_id(what)))


async def _ask(url: str, what: str) -> Told:
    """At a service."""
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
        problem = f"{text!r} is no booking's id: they look like {UUID(int=0)}. A seat is named as event/seat."
        raise SetupError(problem=problem) from odd


async def _within(url: str, read: Callable[[Store], Awaitable[T]]) -> T:
    store = await databases.open_store(url)
    try:
        await store.check()
        return await read(store)
    finally:
        await store.close()


async def _read(store: Store, *, booking_id: BookingId) -> story.Story:
    now, booking = await store.read_booking(booking_id)
    if booking is None:
        raise BookingUnknown(booking_id=str(booking_id))
    return story.Story(
        now=now,
        booking=booking,
        history=await store.read_history(booking_id),
        payments=await store.list_payments(booking_id),
    )


async def _read_seat(store: Store, *, event_id: EventId, seat_id: SeatId) -> seat_story.SeatStory:
    event = await store.read_event(event_id)
    if event is None:
        raise EventUnknown(event_id=event_id)
    seen = await store.read_map(event_id, seat_id=seat_id)
    if not seen.seats:
        raise SeatUnknown(seats=[seat_id])
    (seat,) = seen.seats
    owner = await _read(store, booking_id=seat.owner_id) if seat.owner_id else None
    had = [booking async for booking in _who_had(store, event, seat_id)]
    return seat_story.SeatStory(now=seen.now, seat=seat, owner=owner, had=had)


async def _who_had(store: Store, event: Event, seat_id: SeatId) -> AsyncIterator[Booking]:
    """Every booking of the event that lists the seat, oldest first. There is no index for it: people ask rarely."""
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
