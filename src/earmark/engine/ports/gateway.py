"""What the payment saga needs from a gateway.

What a gateway reports is believed; its silence proves nothing: a call that raises `GatewaySilent` may have taken
effect. Every call that moves money carries an id of ours, and the same call again has the same effect once.

Order of a payment with capture by hand, the default:

    authorise → (the booking is confirmed) → capture → refund, once or in parts
        └────── (the booking is lost)     → void

With automatic capture the first call takes the money at once. A callback only makes the saga call `status`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable
from uuid import UUID

import msgspec

from earmark.domain.live_or_test_mode import Mode
from earmark.domain.payment import ReportedState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A payment as its gateway needs it: what to charge, and to what."""

    payment_id: UUID
    """Ours; the idempotency key of the first call, and how the payment is found when its gateway's id is not known."""
    booking_id: UUID
    event_id: str
    amount: int
    """In minor units, at least 1."""
    currency: str
    method: str
    """The gateway's own name of what to charge: a token, never a card number."""
    automatic: bool = False
    """Take the money at once instead of setting it aside."""
    created_at: datetime
    """By the store's clock: from when on to look for it."""
    return_url: str | None = None
    """Where the buyer comes back to after an action."""
    gateway_id: str | None = None
    """The gateway's own id, once it is known."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """How a payment stands, as its gateway reports it."""

    state: ReportedState
    gateway_id: str | None = None
    captured: int = 0
    refunded: int = 0
    """What went back of it, by the gateway's count."""
    code: str | None = None
    """Why it was declined or voided, as a word: `card_declined`, `insufficient_funds`, …"""
    message: str | None = None
    """The same as a sentence for people."""
    action: Mapping[str, str] | None = None
    """What the buyer needs for the action: a `url` to visit, a `client_secret` for the gateway's own page."""


class ReportedRefundState(StrEnum):
    """How a refund stands at its gateway."""

    PROCESSING = "processing"
    DONE = "done"
    REFUSED = "refused"
    """It will not happen: a closed account, a charge in dispute, more than is left. People have to look at it."""


class RefundOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What to give back."""

    refund_id: UUID
    """Ours; the idempotency key."""
    payment: Order
    amount: int
    created_at: datetime | None = None
    """By the store's clock: since when it is owed."""
    gateway_id: str | None = None


class RefundReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a refund stands, as its gateway reports it."""

    state: ReportedRefundState
    gateway_id: str | None = None
    code: str | None = None
    message: str | None = None


class RefundRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A refund in the gateway's own records, whether or not Earmark requested it."""

    refund_id: UUID | None
    """Ours, as the gateway kept it for us; None when it was not made by us."""
    gateway_id: str
    amount: int
    state: ReportedRefundState


class Callback(msgspec.Struct, frozen=True, kw_only=True):
    """What a gateway called about, once its signature was found to be right.

    The facts are compared with ours, and then the payment's status is read: what has happened since is not in it.
    """

    id: str
    """The gateway's id of this event: the same event may come any number of times."""
    kind: str
    """The gateway's word for it."""
    mode: Mode
    payment_id: UUID | None
    """Ours, as the gateway kept it for us; None when the event is about no payment of ours."""
    booking_id: UUID | None = None
    """Ours too, where the gateway kept it with this."""
    gateway_id: str | None = None
    amount: int | None = None
    currency: str | None = None
    disputed: bool = False
    """The buyer has asked their bank for the money back: only people can answer that."""
    refund: bool = False
    """It is about a refund. One that people made at the gateway's own page carries no id of ours."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A payment in the gateway's own records, to compare with ours."""

    payment_id: UUID | None
    gateway_id: str
    state: ReportedState
    currency: str
    captured: int
    refunded: int


class GatewaySilent(Exception):
    """No reply, or one that cannot be understood: the call may have taken effect, or may yet."""


class GatewayRefused(Exception):
    """The gateway will not do it, now or later, and it has not been done: `code` says why."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(message or code)
        self.code = code


class GatewayDenied(GatewayRefused):
    """The gateway refuses the shop itself: a key that was revoked, a permission, an account that is not set up.

    No buyer can correct that, so a first call that is denied is an outage and no decline.
    """


@runtime_checkable
class TakesCodes(Protocol):
    """A gateway whose methods are secrets of buyers, such as the code of a gift card. None of them is ever recorded."""

    async def refer(self, method: str) -> str:
        """What a payment keeps in place of the code: enough to charge it here, and of no use elsewhere."""
        ...

    def seal(self, request_hash: bytes) -> Sequence[bytes]:
        """The hash of a request with a code in it, under a key; then as it was recorded under older ones."""
        ...


def as_code_taker(gateway: object) -> TakesCodes | None:
    """A gateway whose methods are secrets; None for any other."""
    return gateway if isinstance(gateway, TakesCodes) else None


class GatewayInvalid(GatewayRefused):
    """The gateway cannot read the request: `field` names the part of the request to pay that is wrong.

    The gateway called no bank, so a first call that is invalid is a wrong request and no decline.
    """

    def __init__(self, code: str, message: str = "", *, field: str) -> None:
        super().__init__(code, message)
        self.field = field


class CallbackRefused(Exception):
    """A callback that is not from the gateway, or is too old, or is not meant for us."""


class Gateway(Protocol):
    """One gateway. Its calls may take as long as they take: the saga holds no lock and no transaction meanwhile.

    Each raises `GatewaySilent` when the outcome is not known, and `GatewayRefused` when the call itself was wrong;
    `GatewayDenied` where that is the shop's own fault, `GatewayInvalid` where a field of the request is wrong.
    A decline is no error: it is a `Report`.
    """

    name: str

    @property
    def mode(self) -> Mode:
        """`live` if it moves real money. Events of a mode are paid at gateways of that mode."""
        ...

    async def authorise(self, order: Order) -> Report:
        """Set the money aside, or take it at once if the order says so. The same order again is the same payment."""
        ...

    async def capture(self, order: Order) -> Report:
        """Take all of what was set aside."""
        ...

    async def void(self, order: Order) -> Report:
        """Give up a payment that was not captured; of one that was, the report says so. Also of one that is absent."""
        ...

    async def refund(self, refund: RefundOrder) -> RefundReport:
        """Give money back. The same refund again is the same refund."""
        ...

    async def status(self, order: Order) -> Report:
        """How the payment stands now: found by the gateway's id, or by ours when the gateway's is not known."""
        ...

    async def refund_status(self, refund: RefundOrder) -> RefundReport | None:
        """How a refund stands now; None when the gateway knows none of this id."""
        ...

    async def list_refunds(self, order: Order) -> Sequence[RefundRecord]:
        """All refunds of a payment, also those that were made without us."""
        ...

    async def whose(self, gateway_id: str) -> UUID | None:
        """Our id of a payment, by the gateway's own: not every callback carries ours."""
        ...

    def read_callback(self, headers: Mapping[str, str], body: bytes) -> Callback:
        """Check the signature over the very bytes, and the age; raises `CallbackRefused`."""
        ...

    def books(self, *, since: datetime) -> AsyncIterator[Record]:
        """The gateway's own records of payments, newest or oldest first."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...
