"""Contacts of bookings, and the mails about them, in either database: the statements differ, the steps do not."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from earmark.domain.contact import Contact
from earmark.domain.id_types import BookingId, Buyer, EntryId, MailId
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.mail import KEPT_SECONDS, Mail, MailKind, mail_id_of, mail_of
from earmark.domain.mail_limits import LIMITS_DEFAULT, WINDOW_SECONDS, MailLimits
from earmark.engine.ports.contacts_and_mails import ContactSave, MailBacklog, MailLease
from earmark.store.both_databases.mail_hashes import buyer_hash, recipient_hash
from earmark.store.both_databases.named_statement_runner_protocols import SECONDS_MAX, execute_alone, from_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from earmark.engine.ports.contacts_and_mails import MailResult
    from earmark.engine.ports.number_and_read_journal import Numbered
    from earmark.store.both_databases.named_statement_runner_protocols import StatementStore, StatementTransaction


class StoredContacts:
    """The contacts of a store's bookings."""

    def __init__(self, store: StatementStore) -> None:
        self._store = store

    async def read(self, booking_id: BookingId) -> Contact | None:
        """By the key of its booking."""
        found = await self._store.read_rows("read_contact", booking_id)
        return from_row(found[0], Contact) if found else None

    async def save(self, contact: Contact, *, buyer: Buyer, queue: bool, by_shop: bool) -> ContactSave:
        """Under a lock of the booking: an erasure of the buyer comes before it, and finds no booking, or after it."""
        c = contact

        async def work(transaction: StatementTransaction) -> ContactSave:
            now = (await transaction.begin([])).now
            if not await transaction.fetch("lock_booking_of_contact", c.booking_id, buyer, now):
                return ContactSave.BOOKING_MOVED
            before = await transaction.fetch("read_contact", c.booking_id)
            moved = bool(before) and before[0]["email"] != c.email
            kept_since = now - timedelta(seconds=KEPT_SECONDS)
            if moved and queue and not by_shop and await transaction.fetch("find_mailed", c.booking_id, kept_since):
                return ContactSave.ADDRESS_STAYS
            changed = await transaction.execute("save_contact", c.booking_id, c.name, c.email, c.language, now)
            if changed and queue:
                await _queue_confirmation(transaction, c.booking_id, again=by_shop and moved, now=now)
            return ContactSave.KEPT

        return await self._store.transact(work, within=SECONDS_MAX)


async def _queue_confirmation(
    transaction: StatementTransaction, booking_id: BookingId, *, again: bool, now: datetime
) -> None:
    """Queue the mail about the confirmation that the booking stands by, if there is one."""
    found = await transaction.fetch("find_confirmation", booking_id)
    if not found:
        return
    entry_id, kind = from_row(found[0], _Found).id, MailKind.CONFIRMED
    mail = Mail(id=mail_id_of(entry_id, kind), booking_id=booking_id, entry_id=entry_id, kind=kind)
    await transaction.execute("send_mail_again", mail.id, now, again)
    await transaction.execute("queue_mails", _rows([mail]), now)


class _Found(msgspec.Struct, frozen=True, kw_only=True):
    id: EntryId


class StoredMails:
    """The mails of a store."""

    def __init__(self, store: StatementStore) -> None:
        self._store = store

    async def queue_entries(self, transaction: StatementTransaction, numbered: Iterable[Numbered]) -> None:
        """Queue the mails about these entries, in the transaction that has numbered them.

        Only for bookings with a contact: a contact that comes later queues its mail itself.
        """
        mails = [mail for one in numbered if (mail := mail_of(one.entry))]
        if mails:
            await transaction.execute("queue_mails", _rows(mails), (await transaction.begin([])).now)

    async def claim(self, *, limit: int, lease_seconds: float, limits: MailLimits = LIMITS_DEFAULT) -> MailLease:
        """A plain read first: where nothing is due, SQLite's one writer is left to bookings."""
        now = await self._store.now()
        if not await self._store.read_rows("find_due_mail", now):
            return MailLease(mails=(), now=now)

        async def work(transaction: StatementTransaction) -> MailLease:
            now = (await transaction.begin([])).now
            until = now + timedelta(seconds=lease_seconds)
            found = await transaction.fetch("claim_mails", now, until, limit)
            transaction.wrote = bool(found)
            # Ids of entries sort by age: a buyer reads of a sale before its refund.
            mails = sorted((from_row(row, Mail) for row in found), key=lambda mail: mail.entry_id)
            above_limit = await _find_above_limits(transaction, mails, limits, now=now) if mails else {}
            return MailLease(mails=mails, now=now, above_limit=above_limit)

        return await self._store.transact(work, within=SECONDS_MAX)

    async def record(self, results: Sequence[MailResult]) -> None:
        """One by one; the rows are this mailer's, so no transaction waits for another."""

        async def work(transaction: StatementTransaction) -> None:
            now = (await transaction.begin([])).now
            for r in sorted(results, key=lambda result: result.mail_id):
                await transaction.execute(
                    "record_mail", r.mail_id, r.attempt, r.state.value, r.due_at, now, r.tried, r.error
                )

        await self._store.transact(work, within=SECONDS_MAX)

    async def backlog(self, *, limit: int) -> MailBacklog:
        """By the two partial indexes."""
        (row,) = await self._store.read_rows("count_mails", limit)
        return from_row(row, MailBacklog)

    async def prune(self, *, before: datetime, limit: int) -> int:
        """By the index of what has ended."""
        return await execute_alone(self._store, "prune_mails", before, limit)


async def _find_above_limits(
    transaction: StatementTransaction, mails: Sequence[Mail], limits: MailLimits, *, now: datetime
) -> dict[MailId, str]:
    """Note whom these mails go to, and find which are too many."""
    bookings = _json(sorted({str(mail.booking_id) for mail in mails}))
    found = [from_row(row, _Recipient) for row in await transaction.fetch("find_recipients", bookings)]
    known = {one.booking_id: one for one in found}
    noted = [
        {"id": mail.id, "recipient": recipient_hash(to.mode, to.email), "buyer": buyer_hash(to.mode, to.buyer)}
        for mail in mails
        if (to := known.get(mail.booking_id))
    ]
    await transaction.execute("note_recipients", _json(noted))
    since = now - timedelta(seconds=WINDOW_SECONDS)
    ids = _json([mail.id for mail in mails])
    rows = await transaction.fetch("find_above_limits", ids, since, limits.per_recipient, limits.per_buyer)
    judged = [from_row(row, _Judged) for row in rows]
    return {one.id: one.why for one in judged if one.why is not None}


class _Recipient(msgspec.Struct, frozen=True, kw_only=True):
    booking_id: BookingId
    mode: Mode
    buyer: Buyer
    email: str


class _Judged(msgspec.Struct, frozen=True, kw_only=True):
    id: MailId
    why: str | None


def _json(rows: object) -> str:
    return msgspec.json.encode(rows).decode()


def _rows(mails: Iterable[Mail]) -> str:
    """The rows as JSON, for one statement; by id, so that two transactions queue the same mails in one order."""
    rows = sorted(
        ({"id": m.id, "booking_id": m.booking_id, "entry_id": m.entry_id, "kind": m.kind} for m in mails),
        key=lambda row: str(row["id"]),
    )
    return _json(rows)
