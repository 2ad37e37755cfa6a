"""The accounts in memory. Nothing here waits, so whoever works is alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from earmark.domain.account import Account, AccountEntry, Draw, EntryKind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from datetime import datetime
    from uuid import UUID

    from earmark.engine.accounts import AccountSteps
    from earmark.engine.ports.store import Clock

T = TypeVar("T")


class _Tables:
    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}
        self.codes: dict[bytes, str] = {}
        self.entries: dict[tuple[EntryKind, str], AccountEntry] = {}
        self.draws: dict[UUID, Draw] = {}

    def fork(self) -> _Tables:
        fork = _Tables()
        for name, table in vars(self).items():
            setattr(fork, name, dict(table))
        return fork

    def find_code(self, digests: Sequence[bytes]) -> str | None:
        return next((self.codes[digest] for digest in digests if digest in self.codes), None)

    def find(self, payment_id: UUID) -> Draw | None:
        draw = self.draws.get(payment_id)
        return _counted(draw, self.entries.values()) if draw else None


class MemoryAccounts:
    """A transaction works on a copy, which takes the place of the tables when it ends well."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tables = _Tables()

    async def transact(self, work: Callable[[AccountSteps], Awaitable[T]]) -> T:
        """At once, and alone."""
        steps = MemoryAccountSteps(self._tables.fork(), now=self._clock.now())
        result = await work(steps)
        self._tables = steps.tables
        return result

    async def read(self, account_id: str) -> Account | None:
        """By id."""
        return self._tables.accounts.get(account_id)

    async def find_code(self, digests: Sequence[bytes]) -> str | None:
        """By digest."""
        return self._tables.find_code(digests)

    async def entries(self, account_id: str, *, after: int, limit: int) -> list[AccountEntry]:
        """By number."""
        own = (entry for entry in self._tables.entries.values() if entry.account_id == account_id)
        return sorted((one for one in own if one.number > after), key=lambda one: one.number)[:limit]

    async def find(self, payment_id: UUID) -> Draw | None:
        """By id."""
        return self._tables.find(payment_id)

    async def find_entry(self, kind: EntryKind, entry_id: str) -> AccountEntry | None:
        """By kind and id."""
        return self._tables.entries.get((kind, entry_id))

    async def draws(self, *, live: bool, since: datetime, after: UUID, limit: int) -> list[Draw]:
        """In order."""
        own = (draw for draw in self._tables.draws.values() if draw.live == live)
        behind = [draw for draw in own if (draw.created_at, draw.payment_id) > (since, after)]
        ordered = sorted(behind, key=lambda draw: (draw.created_at, draw.payment_id))[:limit]
        return [_counted(draw, self._tables.entries.values()) for draw in ordered]


class MemoryAccountSteps:
    """The steps over dictionaries. The law of the schema stands here too: a write that breaks it is our bug."""

    def __init__(self, tables: _Tables, *, now: datetime) -> None:
        self.tables = tables
        self.now = now

    async def lock(self, account_id: str) -> Account | None:
        """Nobody else is about."""
        return self.tables.accounts.get(account_id)

    async def find(self, payment_id: UUID) -> Draw | None:
        """By id."""
        return self.tables.find(payment_id)

    async def find_entry(self, kind: EntryKind, entry_id: str) -> AccountEntry | None:
        """By kind and id."""
        return self.tables.entries.get((kind, entry_id))

    async def find_code(self, digests: Sequence[bytes]) -> str | None:
        """By digest."""
        return self.tables.find_code(digests)

    async def open(self, account: Account, entry: AccountEntry, digest: bytes) -> bool:
        """First come, first served."""
        if account.id in self.tables.accounts or digest in self.tables.codes:
            return False
        self.tables.codes[digest] = account.id
        self.tables.accounts[account.id] = account
        self.tables.entries[entry.kind, entry.id] = entry
        return True

    async def draw(self, draw: Draw) -> bool:
        """First come, first served."""
        return self.tables.draws.setdefault(draw.payment_id, draw) is draw

    async def post(self, entry: AccountEntry) -> None:
        """The account follows its entry."""
        account = self.tables.accounts[entry.account_id]
        assert entry.number == account.number + 1, f"account {account.id} was not locked"
        after = (account.balance + entry.amount, account.set_aside + entry.aside)
        assert after == (entry.balance, entry.set_aside), f"entry {entry.number} of {account.id} does not add up"
        assert 0 <= entry.set_aside <= entry.balance, f"account {account.id} is not good for it"
        assert (entry.kind, entry.id) not in self.tables.entries, f"{entry.kind} {entry.id} was there before"
        self.tables.entries[entry.kind, entry.id] = entry
        self.tables.accounts[account.id] = msgspec.structs.replace(
            account, number=entry.number, balance=entry.balance, set_aside=entry.set_aside
        )


def _counted(draw: Draw, entries: Iterable[AccountEntry]) -> Draw:
    own = [entry for entry in entries if entry.payment_id == draw.payment_id]

    def total(kind: EntryKind) -> int:
        return sum(max(abs(entry.amount), abs(entry.aside)) for entry in own if entry.kind is kind)

    return msgspec.structs.replace(
        draw,
        set_aside=total(EntryKind.SET_ASIDE),
        let_go=total(EntryKind.LET_GO),
        taken=total(EntryKind.TAKEN),
        given_back=total(EntryKind.GIVEN_BACK),
    )
