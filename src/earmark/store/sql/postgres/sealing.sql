-- What `earmark migrate` does after the migrations, as the owner of the tables: no code of an account stays in clear.
-- It locks the rows of a batch in the order of all transactions and no table, reads, and only then writes: each
-- statement is for all rows of the batch.

-- name: begin_sealing
-- From here to the end of the transaction the guards make their exception.
INSERT INTO sealings (transaction) VALUES (pg_current_xact_id())
ON CONFLICT (one) DO UPDATE SET transaction = excluded.transaction;

-- name: end_sealing
-- And no longer.
UPDATE sealings SET transaction = NULL;

-- name: lock_clear_accounts
-- Those that have no digest: their id is their code.
SELECT id FROM accounts WHERE code_digest IS NULL AND id > $1 ORDER BY id LIMIT $2 FOR UPDATE;

-- name: find_digests
-- The accounts that codes open.
SELECT id, code_digest FROM accounts WHERE code_digest = ANY ($1::bytea[]) LIMIT 10000;

-- name: seal_draws_of_accounts
-- What was drawn from the accounts, found by the entries about it.
UPDATE account_payments d SET account_id = n.id
  FROM unnest($1::text[], $2::text[]) AS n (code, id) JOIN account_entries e ON e.account_id = n.code
 WHERE d.id = e.payment_id AND d.account_id = n.code;

-- name: seal_entries
-- The first entry of an account has the account's id as its own.
UPDATE account_entries e SET account_id = n.id, id = CASE WHEN e.kind = 'opened' THEN n.id ELSE e.id END
  FROM unnest($1::text[], $2::text[]) AS n (code, id) WHERE e.account_id = n.code;

-- name: seal_accounts
-- Last, for entries and draws are found by the id that goes.
UPDATE accounts a SET id = n.id, code_digest = n.digest
  FROM unnest($1::text[], $2::text[], $3::bytea[]) AS n (code, id, digest) WHERE a.id = n.code;

-- name: list_clear_payments
-- Payments whose method is a code, on from an id. One whose account has yet to be sealed waits for that.
SELECT p.id, p.booking_id FROM payments p
 WHERE p.gateway = 'balance' AND p.method NOT LIKE '________-____-____-____-____________/…%' AND p.id > $1::uuid
   AND NOT EXISTS (SELECT 1 FROM accounts a WHERE a.id = p.method AND a.code_digest IS NULL)
 ORDER BY p.id LIMIT $2;

-- name: list_answers
-- Which entries only remember an answer about some bookings: by the index of keys, which have a day to live.
SELECT id, facts ->> 'booking_id' AS about FROM journal
 WHERE key IS NOT NULL AND booking_id IS NULL AND facts ->> 'booking_id' = ANY ($1::text[]) LIMIT 100000;

-- name: lock_bookings
-- Bookings come before their payments.
SELECT id FROM bookings WHERE id = ANY ($1::uuid[]) ORDER BY id LIMIT 1000 FOR NO KEY UPDATE;

-- name: lock_payments
-- Those that no other process has sealed meanwhile, with the account that each was drawn from.
SELECT p.id, p.booking_id, p.method, d.account_id AS drawn_from
  FROM payments p LEFT JOIN account_payments d ON d.id = p.id
 WHERE p.id = ANY ($1::uuid[]) AND p.method NOT LIKE '________-____-____-____-____________/…%'
 ORDER BY p.id LIMIT 1000 FOR NO KEY UPDATE OF p;

-- name: list_payment_keys
-- The requests that opened payments.
SELECT caller, key, request_hash FROM payment_keys WHERE payment_id = ANY ($1::uuid[]) LIMIT 100000;

-- name: lock_entries
-- What the journal says of bookings, and what it remembers to answer about them.
SELECT id, coalesce(booking_id::text, facts ->> 'booking_id') AS about, facts::text AS facts, answer_body, caller, key, request_hash
  FROM journal WHERE booking_id = ANY ($1::uuid[]) OR id = ANY ($2::uuid[]) ORDER BY id LIMIT 100000 FOR NO KEY UPDATE;

-- name: lock_messages
-- What webhooks are sent of these entries, or were sent lately; by the key that says that an entry is queued once.
SELECT d.id, d.entry_id, d.body FROM webhooks w JOIN deliveries d ON d.webhook_id = w.id AND d.entry_id = ANY ($1::uuid[])
 ORDER BY d.id LIMIT 100000 FOR NO KEY UPDATE OF d;

-- name: seal_bookings
-- A booking shows its method, and needs no more of it.
UPDATE bookings b SET payment_method = n.shown
  FROM unnest($1::uuid[], $2::text[], $3::text[]) AS n (id, code, shown) WHERE b.id = n.id AND b.payment_method = n.code;

-- name: seal_payments
-- They refer to accounts from now on.
UPDATE payments p SET method = n.method FROM unnest($1::uuid[], $2::text[]) AS n (id, method) WHERE p.id = n.id;

-- name: seal_draws_of_payments
-- What was asked of an account and not drawn, which has no entry.
UPDATE account_payments d SET account_id = n.account_id
  FROM unnest($1::uuid[], $2::text[], $3::text[]) AS n (id, code, account_id) WHERE d.id = n.id AND d.account_id = n.code;

-- name: seal_payment_keys
-- A plain hash of a request with a short code in it could be tried out.
UPDATE payment_keys k SET key = n.sealed, request_hash = n.request_hash
  FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[]) AS n (caller, key, sealed, request_hash)
 WHERE k.caller = n.caller AND k.key = n.key;

-- name: seal_journal
-- The same story, with the codes struck out and the hashes sealed.
UPDATE journal j SET facts = n.facts::jsonb, answer_body = n.answer_body, key = n.key, request_hash = n.request_hash
  FROM unnest($1::uuid[], $2::text[], $3::bytea[], $4::text[], $5::bytea[]) AS n (id, facts, answer_body, key, request_hash)
 WHERE j.id = n.id;

-- name: seal_messages
-- The same message, with the codes struck out.
UPDATE deliveries d SET body = n.body FROM unnest($1::uuid[], $2::bytea[]) AS n (id, body) WHERE d.id = n.id;

-- name: list_strange_draws
-- What was asked of no account, on from an id.
SELECT p.id FROM account_payments p
 WHERE p.account_id <> $3 AND p.id > $1::uuid AND NOT EXISTS (SELECT 1 FROM accounts a WHERE a.id = p.account_id)
 ORDER BY p.id LIMIT $2;

-- name: seal_strange_draws
-- It keeps no code either.
UPDATE account_payments SET account_id = $2 WHERE id = ANY ($1::uuid[]);
