"""The whole story of a booking, in words. Pure: rows in, lines out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from earmark.cli.explain.seat_name import seat_name
from earmark.domain.booking import Booking
from earmark.domain.journal import Entry
from earmark.domain.journal_changes import changes_of
from earmark.domain.money_text import spelled
from earmark.domain.payment import Payment, PaymentState, Refund, RefundState
from earmark.domain.state_machine import State, Verb
from earmark.schemas import responses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

ENDS = {
    State.RELEASED: "It was let go. Its seats are free.",
    State.EXPIRED: "Its time ran out. Its seats are free.",
    State.FAILED: "It was not paid. Its seats are free.",
    State.CANCELLED: "It was cancelled. Its seats are free.",
}


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known about a booking, in one place."""

    now: datetime
    booking: Booking
    history: Sequence[Entry | responses.Entry]
    payments: Sequence[tuple[Payment, list[Refund] | None]]
    """Each with its refunds; None where only their sums are known."""


def lines(story: Story) -> Iterator[str]:
    """As a person would tell it."""
    booking = story.booking
    state, wanted = _state(booking, story.now), _wanted(booking)
    yield f"{booking.id} is {state}: {wanted} of {booking.event_id}, for {booking.buyer}."
    yield ""
    for entry in story.history:
        yield f"  {moment(entry.at)}  {_happened(entry, booking.currency)}"
        yield from (f"    {name}: {before} → {after}" for name, before, after in _changed(entry))
    if story.payments:
        yield ""
    for payment, refunds in story.payments:
        yield f"  {_paid(payment)}"
        told = _sums(payment) if refunds is None else (_went_back(refund, payment.currency) for refund in refunds)
        yield from (f"    {refund}" for refund in told)
    yield ""
    yield _next(booking, [payment for payment, _ in story.payments], now=story.now)


def _state(booking: Booking, now: datetime) -> str:
    return "due (its time is over)" if booking.is_due(now) else booking.state.value


def _wanted(booking: Booking) -> str:
    return _lines(
        [seat_name(seat) for seat in booking.lines.seats], {pool.id: pool.units for pool in booking.lines.pools}
    )


def _lines(seats: Sequence[str], pools: dict[str, int]) -> str:
    return ", ".join([*seats, *(f"{units} of {name}" for name, units in pools.items())]) or "nothing"


TOLD: Mapping[str, Callable[[Entry | responses.Entry, str], str]] = {
    Verb.HOLD: lambda entry, currency: (
        f"held {_told_lines(entry.facts.get('lines') or {})} for {spelled(entry.facts.get('total', 0), currency)}, "
        f"until {moment(entry.facts.get('expires_at'))}"
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
        f"cancelled but for {_told_lines(entry.facts.get('lines') or {})}"
        if entry.after == "confirmed"
        else "cancelled"
    ),
}
"""By verb; of others only the money is told."""


def _happened(entry: Entry | responses.Entry, currency: str) -> str:
    said = [TOLD[entry.verb](entry, currency)] if entry.verb in TOLD else []
    if money := entry.facts.get("payment"):
        said.append(_money(money, currency))
    if entry.reason:
        said.append(entry.reason)
    return f"{'; '.join(said) or entry.verb}  [{entry.actor}]"


def _changed(entry: Entry | responses.Entry) -> Iterator[tuple[str, str, str]]:
    """Every field before and after, but for the states, which are told, and for what a new booking begins with."""
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
        return _told_lines(value)
    return moment(value) if name.endswith(("_at", "_until")) else str(value)


def _money(money: dict[str, Any], currency: str) -> str:
    said = f"payment {_short(money.get('id'))}"
    if "to" in money:
        said += f" {money['from']} → {money['to']}" if money["from"] != money["to"] else f" stays {money['to']}"
    if owed := money.get("owed", money.get("refund")):
        said += f", {spelled(owed, currency)} owed back"
    if money.get("fee"):
        said += f", {spelled(money['fee'], currency)} kept ({money.get('reason')})"
    if "refunded" in money:
        said += f", {spelled(money['refunded'], currency)} went back"
    return said


def _told_lines(told: dict[str, Any]) -> str:
    seats = [seat["id"] for seat in told.get("seats", ())]
    return _lines(seats, {pool["id"]: pool["units"] for pool in told.get("pools", ())})


def _paid(payment: Payment) -> str:
    said = f"payment {payment.id} at {payment.gateway}"
    if payment.gateway_id:
        said += f" ({payment.gateway_id})"
    said += f": {payment.state.value}, {spelled(payment.amount, payment.currency)}"
    if payment.captured:
        said += f", {spelled(payment.captured, payment.currency)} taken"
    if payment.processed_at:
        said += f", processed {moment(payment.processed_at)}"
    if payment.code:
        said += f", {payment.code}"
    return said


def _went_back(refund: Refund, currency: str) -> str:
    word = {RefundState.PENDING: "is on its way", RefundState.DONE: "went back", RefundState.REFUSED: "was REFUSED"}
    said = f"{spelled(refund.amount, currency)} {word[refund.state]}"
    if refund.processed_at:
        said += f", processed {moment(refund.processed_at)}"
    return said + "".join(f", {fact}" for fact in (refund.gateway_id, refund.reason, refund.code) if fact)


def _sums(payment: Payment) -> Iterator[str]:
    """Of refunds that are not known one by one: what is owed may be on its way, or the gateway refused it."""
    if payment.refunded:
        yield f"{spelled(payment.refunded, payment.currency)} went back, in all"
    if payment.owes:
        yield f"{spelled(payment.refunding - payment.refunded, payment.currency)} is owed and has not gone back, in all"


def _next(booking: Booking, payments: Sequence[Payment], *, now: datetime) -> str:
    """What will happen by itself, or who has to do something."""
    if any(payment.state is PaymentState.NEEDS_ATTENTION for payment in payments):
        return "Somebody has to look at its money: a payment needs attention."
    if any(payment.owes for payment in payments):
        return "A refund is on its way; the reconciler sees to it."
    if booking.is_due(now):
        return "Its time is over: whoever wants its seats may have them, and the sweeper ends it."
    until = moment(booking.paying_until or booking.expires_at)
    return {
        State.HELD: f"It is held until {until}, unless it is paid, extended or let go before.",
        State.PAYING: f"A gateway is being asked; the reconciler sees to it, until {until} at the latest.",
        State.CONFIRMED: "It is sold. Nothing is left to do.",
        **ENDS,
    }[booking.state]


def moment(at: object) -> str:
    """To the second, in UTC; a fact of the journal is a text already."""
    text = at.isoformat() if hasattr(at, "isoformat") else str(at or "?")
    return text[:19].replace("T", " ")


def _short(payment_id: object) -> str:
    return str(payment_id or "?")[:8]
