"""The balance gateway: pays from accounts in the shop's own database, without calls to another service.

Every buyer who knows an account's code can pay from it, as with a gift card. So `Order.method` is a reference to the
account, made from the code before anything is recorded; only payments of an older release have a code there.

A buyer cannot learn about codes and accounts from declines: all have the same message and take the same queries. The
reason is in the log and with the account's payment.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import UUID

from earmark.domain.live_or_test_mode import Mode
from earmark.domain.mask_and_reference_payment_method import BALANCE, NO_ACCOUNT, account_of, refer
from earmark.domain.payment import ReportedState
from earmark.domain.prepaid_account import VOIDED, Draw, EntryKind
from earmark.engine.ports.gateway import (
    CallbackRefused,
    GatewayRefused,
    GatewaySilent,
    Record,
    RefundRecord,
    RefundReport,
    Report,
    ReportedRefundState,
)
from earmark.engine.prepaid_accounts import LIST_MAX
from earmark.errors import Outage, RefundRefused, Refusal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from datetime import datetime

    from earmark.engine.ports.gateway import Callback, Order, RefundOrder
    from earmark.engine.prepaid_accounts import Accounts
    from earmark.payments.gateways.balance.account_access_codes import AccountCodes

_log = logging.getLogger("earmark.money")

DECLINED = "account_declined"
MESSAGES = {
    DECLINED: "This code cannot pay for this. Check it, or pay in another way.",
    VOIDED: "The payment was voided before it was authorised.",
}
ABSENT = Report(state=ReportedState.ABSENT)


class BalanceGateway:
    """The gateway of one mode: live accounts pay for live events, test accounts for test events."""

    name = BALANCE

    def __init__(self, accounts: Accounts, *, codes: AccountCodes, mode: Mode = Mode.LIVE) -> None:
        self._accounts = accounts
        self._codes = codes
        self.mode = mode
        self.seal = codes.seal

    async def refer(self, method: str) -> str:
        """A reference to the account of a code, or to none: one query in either case."""
        return refer(await self._find(method), method)

    async def authorise(self, order: Order) -> Report:
        """Set the amount aside or, with automatic capture, take it. A decline is final for this payment id."""
        with _translated():
            drawn = await self._accounts.draw(await self._draw(order))
        if _state(drawn) is ReportedState.DECLINED:
            account = "no account" if drawn.account_id == NO_ACCOUNT else f"account {drawn.account_id}"
            _log.info("payment %s is declined: %s, %s", drawn.payment_id, drawn.code, account)
        return _report(drawn)

    async def capture(self, order: Order) -> Report:
        """Take the amount that was set aside, once."""
        with _translated():
            taken = await self._accounts.take(await self._draw(order))
        return _report(taken) if taken else ABSENT

    async def void(self, order: Order) -> Report:
        """Release the amount that was set aside, once. An order that arrives after its void is voided."""
        with _translated():
            return _report(await self._accounts.let_go(await self._draw(order)))

    async def refund(self, refund: RefundOrder) -> RefundReport:
        """Give an amount back to its account: all of it, or nothing if less is left."""
        try:
            with _translated():
                draw = await self._draw(refund.payment)
                made = await self._accounts.give_back(draw, refund.amount, refund_id=refund.refund_id)
        except RefundRefused as refused:
            left = f"Only {refused.available} is left to refund, not {refused.asked}."
            return RefundReport(state=ReportedRefundState.REFUSED, code=refused.code, message=left)
        if made is None:
            raise GatewayRefused("payment_unknown", "There is no such payment.")
        return RefundReport(state=ReportedRefundState.DONE, gateway_id=made.id)

    async def status(self, order: Order) -> Report:
        """The current state of a payment of this mode."""
        with _translated():
            known = await self._accounts.find(order.payment_id)
        return _report(known) if known and known.mode == self.mode else ABSENT

    async def refund_status(self, refund: RefundOrder) -> RefundReport | None:
        """The refund, if it was made. Refused refunds are not recorded: requested again, they are refused again."""
        with _translated():
            made = await self._accounts.find_entry(EntryKind.GIVEN_BACK, str(refund.refund_id))
        if made is None or made.payment_id != refund.payment.payment_id:
            return None
        return RefundReport(state=ReportedRefundState.DONE, gateway_id=made.id)

    async def list_refunds(self, order: Order) -> list[RefundRecord]:  # noqa: ARG002 (part of the port)
        """Always empty: no other program makes refunds of these accounts."""
        return []

    async def whose(self, gateway_id: str) -> UUID | None:  # noqa: ARG002 (part of the port)
        """Always None: this gateway sends no callbacks that name a payment."""
        return None

    def read_callback(self, headers: Mapping[str, str], body: bytes) -> Callback:  # noqa: ARG002 (part of the port)
        """Refuse every callback: this gateway sends none."""
        raise CallbackRefused("The balance gateway sends no callbacks.")

    async def books(self, *, since: datetime) -> AsyncIterator[Record]:
        """Every payment since then, declined ones too, the oldest first."""
        after = UUID(int=0)
        while True:
            with _translated():
                page = await self._accounts.draws(mode=self.mode, since=since, after=after, limit=LIST_MAX)
            for draw in page:
                yield _record(draw)
            if len(page) < LIST_MAX:
                return
            since, after = page[-1].created_at, page[-1].payment_id

    async def close(self) -> None:
        """Nothing to close: the store belongs to the caller."""

    async def _find(self, code: str) -> str:
        return await self._accounts.find_code(self._codes.digests(code)) or NO_ACCOUNT

    async def _draw(self, order: Order) -> Draw:
        if order.amount < 1:
            raise GatewayRefused("amount_invalid", "The amount of a payment must be at least 1.")
        return Draw(
            payment_id=order.payment_id,
            # A method that is not a reference is a code: an older release has recorded this payment.
            account_id=account_of(order.method) or await self._find(order.method),
            currency=order.currency,
            mode=self.mode,
            amount=order.amount,
            automatic=order.automatic,
            created_at=order.created_at,
        )


@contextmanager
def _translated() -> Iterator[None]:
    """Translate errors of the store: after an outage the outcome is unknown, a refusal is certain."""
    try:
        yield
    except Outage as outage:
        raise GatewaySilent(str(outage)) from outage
    except RefundRefused:
        raise
    except Refusal as refusal:
        raise GatewayRefused(refusal.code, str(refusal)) from refusal


def _state(draw: Draw) -> ReportedState:
    if draw.code is not None:
        return ReportedState.VOIDED if draw.code == VOIDED else ReportedState.DECLINED
    if draw.let_go:
        return ReportedState.VOIDED
    return ReportedState.CAPTURED if draw.taken else ReportedState.AUTHORISED


def _report(draw: Draw) -> Report:
    code = DECLINED if _state(draw) is ReportedState.DECLINED else draw.code
    return Report(
        state=_state(draw),
        gateway_id=str(draw.payment_id),
        captured=draw.taken,
        refunded=draw.given_back,
        code=code,
        message=MESSAGES[code] if code else None,
    )


def _record(draw: Draw) -> Record:
    return Record(
        payment_id=draw.payment_id,
        gateway_id=str(draw.payment_id),
        state=_state(draw),
        currency=draw.currency,
        captured=draw.taken,
        refunded=draw.given_back,
    )
