"""An account: money that a customer has with the shop, such as credit or a gift card, and the entries that made it so.

    credited ──► balance ──► set aside for a payment ──► taken ──► given back
                                        └──► let go

An account has an id, which payments keep, and a code, which buyers pay with and which is kept as a digest alone.
An account is its last entry: every entry says by how much it changed the balance and what is set aside of it, and what
both are since. What is set aside is still in the balance and cannot be spent by another payment.
Nothing here changes anything; each function returns what would then be so.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from uuid import UUID

import msgspec

from earmark.domain.live_or_test_mode import Mode
from earmark.domain.money import AMOUNT_MAX, is_currency
from earmark.errors import IdempotencyMismatch, InvalidRequest, RefundRefused

ID_LENGTH_MAX = 100
REASON_LENGTH_MAX = 500
VOIDED = "voided"
"""The code of a payment that was given up before it was ever asked for: when it comes after all, it is refused."""


class EntryKind(StrEnum):
    """What happened to an account."""

    OPENED = "opened"
    CREDITED = "credited"
    SET_ASIDE = "set_aside"
    LET_GO = "let_go"
    TAKEN = "taken"
    GIVEN_BACK = "given_back"


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """How an account stands."""

    id: str
    currency: str
    mode: Mode
    created_at: datetime
    number: int = 0
    """That of its last entry."""
    balance: int = 0
    set_aside: int = 0

    @property
    def free(self) -> int:
        """What can be spent."""
        return self.balance - self.set_aside


class AccountEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One change of an account. Kind and id together are unique over all accounts."""

    account_id: str
    number: int
    kind: EntryKind
    id: str
    """Whose effect it is: a credit's own id, a refund's, or that of the payment."""
    amount: int = 0
    """What it changed of the balance."""
    aside: int = 0
    """What it changed of what is set aside."""
    balance: int
    set_aside: int
    at: datetime
    payment_id: UUID | None = None
    reason: str | None = None


class Draw(msgspec.Struct, frozen=True, kw_only=True):
    """A payment from an account: what was asked, which never changes, and what its entries say of it."""

    payment_id: UUID
    account_id: str
    currency: str
    mode: Mode
    amount: int
    automatic: bool
    created_at: datetime
    code: str | None = None
    """Why nothing was drawn; None where the account was good for it."""
    set_aside: int = 0
    let_go: int = 0
    taken: int = 0
    given_back: int = 0

    @property
    def waits(self) -> bool:
        """Whether money is set aside for it."""
        return self.set_aside > self.let_go + self.taken


def new_account(account_id: str, *, currency: str, mode: Mode, now: datetime) -> Account:
    """An account with nothing in it."""
    if not _is_id(account_id):
        raise InvalidRequest.at("account_id", f"has 1 to {ID_LENGTH_MAX} printable characters and no space")
    if not is_currency(currency):
        raise InvalidRequest.at("currency", "is the ISO 4217 code of a currency, such as EUR")
    return Account(id=account_id, currency=currency, mode=mode, created_at=now)


def first_entry(account: Account) -> AccountEntry:
    """That it was opened."""
    return AccountEntry(
        account_id=account.id,
        number=0,
        kind=EntryKind.OPENED,
        id=account.id,
        balance=0,
        set_aside=0,
        at=account.created_at,
    )


def credited(account: Account, amount: int, *, entry_id: str, reason: str | None, now: datetime) -> AccountEntry:
    """More money: a top-up, or a gift card that was bought."""
    if not 1 <= amount <= AMOUNT_MAX:
        raise InvalidRequest.at("amount", f"is from 1 to {AMOUNT_MAX}")
    if not _is_id(entry_id):
        raise InvalidRequest.at("entry_id", f"has 1 to {ID_LENGTH_MAX} printable characters and no space")
    if reason is not None and not (len(reason) <= REASON_LENGTH_MAX and reason.isprintable()):
        raise InvalidRequest.at("reason", f"has at most {REASON_LENGTH_MAX} printable characters")
    return _next(account, EntryKind.CREDITED, id=entry_id, amount=amount, reason=reason, at=now)


def why_not(account: Account | None, draw: Draw) -> str | None:
    """Why the account is not good for a payment; None when it is. An account of the other mode is as good as none."""
    if account is None or account.mode != draw.mode:
        return "account_unknown"
    if account.currency != draw.currency:
        return "currency_mismatch"
    return "insufficient_funds" if account.free < draw.amount else None


def drawn(account: Account, draw: Draw, *, now: datetime) -> AccountEntry:
    """The money is set aside, or taken at once."""
    key, of = str(draw.payment_id), draw.payment_id
    if draw.automatic:
        return _next(account, EntryKind.TAKEN, id=key, payment_id=of, amount=-draw.amount, at=now)
    return _next(account, EntryKind.SET_ASIDE, id=key, payment_id=of, aside=draw.amount, at=now)


def taken(account: Account, draw: Draw, *, now: datetime) -> AccountEntry:
    """What was set aside is the shop's."""
    assert draw.waits, "only what is set aside is taken"
    key, of, less = str(draw.payment_id), draw.payment_id, -draw.amount
    return _next(account, EntryKind.TAKEN, id=key, payment_id=of, amount=less, aside=less, at=now)


def let_go(account: Account, draw: Draw, *, now: datetime) -> AccountEntry:
    """What was set aside can be spent again."""
    assert draw.waits, "only what is set aside is let go"
    key, of = str(draw.payment_id), draw.payment_id
    return _next(account, EntryKind.LET_GO, id=key, payment_id=of, aside=-draw.amount, at=now)


def given_back(account: Account, draw: Draw, amount: int, *, refund_id: UUID, now: datetime) -> AccountEntry:
    """Money back, and never more than was taken."""
    left = draw.taken - draw.given_back
    if not 1 <= amount <= left:
        raise RefundRefused(available=left, asked=amount)
    kind, key = EntryKind.GIVEN_BACK, str(refund_id)
    return _next(account, kind, id=key, payment_id=draw.payment_id, amount=amount, at=now)


def check_same(known: Draw, asked: Draw) -> None:
    """One id is one payment: asked for differently, it is refused."""
    if _facts(known) != _facts(asked):
        raise IdempotencyMismatch


def _is_id(text: str) -> bool:
    return 1 <= len(text) <= ID_LENGTH_MAX and text.isprintable() and " " not in text


def _facts(draw: Draw) -> tuple[object, ...]:
    return draw.payment_id, draw.account_id, draw.currency, draw.mode, draw.amount, draw.automatic


def _next(
    account: Account,
    kind: EntryKind,
    *,
    id: str,  # noqa: A002 (the field's name)
    at: datetime,
    amount: int = 0,
    aside: int = 0,
    payment_id: UUID | None = None,
    reason: str | None = None,
) -> AccountEntry:
    return AccountEntry(
        account_id=account.id,
        number=account.number + 1,
        kind=kind,
        id=id,
        amount=amount,
        aside=aside,
        balance=account.balance + amount,
        set_aside=account.set_aside + aside,
        at=at,
        payment_id=payment_id,
        reason=reason,
    )
