"""The verbs as commands, for a service (through the client) or a database (through the library)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter
from cyclopts.validators import Number

from earmark import config
from earmark.cli import print_results_and_advice
from earmark.cli.print_results_and_advice import Printed
from earmark.domain.live_or_test_mode import Mode
from earmark.errors import EarmarkError, SetupError

if TYPE_CHECKING:
    from earmark.client import AsyncClient
    from earmark.library import Earmark
    from earmark.schemas.verb_arguments_to_request_body import EventTerms

    Shop = Earmark | AsyncClient

EVENTS_MAX = 10_000
NOT_DECIDED = 3
"""The exit code while a payment is not decided: neither a sale nor a refusal."""


Service = Annotated[str | None, Parameter(help="The URL of a service; EARMARK_KEY is the key. Else EARMARK_URL.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Where:
    """Which service or database, and the format of the output."""

    url: Service = None
    database: Annotated[str | None, Parameter(help="A database, without a service. Else EARMARK_DATABASE_URL.")] = None
    test: Annotated[
        bool,
        Parameter(
            negative="", show_default=False, help="Use the database's test events; for a service, the key decides."
        ),
    ] = False
    as_json: Annotated[bool, Parameter(name="--json", negative="", show_default=False, help="JSON on stdout.")] = False


HERE = Where()
Event = Annotated[str, Parameter(help="The event's id.")]
Booking = Annotated[str, Parameter(help="The booking's id.")]
Key = Annotated[
    str | None, Parameter(name="--idempotency-key", help="The same command with the same key has one effect.")
]
Units = Annotated[
    tuple[str, ...],
    Parameter(name="--pool", negative="", show_default=False, help="Units of a pool: GA=2. May be repeated."),
]
Amount = Annotated[int, Parameter(validator=Number(gte=0), help="Minor units of the event's currency.")]

event = App(name="event", help="Create, list and show events.", help_format="markdown")


@event.command
def create(
    event_id: Event,
    /,
    *,
    name: Annotated[str, Parameter(help="The event's name.")],
    currency: Annotated[str, Parameter(help="ISO 4217, such as EUR.")],
    seat: Annotated[
        tuple[str, ...],
        Parameter(negative="", show_default=False, help="A seat and its price: A1=4500. May be repeated."),
    ] = (),
    rows: Annotated[
        int, Parameter(validator=Number(gte=0), show_default=False, help="How many rows, named A, B, C…")
    ] = 0,
    seats_per_row: Annotated[
        int, Parameter(validator=Number(gte=0), show_default=False, help="Seats in each row.")
    ] = 0,
    price: Annotated[
        int, Parameter(validator=Number(gte=0), show_default=False, help="Price of each seat in the rows.")
    ] = 0,
    pool: Annotated[
        tuple[str, ...],
        Parameter(
            negative="", show_default=False, help="A pool, its capacity and price: GA=100:2500. May be repeated."
        ),
    ] = (),
    per_buyer_max: Annotated[int | None, Parameter(help="How many seats and units one buyer may have.")] = None,
    key: Key = None,
    where: Where = HERE,
) -> None:
    """Create an event and everything it sells. Prices are in minor units."""
    from earmark import Layout

    seats = {seat_id: _number(text) for seat_id, text in map(_pair, seat)}
    pools = {pool_id: _capacity(text) for pool_id, text in map(_pair, pool)}
    layout = Layout(rows=rows, seats_per_row=seats_per_row, price=price) if rows or seats_per_row else None
    terms: EventTerms = {} if per_buyer_max is None else {"per_buyer_max": per_buyer_max}

    async def make(shop: Shop) -> Printed:
        return await shop.create(
            event_id, name=name, currency=currency, seats=seats, pools=pools, layout=layout, key=key, **terms
        )

    _run(where, make)


@event.command(name="list")
def list_(*, where: Where = HERE) -> None:
    """List the events, by id."""

    async def read(shop: Shop) -> Printed:
        found = []
        async for one in shop.events():
            found.append(one)
            if len(found) == EVENTS_MAX:
                break
        return found

    _run(where, read)


@event.command(name="show")
def show_event(event_id: Event, /, *, where: Where = HERE) -> None:
    """Show an event, what is left of it, and its seats."""

    async def read(shop: Shop) -> Printed:
        return print_results_and_advice.EventWithMap(event=await shop.event(event_id), map=await shop.map(event_id))

    _run(where, read)


def hold(
    event_id: Event,
    seats: Annotated[tuple[str, ...], Parameter(help="Seats, by name.", negative="", show_default=False)] = (),
    /,
    *,
    buyer: Annotated[str, Parameter(help="The buyer it is held for, by the shop's own id.")],
    best: Annotated[
        int | None, Parameter(help="How many seats: the best that are free, instead of named ones.")
    ] = None,
    together: Annotated[bool, Parameter(negative="", help="The best seats side by side, or none at all.")] = False,
    pool: Units = (),
    ttl_seconds: Annotated[
        int | None, Parameter(help="How long to hold. Else the default of the event or service.")
    ] = None,
    key: Key = None,
    where: Where = HERE,
) -> None:
    """Set seats and pool units aside for a few minutes.

    All of them, or none.
    """
    pools = {pool_id: _number(text) for pool_id, text in map(_pair, pool)}
    best_available = None if best is None else {"count": best, "together": together}
    _run(
        where,
        lambda shop: shop.hold(
            event_id,
            buyer=buyer,
            seats=seats,
            best_available=best_available,
            pools=pools,
            ttl_seconds=ttl_seconds,
            key=key,
        ),
    )


def show(booking_id: Booking, /, *, where: Where = HERE) -> None:
    """Show a booking."""
    _run(where, lambda shop: shop.booking(booking_id))


def extend(
    booking_id: Booking,
    /,
    *,
    seconds: Annotated[int, Parameter(help="How many seconds more.")] = 120,
    key: Key = None,
    where: Where = HERE,
) -> None:
    """Give a hold more time, within its longest life."""
    _run(where, lambda shop: shop.extend(booking_id, seconds=seconds, key=key))


def pay(
    booking_id: Booking,
    /,
    *,
    method: Annotated[
        str | None,
        Parameter(help="A payment method of the gateway, never a card number; needed unless the total is 0."),
    ] = None,
    gateway: Annotated[str | None, Parameter(help="Which gateway, where there are several.")] = None,
    key: Key = None,
    where: Where = HERE,
) -> int:
    """Pay for a hold at a gateway, which makes it a sale.

    Exits with 3 while it is no sale yet: the buyer must act, or the gateway has not decided.
    """
    result = _run(where, lambda shop: shop.pay(booking_id, method=method, gateway=gateway, key=key))
    return NOT_DECIDED if print_results_and_advice.is_open(result) else 0


def confirm(
    booking_id: Booking,
    /,
    *,
    payment_id: Annotated[str, Parameter(help="Your reference for the money that you took.")],
    payment_method: Annotated[str | None, Parameter(help="How it was taken: cash, say.")] = None,
    key: Key = None,
    where: Where = HERE,
) -> None:
    """Make a hold a sale whose money you have taken yourself."""
    _run(
        where,
        lambda shop: shop.confirm(booking_id, payment_id=payment_id, payment_method=payment_method, key=key),
    )


def release(booking_id: Booking, /, *, key: Key = None, where: Where = HERE) -> None:
    """End a hold, and free its seats."""
    _run(where, lambda shop: shop.release(booking_id, key=key))


def cancel(
    booking_id: Booking,
    seats: Annotated[tuple[str, ...], Parameter(help="Only these seats of it.", negative="", show_default=False)] = (),
    /,
    *,
    pool: Units = (),
    give_back: Annotated[
        str | None, Parameter(name="--refund", help="full, none, or minor units. Else by the event's rules.")
    ] = None,
    reason: Annotated[str | None, Parameter(help="For the journal.")] = None,
    key: Key = None,
    where: Where = HERE,
) -> None:
    """Undo a sale, or some seats and units of it."""
    pools = {pool_id: _number(text) for pool_id, text in map(_pair, pool)}
    back = _back(give_back)

    async def undo(shop: Shop) -> Printed:
        return await shop.cancel(booking_id, refund=back, seats=seats, pools=pools, reason=reason, key=key)

    _run(where, undo)


def refund(
    booking_id: Booking,
    /,
    *,
    amount: Amount,
    reason: Annotated[str | None, Parameter(help="For the journal.")] = None,
    key: Key = None,
    where: Where = HERE,
) -> None:
    """Give money back for a sale, without a change to what was sold."""
    _run(where, lambda shop: shop.refund(booking_id, amount=amount, reason=reason, key=key))


def _run(where: Where, work: Callable[[Shop], Awaitable[Printed]]) -> Printed:
    """Run a verb and print its result; a refusal becomes one line that says what to do."""

    async def run() -> Printed:
        async with _open(where) as shop:
            return await work(shop)

    try:
        result = asyncio.run(run())
    except EarmarkError as error:
        raise SetupError(problem=print_results_and_advice.advise(error)) from error
    print_results_and_advice.show(result, as_json=where.as_json)
    return result


def service_url(url: str | None, database: str | None) -> str | None:
    """The service that a command is for, by its options and EARMARK_URL; None when it is for a database."""
    if url and database:
        raise SetupError(problem="Name a service with --url or a database with --database, not both.")
    return url or (None if database else os.environ.get("EARMARK_URL"))


@asynccontextmanager
async def _open(where: Where) -> AsyncIterator[Shop]:
    if url := service_url(where.url, where.database):
        from earmark.client import AsyncClient

        async with AsyncClient(url, key=os.environ.get("EARMARK_KEY")) as client:
            yield client
        return
    from earmark.library import Earmark
    from earmark.wiring.runtime import open_runtime

    settings = config.read(os.environ, database_url=where.database)
    async with open_runtime(settings) as runtime:
        yield Earmark(runtime.engine, mode=Mode.TEST if where.test else Mode.LIVE, payments=runtime.payments)


def _back(text: str | None) -> Literal["full", "none"] | int | None:
    match text:
        case None:
            return None
        case "full":
            return "full"
        case "none":
            return "none"
        case _:
            return _number(text)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.rpartition("=")
    if not equals or not name:
        raise SetupError(problem=f"{text!r} has no number: write it as NAME=NUMBER.")
    return name, value


def _capacity(text: str) -> tuple[int, int]:
    capacity, colon, price = text.partition(":")
    if not colon:
        raise SetupError(problem=f"{text!r} is not a pool: write it as NAME=CAPACITY:PRICE.")
    return _number(capacity), _number(price)


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise SetupError(problem=f"{text!r} is not a whole number.")
    return int(text)
