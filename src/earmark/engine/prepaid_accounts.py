"""Accounts: how much money each account has with the shop, and the commands that change it, one transaction each.

Every command locks the account before it reads anything else, decides by what it then reads, and writes a payment, a
guarded change of the account and its entry together, or nothing. An effect has an id; a repeat finds it done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from earmark.domain import prepaid_account as account_rules
from earmark.domain.prepaid_account import Account, AccountEntry, Draw, EntryKind
from earmark.errors import IdempotencyMismatch, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime
    from uuid import UUID

    from earmark.domain.live_or_test_mode import Mode

T = TypeVar("T")

LIST_MAX = 500
START = -1
"""Before the first entry."""


class AccountSteps(Protocol):
    """What one transaction can do. The account is locked before anything else is looked at."""

    now: datetime

    async def lock(self, account_id: str) -> Account | None:
        """Lock the account: no other transaction changes it until this one ends."""
        ...

    async def find(self, payment_id: UUID) -> Draw | None:
        """A payment, with what its entries say."""
        ...

    async def find_entry(self, kind: EntryKind, entry_id: str) -> AccountEntry | None:
        """The entry of an effect that an earlier request may have made."""
        ...

    async def find_code(self, digests: Sequence[bytes]) -> str | None:
        """The id of the account that a code opens, by what the code may be kept as."""
        ...

    async def open(self, account: Account, entry: AccountEntry, digest: bytes) -> bool:
        """A new account with its first entry; False when there is one of this id, or one that this code opens."""
        ...

    async def draw(self, draw: Draw) -> bool:
        """Record a requested payment, with the code of its refusal if any; False when it was recorded before."""
        ...

    async def post(self, entry: AccountEntry) -> None:
        """The account becomes as its next entry says, if it is as that entry found it and good for it."""
        ...


class AccountBooks(Protocol):
    """Where the accounts are kept."""

    async def transact(self, work: Callable[[AccountSteps], Awaitable[T]]) -> T:
        """All of it or nothing. The work awaits nothing but its steps, and may be run again."""
        ...

    async def read(self, account_id: str) -> Account | None:
        """As the last commit left it."""
        ...

    async def find_code(self, digests: Sequence[bytes]) -> str | None:
        """The id of the account that a code opens, in one look-up, whether there is one or not."""
        ...

    async def entries(self, account_id: str, *, after: int, limit: int) -> list[AccountEntry]:
        """The account's entries after this number, in order, at most `limit`."""
        ...

    async def find(self, payment_id: UUID) -> Draw | None:
        """A payment, with what its entries say."""
        ...

    async def find_entry(self, kind: EntryKind, entry_id: str) -> AccountEntry | None:
        """The entry of one effect, by its kind and id; None when there is none."""
        ...

    async def draws(self, *, mode: Mode, since: datetime, after: UUID, limit: int) -> list[Draw]:
        """Payments by their beginning, and by id where that is the same: those behind this moment and id."""
        ...


