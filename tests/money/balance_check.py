"""Two books about the same money, currency by currency: ours and the bank's, and whether they agree to the cent.

    taken - refunded  =  price of what is sold  +  fees kept  -  refunded by an operator  +  refunds the bank refused

Where an operator refunded money and the lines that it was paid for are cancelled afterwards, less is left to
refund than they cost: that much was forgiven, and never more than the operator refunded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from earmark.domain.booking import Booking
from earmark.domain.booking_state_machine import State, Verb
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.payment import UNDECIDED, Payment, PaymentState, Refund, RefundState
from earmark.engine.ports.store import BookingFilter
from earmark.sandbox.model import IntentStatus, LedgerMove

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.money.shop_and_bank import World

    from earmark.domain.journal_entry import Entry

BY_HAND = "by hand"
"""The reason that the tests give for a refund without a cancellation."""
OPEN = UNDECIDED | {PaymentState.AUTHORISED, PaymentState.VOIDING}


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """The money of one booking, from its rows and its journal."""

    booking: Booking
    payments: list[tuple[Payment, list[Refund]]]
    cancelled: list[dict[str, int]]
    """Of each cancellation: the price of what it cancelled, its refund, and the fee."""

    @property
    def refunds(self) -> list[Refund]:
        """Of all its payments."""
        return [refund for _, refunds in self.payments for refund in refunds]

    @property
    def worth(self) -> int:
        """What is sold."""
        return self.booking.total if self.booking.state is State.CONFIRMED else 0

    @property
    def fees(self) -> int:
        """What its cancellations kept."""
        return sum(one["fee"] for one in self.cancelled)

    @property
    def by_hand(self) -> int:
        """What was owed back without a cancellation."""
        return sum(refund.amount for refund in self.refunds if refund.reason == BY_HAND)

    @property
    def refused(self) -> int:
        """What is owed to the buyer and was not refunded: an operator has to look."""
        return sum(refund.amount for refund in self.refunds if refund.state is RefundState.REFUSED)

    @property
    def forgiven(self) -> int:
        """What was cancelled after an operator had refunded its money."""
        return sum(one["price"] - one["refund"] - one["fee"] for one in self.cancelled)

    @property
    def expected(self) -> int:
        """What the shop should have."""
        return self.worth + self.fees - self.by_hand + self.forgiven + self.refused

    @property
    def kept(self) -> int:
        """What the shop has, by our own rows."""
        return sum(payment.captured - payment.refunded for payment, _ in self.payments)


async def disagreements(world: World) -> list[str]:
    """Where our books, the bookings and the bank's ledger differ; none if all is right."""
    wrong: list[str] = []
    for currency, event in world.events.items():
        _, bookings = await world.store.list_bookings(BookingFilter(mode=Mode.TEST, limit=10_000, event_id=event))
        accounts = [await account_of(world, booking) for booking in bookings]
        for account in accounts:
            wrong += _wrong_with(world, account, currency)
        expected = sum(account.expected for account in accounts)
        kept = sum(account.kept for account in accounts)
        if not net(world, currency) == expected == kept:
            wrong.append(f"{currency}: the bank has {net(world, currency)}, we have {kept}, and {expected} is right")
    strange = {line.currency for line in world.bank.ledger} - set(world.events)
    wrong += [f"the bank has money in {currency}, in which nothing is sold" for currency in strange]
    wrong += [
        f"{one.id} is set aside for ever" for one in world.bank.intents() if one.status is IntentStatus.REQUIRES_CAPTURE
    ]
    return wrong + [f"{flaw.rule}: {flaw.row}" for flaw in await world.store.find_flaws(limit=10)]


def net(world: World, currency: str) -> int:
    """What the bank captured less what it refunded."""
    signs = {LedgerMove.CAPTURED: 1, LedgerMove.REFUNDED: -1}
    return sum(signs.get(line.move, 0) * line.amount for line in world.bank.ledger if line.currency == currency)


async def account_of(world: World, booking: Booking) -> Account:
    """A booking's money as it is now."""
    history = await world.store.read_history(booking.id)
    return Account(
        booking=booking,
        payments=await world.store.list_payments(booking.id),
        cancelled=list(_cancellations(history)),
    )


def _cancellations(history: Iterable[Entry]) -> Iterator[dict[str, int]]:
    total = 0
    for entry in history:
        before, total = total, entry.facts.get("total", total)
        money: dict[str, Any] = entry.facts.get("payment", {})
        if entry.verb == Verb.CANCEL and "fee" in money:
            price = before if entry.after == State.CANCELLED else before - total
            yield {"price": price, "refund": money["refund"], "fee": money["fee"]}


def _wrong_with(world: World, account: Account, currency: str) -> list[str]:
    booking, wrong = account.booking, []
    if booking.currency != currency:
        wrong.append(f"{booking.id} is in {booking.currency}, its event in {currency}")
    for payment, refunds in account.payments:
        wrong += _wrong_with_payment(world, payment, refunds)
    if booking.state is State.PAYING:
        wrong.append(f"{booking.id} is paying for ever")
    if account.kept != account.expected:
        wrong.append(f"{booking.id} is {booking.state}: {account.kept} was kept and {account.expected} is right")
    if not 0 <= account.forgiven <= account.by_hand:
        wrong.append(f"{booking.id}: {account.forgiven} did not go back, and {account.by_hand} went by hand")
    if booking.state is State.CONFIRMED and not any(payment.captured for payment, _ in account.payments):
        wrong.append(f"{booking.id} is sold, and not paid")
    return wrong


def _wrong_with_payment(world: World, payment: Payment, refunds: list[Refund]) -> list[str]:
    wrong = []
    said = {
        move: world.bank.total(move, payment_id=str(payment.id)) for move in (LedgerMove.CAPTURED, LedgerMove.REFUNDED)
    }
    if said != {LedgerMove.CAPTURED: payment.captured, LedgerMove.REFUNDED: payment.refunded}:
        wrong.append(f"{payment.id}: the bank says {said}, we say {payment.captured}, {payment.refunded}")
    if any(intent.currency != payment.currency for intent in world.bank.find(str(payment.id))):
        wrong.append(f"{payment.id} is in {payment.currency}, and in something else at the bank")
    if payment.state in OPEN or payment.due_at is not None:
        wrong.append(f"{payment.id} is {payment.state} for ever")
    refused = any(refund.state is RefundState.REFUSED for refund in refunds)
    if refused != (payment.state is PaymentState.NEEDS_ATTENTION):
        wrong.append(f"{payment.id} is {payment.state}, and a refund of it was{'' if refused else ' not'} refused")
    done = sum(refund.amount for refund in refunds if refund.state is RefundState.DONE)
    if done != payment.refunded:
        wrong.append(f"{payment.id}: {payment.refunded} is said to have gone back, by refunds of {done}")
    return wrong
