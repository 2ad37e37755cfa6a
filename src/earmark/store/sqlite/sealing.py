"""Sealing the codes of accounts in a SQLite file, a batch in each transaction. See `earmark.store.sealing`."""

from __future__ import annotations

import json
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from earmark.domain.method import NO_ACCOUNT, mask_code, refer
from earmark.store import queries, sealing
from earmark.store.sealing import BATCH, CONFLICT, LIFTED, Story

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Sequence

    from earmark.store.migrations import Tell
    from earmark.store.sealing import Codes


def seal(connection: sqlite3.Connection, codes: Codes | None, tell: Tell) -> int:
    """How many accounts and payments named a code in clear, and do no longer."""
    sealer = _Sealer(connection, codes, tell)
    total = 0
    for kind in (sealer.seal_accounts, sealer.seal_payments):
        while sealed := kind():
            total += sealed
    return total


class _Sealer:
    def __init__(self, connection: sqlite3.Connection, codes: Codes | None, tell: Tell) -> None:
        self._connection = connection
        self._codes = codes
        self._tell = tell
        self._sql = queries.sql("sqlite", "sealing.sql")
        self._after = ""

    def seal_accounts(self) -> int:
        """A batch of accounts, with their entries and what was asked of them."""
        with self._transaction():
            found = self._run("list_clear_accounts", BATCH)
            if found:
                codes = sealing.refuse_without_secret(self._codes)
                with self._lifted():
                    for row in found:
                        self._seal_account(row["id"], codes)
        return len(found)

    def seal_payments(self) -> int:
        """A batch of payments, with what their bookings, the journal and their keys say of them."""
        with self._transaction():
            found = self._run("list_clear_payments", self._after, BATCH)
            if found:
                codes = sealing.refuse_without_secret(self._codes)
                with self._lifted():
                    self._run("seal_strange_draws", NO_ACCOUNT)
                    for row in found:
                        self._seal_payment(row, codes)
                    about = json.dumps([row["booking_id"] for row in found])
                    self._strike(self._run("list_answers", about), [row["method"] for row in found])
                self._after = found[-1]["id"]
        return len(found)

    def _seal_account(self, code: str, codes: Codes) -> None:
        account_id, digest = sealing.new_id(), codes.digests(code)[0]
        if self._opened_by(code, codes):
            self._tell(f"{CONFLICT} {account_id}.")
            digest = secrets.token_bytes(len(digest))
        self._run("seal_entries", code, account_id)
        self._run("seal_draws", code, account_id)
        self._run("seal_account", code, account_id, digest.hex())

    def _seal_payment(self, row: Any, codes: Codes) -> None:
        code, account_id = row["method"], self._opened_by(row["method"], codes)
        self._run("seal_payment", row["id"], refer(account_id or NO_ACCOUNT, code))
        self._run("seal_booking", row["booking_id"], code, mask_code(code))
        self._strike(self._run("list_story", row["booking_id"]), [code])
        for key in self._run("list_payment_keys", row["id"]):
            request_hash = codes.seal(key["request_hash"])[0]
            for name in ("seal_payment_key", "seal_answer"):
                self._run(name, key["caller"], key["key"], request_hash)

    def _strike(self, entries: list[Any], clear: Sequence[str]) -> None:
        for entry in entries:
            before = Story(facts=entry["facts"], answer=entry["answer_body"])
            if (after := sealing.struck(before, clear)) != before:
                self._run("seal_story", entry["id"], *after)

    def _opened_by(self, code: str, codes: Codes) -> str | None:
        found = self._run("find_digest", json.dumps([digest.hex() for digest in codes.digests(code)]))
        return found[0]["id"] if found else None

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
