"""The commands that create, list and show events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from earmark.cli import print_results_and_advice
from earmark.cli.booking_command_arguments import Event, Key, name_and_text, whole_number
from earmark.cli.run_on_service_or_database import HERE, Where, run
from earmark.errors import SetupError

if TYPE_CHECKING:
    from earmark.cli.print_results_and_advice import Printed
    from earmark.cli.run_on_service_or_database import Shop
    from earmark.schemas.verb_arguments_to_request_body import EventTerms

EVENTS_MAX = 10_000

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

    seats = {seat_id: whole_number(text) for seat_id, text in map(name_and_text, seat)}
    pools = {pool_id: _capacity(text) for pool_id, text in map(name_and_text, pool)}
    layout = Layout(rows=rows, seats_per_row=seats_per_row, price=price) if rows or seats_per_row else None
    terms: EventTerms = {} if per_buyer_max is None else {"per_buyer_max": per_buyer_max}

    async def make(shop: Shop) -> Printed:
        return await shop.create_event(
            event_id, name=name, currency=currency, seats=seats, pools=pools, layout=layout, key=key, **terms
        )

    run(where, make)


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

    run(where, read)


@event.command(name="show")
def show_event(event_id: Event, /, *, where: Where = HERE) -> None:
    """Show an event, what is left of it, and its seats."""

    async def read(shop: Shop) -> Printed:
        return print_results_and_advice.EventWithMap(event=await shop.event(event_id), map=await shop.map(event_id))

    run(where, read)


def _capacity(text: str) -> tuple[int, int]:
    capacity, colon, price = text.partition(":")
    if not colon:
        raise SetupError(problem=f"{text!r} is not a pool: write it as NAME=CAPACITY:PRICE.")
    return whole_number(capacity), whole_number(price)
