"""Sealing the codes of accounts in PostgreSQL, a batch in each transaction. See `earmark.store.sealing`."""

from __future__ import annotations

import secrets
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

from earmark.domain.method import NO_ACCOUNT, mask_code, refer
from earmark.store import queries, sealing
from earmark.store.sealing import BATCH, CONFLICT, LIFTED, Story

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from earmark.store.migrations import Tell
    from earmark.store.sealing import Codes


class Sealer:
    """Over one connection; whoever calls it opens a transaction for each batch."""

    def __init__(self, connection: Any, codes: Codes | None, tell: Tell) -> None:
        self._connection = connection
        self._codes = codes
        self._tell = tell
        self._sql = queries.sql("postgres", "sealing.sql")
        self._after = UUID(int=0)

    @property
    def kinds(self) -> tuple[Callable[[], Awaitable[int]], ...]:
        """What is sealed, in this order: each batch says how many rows it was, and the last one is empty."""
        return self._seal_accounts, self._seal_payments

    async def _seal_accounts(self) -> int:
        """A batch of accounts, with their entries and what was asked of them."""
        found = await self._fetch("list_clear_accounts", BATCH)
        if found:
            codes = sealing.refuse_without_secret(self._codes)
            async with self._lifted():
                for row in found:
                    await self._seal_account(row["id"], codes)
        return len(found)

    async def _seal_payments(self) -> int:
        """A batch of payments, with what their bookings, the journal and their keys say of them."""
        found = await self._fetch("list_clear_payments", self._after, BATCH)
        if found:
            codes = sealing.refuse_without_secret(self._codes)
            async with self._lifted():
                await self._fetch("seal_strange_draws", NO_ACCOUNT)
                for row in found:
                    await self._seal_payment(row, codes)
                about = [str(row["booking_id"]) for row in found]
                await self._strike(await self._fetch("list_answers", about), [row["method"] for row in found])
            self._after = found[-1]["id"]
        return len(found)

    async def _seal_account(self, code: str, codes: Codes) -> None:
        account_id, digest = sealing.new_id(), codes.digests(code)[0]
        if await self._opened_by(code, codes):
            self._tell(f"{CONFLICT} {account_id}.")
            digest = secrets.token_bytes(len(digest))
        await self._fetch("seal_entries", code, account_id)
        await self._fetch("seal_draws", code, account_id)
        await self._fetch("seal_account", code, account_id, digest)

    async def _seal_payment(self, row: Any, codes: Codes) -> None:
        code, account_id = row["method"], await self._opened_by(row["method"], codes)
        await self._fetch("seal_payment", row["id"], refer(account_id or NO_ACCOUNT, code))
        await self._fetch("seal_booking", row["booking_id"], code, mask_code(code))
        await self._strike(await self._fetch("list_story", row["booking_id"]), [code])
        for key in await self._fetch("list_payment_keys", row["id"]):
            request_hash = codes.seal(key["request_hash"])[0]
            for name in ("seal_payment_key", "seal_answer"):
                await self._fetch(name, key["caller"], key["key"], request_hash)

    async def _strike(self, entries: list[Any], clear: Sequence[str]) -> None:
        for entry in entries:
            before = Story(facts=entry["facts"], answer=entry["answer_body"])
            if (after := sealing.struck(before, clear)) != before:
                await self._fetch("seal_story", entry["id"], *after)

    async def _opened_by(self, code: str, codes: Codes) -> str | None:
        found = await self._fetch("find_digest", list(codes.digests(code)))
        return found[0]["id"] if found else None

    async def _fetch(self, name: str, *arguments: object) -> list[Any]:
        found: list[Any] = await self._connection.fetch(self._sql[name], *arguments)
        return found

    @asynccontextmanager
    async def _lifted(self) -> AsyncIterator[None]:
        """Without the guards, until the end of the block; what fails in it undoes the transaction as a whole."""
        guards = await self._fetch("find_lifted", list(LIFTED))
        for guard in guards:
            await self._connection.execute(f"ALTER TABLE {guard['table_name']} DISABLE TRIGGER {guard['trigger_name']}")
        # An account and its entries name each other: both are right again at the end.
        await self._connection.execute("SET CONSTRAINTS ALL DEFERRED")
        yield
        await self._connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        for guard in guards:
            await self._connection.execute(f"ALTER TABLE {guard['table_name']} ENABLE TRIGGER {guard['trigger_name']}")
