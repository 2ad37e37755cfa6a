"""The commands of one booking: hold, show, extend, pay, confirm, release, cancel and refund."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from earmark.cli import print_results_and_advice
from earmark.cli.booking_command_arguments import Event, Key, name_and_text, whole_number
from earmark.cli.run_on_service_or_database import HERE, Where, run

if TYPE_CHECKING:
    from earmark.cli.print_results_and_advice import Printed
    from earmark.cli.run_on_service_or_database import Shop

NOT_DECIDED = 3
"""The exit code while a payment is not decided: neither a sale nor a refusal."""

Booking = Annotated[str, Parameter(help="The booking's id.")]
Units = Annotated[
    tuple[str, ...],
    Parameter(name="--pool", negative="", show_default=False, help="Units of a pool: GA=2. May be repeated."),
]
Amount = Annotated[int, Parameter(validator=Number(gte=0), help="Minor units of the event's currency.")]


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
    pools = {pool_id: whole_number(text) for pool_id, text in map(name_and_text, pool)}
    best_available = None if best is None else {"count": best, "together": together}
    run(
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
    run(where, lambda shop: shop.booking(booking_id))


def change(
    booking_id: Booking,
    /,
    *,
    add: Annotated[
        tuple[str, ...], Parameter(help="A seat to add. May be repeated.", negative="", show_default=False)
    ] = (),
    drop: Annotated[
        tuple[str, ...], Parameter(help="A seat to give back. May be repeated.", negative="", show_default=False)
    ] = (),
    pool: Units = (),
    key: Key = None,
    where: Where = HERE,
) -> None:
    """Give a hold other seats and units; its end stays.

    All of the change is made, or none of it. --pool GA=2 says how many units the hold shall have; GA=0 gives them back.
    """
    pools = {pool_id: whole_number(text) for pool_id, text in map(name_and_text, pool)}
    run(where, lambda shop: shop.change(booking_id, add=add, drop=drop, pools=pools, key=key))


def extend(
    booking_id: Booking,
    /,
    *,
    seconds: Annotated[int, Parameter(help="How many seconds more.")] = 120,
    key: Key = None,
    where: Where = HERE,
) -> None:
    """Give a hold more time, within its longest life."""
    run(where, lambda shop: shop.extend(booking_id, seconds=seconds, key=key))


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
    result = run(where, lambda shop: shop.pay(booking_id, method=method, gateway=gateway, key=key))
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
    run(
        where,
        lambda shop: shop.confirm(booking_id, payment_id=payment_id, payment_method=payment_method, key=key),
    )


def release(booking_id: Booking, /, *, key: Key = None, where: Where = HERE) -> None:
    """End a hold, and free its seats."""
    run(where, lambda shop: shop.release(booking_id, key=key))


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
    pools = {pool_id: whole_number(text) for pool_id, text in map(name_and_text, pool)}
    back = _back(give_back)

    async def undo(shop: Shop) -> Printed:
        return await shop.cancel(booking_id, refund=back, seats=seats, pools=pools, reason=reason, key=key)

    run(where, undo)


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
    run(where, lambda shop: shop.refund(booking_id, amount=amount, reason=reason, key=key))


def _back(text: str | None) -> Literal["full", "none"] | int | None:
    match text:
        case None:
            return None
        case "full":
            return "full"
        case "none":
            return "none"
        case _:
            return whole_number(text)
