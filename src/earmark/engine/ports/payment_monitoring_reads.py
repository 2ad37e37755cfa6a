"""Reads of payments for operators and monitoring. Nothing here changes anything, and no verb needs it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from earmark.domain.id_types import PaymentId
    from earmark.domain.live_or_test_mode import Mode
    from earmark.domain.payment import Payment


class MoneyWatch(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator is to know of the payments, at a glance."""

    attention: Mapping[str, int]
    """How many need an operator, by gateway; a gateway without any is left out."""
    open: int
    """How many go on by themselves and are not over: undecided, to be captured or voided, or to be refunded."""
    open_since: datetime | None
    """When the oldest of these began: the payment, or the refund where that is what it waits for."""
    now: datetime


class WatchesPayments(Protocol):
    """A store that lists and counts payments for operators."""

    async def list_attention(self, *, limit: int, mode: Mode | None = None) -> list[Payment]:
        """Payments that an operator has to look at, oldest first; of one kind, if that is said."""
        ...

    async def watch_money(self, *, limit: int, mode: Mode | None = None) -> MoneyWatch:
        """Counted over at most `limit` payments each: those that need an operator, and those that are due the soonest.

        Of one kind, if that is said.
        """
        ...

    async def page_payments(
        self, gateway: str, *, since: datetime, after: PaymentId | None, limit: int
    ) -> list[Payment]:
        """Our side of a gateway's books: what began at `since` or later, by id."""
        ...
