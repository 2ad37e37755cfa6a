"""The balance gateway: pays from accounts in the shop's own database, and calls nobody.

Every buyer who knows an account's code can pay from it, as with a gift card. So `Order.method` is a reference to the
account, made from the code before anything is recorded; a code is only met in payments that an older release recorded.

A buyer learns nothing about codes and accounts but yes or no: every decline is worded the same, and takes the same
look-ups. The reason stands in the log and with the account's payment.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import UUID

from earmark.domain.account import VOIDED, Draw, EntryKind
from earmark.domain.payment import Standing
from earmark.domain.payment_method import BALANCE, NO_ACCOUNT, account_of, refer
from earmark.engine.accounts import LIST_MAX
from earmark.engine.ports.gateway import (
    CallbackRefused,
    GatewayRefused,
    GatewaySilent,
    Record,
    RefundRecord,
    RefundReport,
    RefundStanding,
    Report,
)
from earmark.errors import Outage, RefundRefused, Refusal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from datetime import datetime

    from earmark.engine.accounts import Accounts
    from earmark.engine.ports.gateway import Callback, Order, RefundOrder
    from earmark.payments.balance.codes import AccountCodes

_log = logging.getLogger("earmark.money")

DECLINED = "account_declined"
MESSAGES = {
    DECLINED: "This code cannot pay for this. Check it, or pay in another way.",
    VOIDED: "It was given up before it was asked for.",
}
ABSENT = Report(standing=Standing.ABSENT)


class BalanceGateway:
    """One mode: live accounts pay for live events, test accounts for test events. Our ids are its own."""

    name = BALANCE

    def __init__(self, accounts: Accounts, *, codes: AccountCodes, live: bool = True) -> None:
        self._accounts = accounts
        self._codes = codes
        self._live = live
        self.seal = codes.seal

    @property
    def live(self) -> bool:
        """Whether its accounts hold real money."""
        return self._live

    async def refer(self, method: str) -> str:
        """The account that a code opens, or none: one look-up in either case."""
        return refer(await self._find(method), method)

    async def authorise(self, order: Order) -> Report:
        """Set aside, or taken at once. An account that is not good for it is a decline, and stays one."""
        with _translated():
            drawn = await self._accounts.draw(await self._draw(order))
        if _standing(drawn) is Standing.DECLINED:
            account = "no account" if drawn.account_id == NO_ACCOUNT else f"account {drawn.account_id}"
            _log.info("payment %s is declined: %s, %s", drawn.payment_id, drawn.code, account)
        return _report(drawn)

    async def capture(self, order: Order) -> Report:
        """Taken, once."""
        with _translated():
            taken = await self._accounts.take(await self._draw(order))
        return _report(taken) if taken else ABSENT

    async def void(self, order: Order) -> Report:
        """Let go, once. An order that arrives after its void draws nothing any more."""
        with _translated():
            return _report(await self._accounts.let_go(await self._draw(order)))

    async def refund(self, refund: RefundOrder) -> RefundReport:
        """Given back to the account it came from, whole as asked or not at all."""
        try:
            with _translated():
                asked = await self._draw(refund.payment)
                made = await self._accounts.give_back(asked, refund.amount, refund_id=refund.refund_id)
        except RefundRefused as refused:
            left = f"{refused.available} of it is left, and not {refused.asked}."
            return RefundReport(standing=RefundStanding.REFUSED, code=refused.code, message=left)
        if made is None:
            raise GatewayRefused("payment_unknown", "There is no such payment.")
        return RefundReport(standing=RefundStanding.DONE, gateway_id=made.id)

    async def status(self, order: Order) -> Report:
        """By our id, which is its own."""
        with _translated():
            known = await self._accounts.find(order.payment_id)
        return _report(known) if known and known.live == self._live else ABSENT

    async def refund_status(self, refund: RefundOrder) -> RefundReport | None:
        """By our id. Of a refund that was refused it knows nothing: asked for again, it is refused again."""
        with _translated():
            made = await self._accounts.find_entry(EntryKind.GIVEN_BACK, str(refund.refund_id))
        if made is None or made.payment_id != refund.payment.payment_id:
            return None
        return RefundReport(standing=RefundStanding.DONE, gateway_id=made.id)

    async def list_refunds(self, order: Order) -> list[RefundRecord]:  # noqa: ARG002 (there are none to find)
        """Only Earmark gives back to an account what was taken from it: none is made without it."""
        return []

    async def whose(self, gateway_id: str) -> UUID | None:  # noqa: ARG002 (nobody disputes what they have given the shop)
        """It calls nobody, and is asked by nobody."""
        return None

    def read_callback(self, headers: Mapping[str, str], body: bytes) -> Callback:  # noqa: ARG002 (believes none)
        """It calls nobody."""
        raise CallbackRefused("the balance gateway calls nobody")

    async def books(self, *, since: datetime) -> AsyncIterator[Record]:
        """Oldest first, also what was declined."""
        after = UUID(int=0)
        while True:
            with _translated():
                page = await self._accounts.draws(live=self._live, since=since, after=after, limit=LIST_MAX)
            for draw in page:
                yield _record(draw)
            if len(page) < LIST_MAX:
                return
            since, after = page[-1].created_at, page[-1].payment_id

    async def close(self) -> None:
        """The store is somebody else's to close."""

    async def _find(self, code: str) -> str:
        return await self._accounts.find_code(self._codes.digests(code)) or NO_ACCOUNT

    async def _draw(self, order: Order) -> Draw:
        if order.amount < 1:
            raise GatewayRefused("amount_invalid", "A payment is of at least 1.")
        return Draw(
            payment_id=order.payment_id,
            # What refers to no account is a code: an older release has recorded this payment.
            account_id=account_of(order.method) or await self._find(order.method),
            currency=order.currency,
            live=self._live,
            amount=order.amount,
            automatic=order.automatic,
            created_at=order.created_at,
        )


@contextmanager
def _translated() -> Iterator[None]:
    """A store that does not answer may have kept what was asked; a refusal is of the call itself."""
    try:
        yield
    except Outage as outage:
        raise GatewaySilent(str(outage)) from outage
    except RefundRefused:
        raise
    except Refusal as refusal:
        raise GatewayRefused(refusal.code, str(refusal)) from refusal


def _standing(draw: Draw) -> Standing:
    if draw.code is not None:
        return Standing.VOIDED if draw.code == VOIDED else Standing.DECLINED
    if draw.let_go:
        return Standing.VOIDED
    return Standing.CAPTURED if draw.taken else Standing.AUTHORISED


def _report(draw: Draw) -> Report:
    code = DECLINED if _standing(draw) is Standing.DECLINED else draw.code
    return Report(
        standing=_standing(draw),
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
        standing=_standing(draw),
        currency=draw.currency,
        captured=draw.taken,
        refunded=draw.given_back,
    )
