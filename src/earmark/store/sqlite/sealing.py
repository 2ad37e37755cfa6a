"""Sealing the codes of accounts in a SQLite file, a batch in each transaction. See `earmark.store.sealing`."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from earmark.domain.payment_method import NO_ACCOUNT
from earmark.store import sealing, sql_files
from earmark.store.sealing import BATCH, LIFTED, PAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from earmark.store.migrations import Tell
    from earmark.store.sealing import Codes


def seal(connection: sqlite3.Connection, codes: Codes | None, tell: Tell) -> int:
    """How many accounts and payments named a code in clear, and do no longer."""
    # A page or a part of one that is no longer used is overwritten with zeros.
    connection.execute("PRAGMA secure_delete = ON")
    sealer = _Sealer(connection, codes)
    total = 0
    for kind in (sealer.seal_accounts, sealer.seal_payments, sealer.seal_strange_draws):
        began = time.monotonic()
        while sealed := kind():
            total += sealed
            for line in sealer.news:
                tell(line)
            time.sleep(sealing.rest(time.monotonic() - began))
            began = time.monotonic()
    if total:
        # The write-ahead log has old pages. Another process may be reading them; then they go with a later checkpoint.
        with suppress(sqlite3.OperationalError):
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return total


class _Sealer:
    def __init__(self, connection: sqlite3.Connection, codes: Codes | None) -> None:
        self._connection = connection
        self._codes = codes
        self._sql = sql_files.sql("sqlite", "sealing.sql")
        self._after_account = self._after_payment = self._after_draw = ""
        self._page: list[Any] = []
        """Payments that were found in clear, and are not sealed yet."""
        self._answers: dict[str, list[str]] = {}
        """Entries that remember an answer about the bookings of the page."""
        self.news: list[str] = []
        """What an operator must know of the last batch."""

    def seal_accounts(self) -> int:
        """A batch of accounts, with their entries and what was drawn from them."""
        with self._transaction():
            clear = [row["id"] for row in self._run("list_clear_accounts", self._after_account, BATCH)]
            if clear:
                codes = sealing.refuse_without_secret(self._codes)
                accounts, self.news = sealing.plan_accounts(clear, self._opened(clear, codes), codes)
                with self._lifted():
                    for account in accounts:
                        self._run("seal_draws_of_account", account.code, account.id)
                        self._run("seal_entries", account.code, account.id)
                        self._run("seal_account", account.code, account.id, account.digest.hex())
                self._after_account = clear[-1]
        return len(clear)

    def seal_payments(self) -> int:
        """A batch of payments, with what their bookings, the journal and their keys say of them."""
        self.news = []
        if not self._page:
            self._turn_page()
        batch = self._page[:BATCH]
        if batch:
            codes = sealing.refuse_without_secret(self._codes)
            with self._transaction():
                write = self._plan_payments(batch, codes)
                with self._lifted():
                    write()
            del self._page[:BATCH]
        return len(batch)

    def _plan_payments(self, batch: list[Any], codes: Codes) -> Callable[[], None]:
        """All that is read and computed, and what is written of it."""
        bookings = [row["booking_id"] for row in batch]
        found = self._run("list_payments", json.dumps([row["id"] for row in batch]))
        payments = sealing.plan_payments(found, self._opened([row["method"] for row in found], codes), codes)
        keys = sealing.plan_keys(self._run("list_payment_keys", json.dumps([row["id"] for row in found])), codes)
        answers = [entry for booking in bookings for entry in self._answers.get(booking, ())]
        told = self._run("list_entries", json.dumps(bookings), json.dumps(answers))
        entries = sealing.plan_entries(told, payments, keys, codes)
        sent = self._run("list_messages", json.dumps([entry["id"] for entry in told]))
        messages = sealing.plan_messages(sent, told, payments)

        def write() -> None:
            for payment in payments:
                self._run("seal_booking", payment.booking_id, payment.code, payment.shown)
                self._run("seal_payment", payment.id, payment.method)
                self._run("seal_draw", payment.id, payment.code, payment.account_id)
            for key in keys:
                self._run("seal_payment_key", *key)
            for entry in entries:
                self._run("seal_journal", *entry)
            for message in messages:
                self._run("seal_message", *message)

        return write

    def seal_strange_draws(self) -> int:
        """A batch of what was asked of no account, and has no payment that tells of it."""
        self.news = []
        found = [row["id"] for row in self._run("list_strange_draws", self._after_draw, BATCH, NO_ACCOUNT)]
        if found:
            with self._transaction(), self._lifted():
                for draw in found:
                    self._run("seal_strange_draw", draw, NO_ACCOUNT)
            self._after_draw = found[-1]
        return len(found)

    def _turn_page(self) -> None:
        """The next payments in clear, and the answers about them: these are looked through once for many payments."""
        self._page, self._answers = self._run("list_clear_payments", self._after_payment, PAGE), {}
        if self._page:
            self._after_payment = self._page[-1]["id"]
            for row in self._run("list_answers", json.dumps([row["booking_id"] for row in self._page])):
                self._answers.setdefault(row["about"], []).append(row["id"])

    def _opened(self, clear: Iterable[str], codes: Codes) -> dict[bytes, str]:
        """The accounts that codes open, by digest."""
        digests = [digest.hex() for code in set(clear) for digest in codes.digests(code)]
        found = self._run("find_digests", json.dumps(digests))
        return {bytes.fromhex(row["code_digest"]): row["id"] for row in found}

    def _run(self, name: str, *arguments: object) -> list[Any]:
        return self._connection.execute(self._sql[name], arguments).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            # An account and its entries name each other: both are right again at the end.
            self._connection.execute("PRAGMA defer_foreign_keys = ON")
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    @contextmanager
    def _lifted(self) -> Iterator[None]:
        """Without the guards, until the end of the block; what fails in it undoes the transaction as a whole."""
        guards = self._run("find_lifted", json.dumps(LIFTED))
        for guard in guards:
            self._connection.execute(f'DROP TRIGGER "{guard["name"]}"')
        yield
        for guard in guards:
            self._connection.execute(guard["sql"])