class Accounts:
    """What can be done with accounts, over any store."""

    def __init__(self, books: AccountBooks) -> None:
        self._books = books
        self.read = books.read
        self.find_code = books.find_code
        self.find = books.find
        self.find_entry = books.find_entry
        self.draws = books.draws

    async def open(self, account_id: str, *, digests: Sequence[bytes], currency: str, mode: Mode) -> Account:
        """A new account, with nothing in it; of a code that opens one already, that account.

        The caller passes only digests of the code, the one in use first, and never the code.
        """

        async def work(steps: AccountSteps) -> Account:
            new = account_rules.new_account(account_id, currency=currency, mode=mode, now=steps.now)
            found = await steps.find_code(digests)
            if found is None and await steps.open(new, account_rules.first_entry(new), digests[0]):
                return new
            found = found or await steps.find_code(digests)
            if found is None:
                raise InvalidRequest.at("account_id", "is the id of another account")
            known = await _locked(steps, found)
            if (known.currency, known.mode) != (currency, mode):
                raise InvalidRequest.at(
                    "code", f"already opens a {known.mode} account in {known.currency}; use another code"
                )
            return known

        return await self._books.transact(work)

    async def credit(self, account_id: str, amount: int, *, entry_id: str, reason: str | None = None) -> Account:
        """A top-up, or a gift card that was bought. The same entry again credits nothing more."""

        async def work(steps: AccountSteps) -> Account:
            account = await _locked(steps, account_id)
            entry = account_rules.credited(account, amount, entry_id=entry_id, reason=reason, now=steps.now)
            if known := await steps.find_entry(EntryKind.CREDITED, entry_id):
                if (known.account_id, known.amount) != (account_id, amount):
                    raise IdempotencyMismatch
                return account
            await steps.post(entry)
            return _after(account, entry)

        return await self._books.transact(work)

    async def entries(self, account_id: str, *, after: int = START, limit: int = LIST_MAX) -> list[AccountEntry]:
        """The entries of an account after this number, in order."""
        return await self._books.entries(account_id, after=after, limit=limit)

    async def draw(self, asked: Draw) -> Draw:
        """Set money aside for a payment, or take it at once; or record why not."""

        async def work(steps: AccountSteps) -> Draw:
            account = await steps.lock(asked.account_id)
            if known := await steps.find(asked.payment_id):
                account_rules.check_same(known, asked)
                return known
            code = account_rules.why_not(account, asked)
            new = await steps.draw(msgspec.structs.replace(asked, created_at=steps.now, code=code))
            if new and account is not None and code is None:
                await steps.post(account_rules.drawn(account, asked, now=steps.now))
            return await _found(steps, asked)

        return await self._books.transact(work)

    async def take(self, asked: Draw) -> Draw | None:
        """Take what was set aside; None for a payment that no request has opened here."""

        async def work(steps: AccountSteps) -> Draw | None:
            account = await steps.lock(asked.account_id)
            known = await steps.find(asked.payment_id)
            if known is None:
                return None
            account_rules.check_same(known, asked)
            if account is None or not known.waits:
                return known
            await steps.post(account_rules.taken(account, known, now=steps.now))
            return await _found(steps, asked)

        return await self._books.transact(work)

    async def let_go(self, asked: Draw) -> Draw:
        """Let go of what was set aside. A payment that was not requested yet is refused when its request comes."""

        async def work(steps: AccountSteps) -> Draw:
            account = await steps.lock(asked.account_id)
            known = await steps.find(asked.payment_id)
            if known is None:
                await steps.draw(msgspec.structs.replace(asked, created_at=steps.now, code=account_rules.VOIDED))
                return await _found(steps, asked)
            account_rules.check_same(known, asked)
            if account is None or not known.waits:
                return known
            await steps.post(account_rules.let_go(account, known, now=steps.now))
            return await _found(steps, asked)

        return await self._books.transact(work)

    async def give_back(self, asked: Draw, amount: int, *, refund_id: UUID) -> AccountEntry | None:
        """Put money back on the account it came from; None for a payment that no request has opened here."""

        async def work(steps: AccountSteps) -> AccountEntry | None:
            account = await steps.lock(asked.account_id)
            known = await steps.find(asked.payment_id)
            if known is None:
                return None
            account_rules.check_same(known, asked)
            if made := await steps.find_entry(EntryKind.GIVEN_BACK, str(refund_id)):
                if (made.payment_id, made.amount) != (asked.payment_id, amount):
                    raise IdempotencyMismatch
                return made
            if account is None:
                # Nothing was ever drawn from an account that is not there.
                return None
            entry = account_rules.given_back(account, known, amount, refund_id=refund_id, now=steps.now)
            await steps.post(entry)
            return entry

        return await self._books.transact(work)


class KeepsAccounts(Protocol):
    """A store that keeps accounts."""

    @property
    def accounts(self) -> Accounts:
        """What buyers have with the shop."""
        ...


async def _locked(steps: AccountSteps, account_id: str) -> Account:
    account = await steps.lock(account_id)
    if account is None:
        raise InvalidRequest.at("account_id", "names no account")
    return account


async def _found(steps: AccountSteps, asked: Draw) -> Draw:
    """The draw as it was just written, by us or by another process that we could not see.

    That process was asked for the same payment at another account, or at one that does not exist: no lock kept it out.
    """
    found = await steps.find(asked.payment_id)
    assert found is not None, "a payment stays"
    account_rules.check_same(found, asked)
    return found


def _after(account: Account, entry: AccountEntry) -> Account:
    return msgspec.structs.replace(account, number=entry.number, balance=entry.balance, set_aside=entry.set_aside)
