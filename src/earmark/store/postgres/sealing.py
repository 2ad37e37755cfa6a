"""Sealing the codes of accounts in PostgreSQL, a batch in each transaction. See `earmark.store.sealing`."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

from earmark.domain.payment_method import NO_ACCOUNT
from earmark.store import sealing, sql_files
from earmark.store.sealing import BATCH, PAGE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from earmark.store.sealing import Codes, Entry, Payment, RequestKey


class Sealer:
    """Over one connection; its caller opens a transaction for each batch, and tells the news when that is committed."""

    def __init__(self, connection: Any, codes: Codes | None) -> None:
        self._connection = connection
        self._codes = codes
        self._sql = sql_files.sql("postgres", "sealing.sql")
        self._after_account = ""
        self._after_payment = self._after_draw = UUID(int=0)
        self._page: list[Any] = []
        """Payments that were found in clear, and are not sealed yet."""
        self._answers: dict[str, list[UUID]] = {}
        """Entries that remember an answer about the bookings of the page."""
        self.news: list[str] = []
        """What an operator must know of the last batch."""

    @property
    def kinds(self) -> tuple[Callable[[], Awaitable[int]], ...]:
        """What is sealed, in this order: each batch says how many rows it was, and the last one is empty."""
        return self._seal_accounts, self._seal_payments, self._seal_strange_draws

    async def _seal_accounts(self) -> int:
        """A batch of accounts, with their entries and what was drawn from them."""
        self.news = []
        found = await self._fetch("lock_clear_accounts", self._after_account, BATCH)
        if not found:
            return 0
        codes = sealing.refuse_without_secret(self._codes)
        clear = [row["id"] for row in found]
        accounts, news = sealing.plan_accounts(clear, await self._opened(clear, codes), codes)
        _, ids, digests = (list(column) for column in zip(*accounts, strict=True))
        async with self._sealing():
            await self._fetch("seal_draws_of_accounts", clear, ids)
            await self._fetch("seal_entries", clear, ids)
            await self._fetch("seal_accounts", clear, ids, digests)
        self.news, self._after_account = news, clear[-1]
        return len(found)

    async def _seal_payments(self) -> int:
        """A batch of payments, with what their bookings, the journal and their keys say of them."""
        self.news = []
        if not self._page:
            await self._turn_page()
        batch = self._page[:BATCH]
        if not batch:
            return 0
        codes = sealing.refuse_without_secret(self._codes)
        bookings = [row["booking_id"] for row in batch]
        await self._fetch("lock_bookings", bookings)
        found = await self._fetch("lock_payments", [row["id"] for row in batch])
        opened = await self._opened([row["method"] for row in found], codes)
        payments = sealing.plan_payments(found, opened, codes)
        keys = sealing.plan_keys(await self._fetch("list_payment_keys", [row["id"] for row in found]), codes)
        answers = [entry for booking in bookings for entry in self._answers.get(str(booking), ())]
        told = await self._fetch("lock_entries", bookings, answers)
        entries = sealing.plan_entries(told, payments, keys, codes)
        sent = await self._fetch("lock_messages", [entry["id"] for entry in told])
        messages = sealing.plan_messages(sent, told, payments)
        async with self._sealing():
            await self._write(payments, keys, entries)
            await self._fetch("seal_messages", *_columns(messages, 2))
        del self._page[:BATCH]
        return len(batch)

    async def _write(self, payments: list[Payment], keys: list[RequestKey], entries: list[Entry]) -> None:
        ids, codes = [payment.id for payment in payments], [payment.code for payment in payments]
        of = [payment.booking_id for payment in payments]
        await self._fetch("seal_bookings", of, codes, [payment.shown for payment in payments])
        await self._fetch("seal_payments", ids, [payment.method for payment in payments])
        await self._fetch("seal_draws_of_payments", ids, codes, [payment.account_id for payment in payments])
        await self._fetch("seal_payment_keys", *_columns(keys, 4))
        await self._fetch("seal_journal", *_columns(entries, 5))

    async def _seal_strange_draws(self) -> int:
        """A batch of what was asked of no account, and has no payment that tells of it."""
        self.news = []
        found = [row["id"] for row in await self._fetch("list_strange_draws", self._after_draw, BATCH, NO_ACCOUNT)]
        if found:
            async with self._sealing():
                await self._fetch("seal_strange_draws", found, NO_ACCOUNT)
            self._after_draw = found[-1]
        return len(found)

    async def _turn_page(self) -> None:
        """The next payments in clear, and the answers about them: these are looked through once for many payments."""
        self._page, self._answers = await self._fetch("list_clear_payments", self._after_payment, PAGE), {}
        if self._page:
            self._after_payment = self._page[-1]["id"]
            about = [str(row["booking_id"]) for row in self._page]
            for row in await self._fetch("list_answers", about):
                self._answers.setdefault(row["about"], []).append(row["id"])

    async def _opened(self, clear: Iterable[str], codes: Codes) -> dict[bytes, str]:
        """The accounts that codes open, by digest."""
        digests = [digest for code in set(clear) for digest in codes.digests(code)]
        return {row["code_digest"]: row["id"] for row in await self._fetch("find_digests", digests)}

    async def _fetch(self, name: str, *arguments: object) -> list[Any]:
        found: list[Any] = await self._connection.fetch(self._sql[name], *arguments)
        return found

    @asynccontextmanager
    async def _sealing(self) -> AsyncIterator[None]:
        """With the guards' exception, until the end of the block; what fails in it undoes the whole transaction."""
        await self._fetch("begin_sealing")
        # An account and its entries name each other: both are right again at the end.
        await self._connection.execute("SET CONSTRAINTS ALL DEFERRED")
        yield
        await self._connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        await self._fetch("end_sealing")


def _columns(rows: Iterable[tuple[Any, ...]], width: int) -> list[list[Any]]:
    """As a statement for all rows takes them."""
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(width)]
