"""What the verbs' commands print: values as text or JSON, and advice for each refusal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console

from earmark.cli.explain.format_seat_name import seat_name
from earmark.domain.booking_state_machine import State
from earmark.domain.money import Money
from earmark.domain.payment import PaymentState
from earmark.domain.seat import SeatState
from earmark.errors import SetupError, Unreachable
from earmark.schemas.responses import Booking, Event, Map, Paid, Payment, Undone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from earmark.errors import EarmarkError
    from earmark.schemas.responses import Seat

MARKS = {SeatState.AVAILABLE: "·", SeatState.HELD: "h", SeatState.BOOKED: "#", SeatState.BLOCKED: "x"}
ADVICE = {
    "unauthorized": "Set EARMARK_KEY to a key of this service.",
    "forbidden": "Use a key with that right.",
    "not_found": "Check the address in --url: is it the service's own?",
    "event_unknown": "See `earmark event list`; a test key sees test events only, a live key live ones.",
    "event_exists": "Choose another id, or see `earmark event show`.",
    "booking_unknown": "Check its id; a test key sees test bookings only, a live key live ones.",
    "seats_taken": "Choose others: `earmark event show` says which are free.",
    "seat_unknown": "See `earmark event show`.",
    "pool_unknown": "See `earmark event show`.",
    "pool_exhausted": "Request fewer.",
    "total_changed": "Show the booking, and pay for what it costs now.",
    "price_changed": "Set the pool to 0 units first; then add units at its present price.",
    "limit_exceeded": "Request fewer, or release other holds first.",
    "booking_expired": "Hold again.",
    "booking_not_confirmed": "End a hold with `earmark release`.",
    "extension_refused": "Confirm or release it.",
    "payment_declined": "Pay by another method while the hold lasts.",
    "payment_in_progress": "Wait for it: see `earmark show`.",
    "payment_used": "Every sale has a payment of its own.",
    "refund_refused": "Refund less.",
    "cancel_refused": "Use a key that may sell: the rules for buyers do not limit it.",
    "idempotency_mismatch": "Choose another --idempotency-key for another request.",
    "overloaded": "Try again in a moment.",
    "outcome_unknown": "Look with `earmark show` before you try again.",
}


class EventWithMap(msgspec.Struct, frozen=True, kw_only=True):
    """An event with its map, as `earmark event show` prints it."""

    event: Event
    map: Map


Printed = Booking | Event | EventWithMap | list[Event]


def advise(error: EarmarkError) -> str:
    """The refusal and what to do about it, in one line."""
    if isinstance(error, Unreachable):
        again = f" Repeat it with --idempotency-key {error.key}: it has one effect." if error.key else ""
        return f"{error.url} gave no answer ({error.because}). Is the server running there?{again}"
    return " ".join(filter(None, (_worded(error), ADVICE.get(error.code))))


def _worded(error: EarmarkError) -> str:
    """What was refused, with its facts."""
    if isinstance(error, SetupError):
        return error.problem
    text = (type(error).__doc__ or error.code).partition("\n")[0]
    facts = "; ".join(f"{name.replace('_', ' ')}: {_plain(value)}" for name, value in error.facts().items())
    return f"{text} ({facts})" if facts else text


def _plain(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S} UTC"
    if isinstance(value, Mapping):
        return ", ".join(f"{_plain(name)} is {_plain(one)}" for name, one in value.items())
    if isinstance(value, Iterable):
        return ", ".join(map(_plain, value))
    return str(value)


def show(value: Printed, *, as_json: bool) -> None:
    """Print to stdout, as text or as JSON."""
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")
        return
    out = Console(highlight=False, soft_wrap=True)
    for line in lines(value):
        out.print(line, markup=False)


def lines(value: Printed) -> Iterator[str]:
    """The value as lines of text."""
    match value:
        case Booking():
            yield from _booking(value)
        case Event():
            yield f"{value.id}: {value.name}"
            yield f"  {value.mode}, in {value.currency}"
        case EventWithMap():
            yield from lines(value.event)
            yield from _map(value.map, value.event.currency)
        case _:
            yield from (f"{event.id}: {event.name}" for event in value)
            if not value:
                yield "There are no events."


def _booking(booking: Booking) -> Iterator[str]:
    yield f"{booking.id} is {booking.state}, for {booking.buyer} at {booking.event_id}"
    currency = booking.total.currency
    if booking.seats:
        yield f"  seats  {', '.join(seat_name(line, _money(line.price, currency)) for line in booking.seats)}"
    for line in booking.pools:
        yield f"  {line.units} x {line.id} ({_money(line.price, currency)} each)"
    yield f"  total  {booking.total}"
    if booking.expires_in is not None:
        yield f"  until  {booking.expires_at:%Y-%m-%d %H:%M:%S} UTC, {booking.expires_in:.0f} seconds from now"
    if isinstance(booking, Paid) and booking.payment:
        yield f"  payment  {booking.payment.amount} at {booking.payment.gateway}: {booking.payment.state}"
        if is_open(booking):
            yield f"  next   {_next(booking.payment)}"
    if isinstance(booking, Undone) and booking.money:
        back, kept = (_money(amount, currency) for amount in (booking.money.refund, booking.money.fee))
        yield f"  money  {back} goes back, {kept} is kept"


def is_open(value: Printed) -> bool:
    """Whether this is a booking whose payment is not decided yet."""
    return isinstance(value, Paid) and value.state is State.PAYING


def _next(payment: Payment) -> str:
    if payment.state is PaymentState.REQUIRES_ACTION:
        where = (payment.action or {}).get("url")
        return f"The buyer must act: open {where}" if where else "The buyer must act, as the gateway says (see --json)"
    return "The gateway has not decided yet: see `earmark show` in a moment"


def _map(shown: Map, currency: str) -> Iterator[str]:
    for pool in shown.pools:
        yield f"  {pool.id}: {pool.available} of {pool.capacity} left, {_money(pool.price, currency)} each"
    free = sum(seat.state is SeatState.AVAILABLE for seat in shown.seats)
    if not shown.seats:
        return
    yield f"  seats: {free} of {len(shown.seats)} free (· free, h held, # sold, x blocked)"
    for row, seats in groupby(shown.seats, key=_row):
        some = list(seats)
        names = f"{some[0].id} to {some[-1].id}" if row is not None and len(some) > 1 else None
        if names:
            yield f"    {''.join(MARKS[seat.state] for seat in some)}  {names}"
        else:
            yield from (f"    {MARKS[seat.state]}  {seat.id}" for seat in some)


def _row(seat: Seat) -> tuple[str | None, str] | None:
    return (seat.section, seat.row) if seat.row is not None else None


def _money(amount: int, currency: str) -> str:
    return str(Money(amount=amount, currency=currency))
