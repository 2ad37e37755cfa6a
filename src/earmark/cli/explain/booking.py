"""Explains a booking in sentences: each journal entry, each payment, and what will happen next. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from earmark.cli.explain.format_seat_name import seat_name
from earmark.domain.booking import Booking
from earmark.domain.booking_state_machine import State, Verb
from earmark.domain.format_money import spelled
from earmark.domain.journal_before_and_after_values import changes_of
from earmark.domain.journal_entry import Entry
from earmark.domain.payment import Payment, PaymentState, Refund, RefundState
from earmark.schemas import responses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

ENDS = {
    State.RELEASED: "It was released. Its seats are free.",
    State.EXPIRED: "Its time ran out. Its seats are free.",
    State.FAILED: "It was not paid. Its seats are free.",
    State.CANCELLED: "It was cancelled. Its seats are free.",
}


class BookingExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """A booking with its journal and its payments."""

    now: datetime
    booking: Booking
    history: Sequence[Entry | responses.Entry]
    payments: Sequence[tuple[Payment, list[Refund] | None]]
    """Each with its refunds; None where only their sums are known."""


def lines(explained: BookingExplanation) -> Iterator[str]:
    """The explanation, as lines of text."""
    booking = explained.booking
    state, wanted = _state(booking, explained.now), _wanted(booking)
    yield f"{booking.id} is {state}: {wanted} of {booking.event_id}, for {booking.buyer}."
    yield ""
    for entry in explained.history:
        yield f"  {moment(entry.at)}  {_happened(entry, booking.currency)}"
        yield from (f"    {name}: {before} → {after}" for name, before, after in _changed(entry))
    if explained.payments:
        yield ""
    for payment, refunds in explained.payments:
        yield f"  {_paid(payment)}"
        lines_ = _sums(payment) if refunds is None else (_went_back(refund, payment.currency) for refund in refunds)
        yield from (f"    {refund}" for refund in lines_)
    yield ""
    yield _next(booking, [payment for payment, _ in explained.payments], now=explained.now)


def _state(booking: Booking, now: datetime) -> str:
    return "due (its time is over)" if booking.is_due(now) else booking.state.value


def _wanted(booking: Booking) -> str:
    return _lines(
        [seat_name(seat) for seat in booking.lines.seats], {pool.id: pool.units for pool in booking.lines.pools}
    )


def _lines(seats: Sequence[str], pools: dict[str, int]) -> str:
    return ", ".join([*seats, *(f"{units} of {name}" for name, units in pools.items())]) or "nothing"


DESCRIBED: Mapping[str, Callable[[Entry | responses.Entry, str], str]] = {
    Verb.HOLD: lambda entry, currency: (
        f"held {_lines_of(entry.facts.get('lines') or {})} for {spelled(entry.facts.get('total', 0), currency)}, "
        f"until {moment(entry.facts.get('expires_at'))}"
    ),
    Verb.CHANGE: lambda entry, currency: (
        f"changed to {_lines_of(entry.facts.get('lines') or {})} for {spelled(entry.facts.get('total', 0), currency)}"
        if "total" in entry.facts
        else f"changed to {_lines_of(entry.facts.get('lines') or {})}"
    ),
    Verb.EXTEND: lambda entry, _: f"extended until {moment(entry.facts.get('expires_at'))}",
    Verb.PAY: lambda entry, _: (
        f"payment {_short(entry.facts.get('payment_id'))} was begun with "
        f"{entry.facts.get('payment_method')}; pinned until {moment(entry.facts.get('paying_until'))}"
    ),
    Verb.CONFIRM: lambda *_: "confirmed",
    Verb.RELEASE: lambda *_: "released",
    Verb.EXPIRE: lambda *_: "expired",
    Verb.DECLINE: lambda *_: "declined",
    Verb.CANCEL: lambda entry, _: (
        f"cancelled but for {_lines_of(entry.facts.get('lines') or {})}" if entry.after == "confirmed" else "cancelled"
    ),
}
"""By verb; of other entries only the payment is described."""


def _happened(entry: Entry | responses.Entry, currency: str) -> str:
    text = [DESCRIBED[entry.verb](entry, currency)] if entry.verb in DESCRIBED else []
    if money := entry.facts.get("payment"):
        text.append(_money(money, currency))
    if entry.reason:
        text.append(entry.reason)
    return f"{'; '.join(text) or entry.verb}  [{entry.actor}]"


def _changed(entry: Entry | responses.Entry) -> Iterator[tuple[str, str, str]]:
    """Every field before and after, except the states, which have a line already, and the fields of a new booking."""
    if entry.before is None:
        return
    changes = changes_of(entry) if isinstance(entry, Entry) else entry.changes
    for name, change in (changes or {}).items():
        if name not in {"state", "payment.state"}:
            yield name, _field(name, change.before), _field(name, change.after)


def _field(name: str, value: Any) -> str:
    if value is None:
        return "nothing"
    if name == "lines":
        return _lines_of(value)
    return moment(value) if name.endswith(("_at", "_until")) else str(value)


def _money(money: dict[str, Any], currency: str) -> str:
    text = f"payment {_short(money.get('id'))}"
    if "to" in money:
        text += f" {money['from']} → {money['to']}" if money["from"] != money["to"] else f" stays {money['to']}"
    if owed := money.get("owed", money.get("refund")):
        text += f", {spelled(owed, currency)} owed back"
    if money.get("fee"):
        text += f", {spelled(money['fee'], currency)} kept ({money.get('reason')})"
    if "refunded" in money:
        text += f", {spelled(money['refunded'], currency)} went back"
    return text


def _lines_of(facts: dict[str, Any]) -> str:
    seats = [seat["id"] for seat in facts.get("seats", ())]
    return _lines(seats, {pool["id"]: pool["units"] for pool in facts.get("pools", ())})


def _paid(payment: Payment) -> str:
    text = f"payment {payment.id} at {payment.gateway}"
    if payment.gateway_id:
        text += f" ({payment.gateway_id})"
    text += f": {payment.state.value}, {spelled(payment.amount, payment.currency)}"
    if payment.captured:
        text += f", {spelled(payment.captured, payment.currency)} taken"
    if payment.processed_at:
        text += f", processed {moment(payment.processed_at)}"
    if payment.code:
        text += f", {payment.code}"
    return text


def _went_back(refund: Refund, currency: str) -> str:
    verb = {RefundState.PENDING: "is on its way", RefundState.DONE: "went back", RefundState.REFUSED: "was REFUSED"}
    text = f"{spelled(refund.amount, currency)} {verb[refund.state]}"
    if refund.processed_at:
        text += f", processed {moment(refund.processed_at)}"
    return text + "".join(f", {fact}" for fact in (refund.gateway_id, refund.reason, refund.code) if fact)


def _sums(payment: Payment) -> Iterator[str]:
    """The sums where single refunds are not known: what is owed may be under way, or the gateway refused it."""
    if payment.refunded:
        yield f"{spelled(payment.refunded, payment.currency)} went back, in all"
    if payment.owes:
        yield f"{spelled(payment.refunding - payment.refunded, payment.currency)} is owed and has not gone back, in all"


def _next(booking: Booking, payments: Sequence[Payment], *, now: datetime) -> str:
    """What will happen by itself, or what an operator has to do."""
    if any(payment.state is PaymentState.NEEDS_ATTENTION for payment in payments):
        return "An operator has to look at its money: a payment needs attention."
    if any(payment.owes for payment in payments):
        return "A refund is under way; the reconciler completes it."
    if booking.is_due(now):
        return "Its time is over: its seats can be held again, and the sweeper will end it."
    until = moment(booking.paying_until or booking.expires_at)
    return {
        State.HELD: f"It is held until {until}, unless it is paid, extended or released before.",
        State.PAYING: f"Its payment is under way; the reconciler completes it, by {until} at the latest.",
        State.CONFIRMED: "It is sold. Nothing is left to do.",
        **ENDS,
    }[booking.state]


def moment(at: object) -> str:
    """A time to the second, in UTC; a time from the journal is a text already."""
    text = at.isoformat() if hasattr(at, "isoformat") else str(at or "?")
    return text[:19].replace("T", " ")


def _short(payment_id: object) -> str:
    return str(payment_id or "?")[:8]
