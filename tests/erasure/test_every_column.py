"""Every column that can hold a name is either rewritten by an erasure, or here with the reason why none gets there."""

from __future__ import annotations

from typing import Any

import asyncpg

REWRITTEN = {
    "bookings": {"buyer", "payment_id", "payment_method"},
    "buyer_totals": {"buyer"},
    "deliveries": {"body", "error"},
    "journal": {"actor", "reason", "facts", "caller", "key", "answer_body"},
    "mails": {"recipient_hash", "buyer_hash"},
    "outside_payments": {"payment_id"},
    "payers": {"buyer"},
    "payment_keys": {"caller", "key"},
    "payments": {"method", "message", "action", "return_url"},
    "refunds": {"reason"},
}
DELETED = {"booking_contacts": {"name", "email", "language"}}
"""The whole row goes."""
NAMELESS = {
    # Whom a mail goes to is read from the contact when it is sent. An error is a code of Earmark's own.
    "mails": {"kind", "state", "error"},
    # The shop's own records, not a buyer's.
    "api_keys": {"id", "name", "mode", "scopes", "hash", "old_hash"},
    "events": {"id", "name", "currency", "mode", "on_decline"},
    "pools": {"event_id", "id"},
    "seats": {"event_id", "id", "row_name", "section", "category"},
    "webhooks": {"mode", "url", "types", "event_id", "description", "secret", "old_secret", "disabled_because"},
    # Keys of requests about webhooks, which need the right to manage: no buyer's token has it.
    "webhook_keys": {"caller", "key", "request_hash"},
    # Seats, pools and random secrets; a scan is sent by a shop's key, under a nonce of its scanner.
    "ticket_pages": {"secret"},
    "tickets": {"event_id", "kind", "name", "secret"},
    "ticket_scans": {"caller", "nonce", "mode", "code_hash", "event_id", "reason"},
    # An account is money and stays; its id is no secret and no name.
    "accounts": {"id", "currency", "mode", "code_digest"},
    "account_entries": {"account_id", "kind", "id", "reason"},
    "account_payments": {"account_id", "currency", "mode", "code"},
    # States and other constants of Earmark, ids of its own, and a gateway's ids.
    "beats": {"role", "host", "version", "outcome"},
    "bookings": {"event_id", "mode", "state", "lines", "currency"},
    "buyer_totals": {"event_id"},
    "callbacks": {"gateway", "id"},
    "deliveries": {"type", "state"},
    "earmark_migrations": {"name", "checksum"},
    "erasures": {"pseudonym"},
    # A hash of the request, for as long as its key is kept.
    "journal": {"event_id", "verb", "before", "after", "request_hash"},
    "marks": {"name"},
    "outside_payments": {"mode"},
    "payers": {"mode", "tries"},
    "payment_keys": {"request_hash"},
    "payments": {"event_id", "mode", "gateway", "currency", "state", "gateway_id", "code"},
    "refunds": {"state", "gateway_id", "code"},
}
TEXTS = """
SELECT table_name, column_name FROM information_schema.columns
 WHERE table_schema = current_schema() AND data_type IN ('text', 'json', 'jsonb', 'bytea', 'ARRAY', 'character varying')
"""


async def test_every_column_that_can_hold_a_name_is_known(postgres_url: str) -> None:
    """An engineer who adds one says here, and to `earmark_erase_buyer` in a migration, what becomes of it."""
    connection = await asyncpg.connect(postgres_url)
    found: dict[str, set[str]] = {}
    for table, column in await connection.fetch(TEXTS):
        found.setdefault(table, set()).add(column)
    await connection.close()
    known: dict[str, Any] = {
        table: REWRITTEN.get(table, set()) | DELETED.get(table, set()) | NAMELESS.get(table, set())
        for table in REWRITTEN.keys() | DELETED.keys() | NAMELESS.keys()
    }
    unknown = {(table, column) for table in found for column in found[table] - known.get(table, set())}
    assert not unknown
    assert not any(REWRITTEN.get(table, set()) & columns for table, columns in NAMELESS.items())
