-- What `earmark migrate` does after the migrations: no code of an account stays in clear.
-- Every transaction reads first, then drops the guards that keep these rows as they are, and makes them again before it ends.

-- name: find_lifted
-- Those of the guards that are there, as they were made.
SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND name IN (SELECT value FROM json_each(?1)) LIMIT 100;

-- name: list_clear_accounts
-- Those that have no digest: their id is their code.
SELECT id FROM accounts WHERE code_digest IS NULL AND id > ?1 ORDER BY id LIMIT ?2;

-- name: find_digests
-- The accounts that codes open.
SELECT id, code_digest FROM accounts WHERE code_digest IN (SELECT value FROM json_each(?1)) LIMIT 10000;

-- name: seal_draws_of_account
-- What was drawn from the account, found by the entries about it.
UPDATE account_payments SET account_id = ?2
 WHERE id IN (SELECT payment_id FROM account_entries WHERE account_id = ?1 AND payment_id IS NOT NULL) AND account_id = ?1;

-- name: seal_entries
-- The first entry of an account has the account's id as its own.
UPDATE account_entries SET account_id = ?2, id = CASE WHEN kind = 'opened' THEN ?2 ELSE id END WHERE account_id = ?1;

-- name: seal_account
-- Last, for its entries and draws are found by the id that goes.
UPDATE accounts SET id = ?2, code_digest = ?3 WHERE id = ?1;

-- name: list_clear_payments
-- Payments whose method is a code, on from an id. One whose account has yet to be sealed waits for that.
SELECT p.id, p.booking_id FROM payments p
 WHERE p.gateway = 'balance' AND p.method NOT LIKE '________-____-____-____-____________/…%' AND p.id > ?1
   AND NOT EXISTS (SELECT 1 FROM accounts a WHERE a.id = p.method AND a.code_digest IS NULL)
 ORDER BY p.id LIMIT ?2;

-- name: list_answers
-- Which entries only remember an answer about some bookings: by the index of keys, which have a day to live.
SELECT id, json_extract(facts, '$.booking_id') AS about FROM journal
 WHERE key IS NOT NULL AND booking_id IS NULL AND json_extract(facts, '$.booking_id') IN (SELECT value FROM json_each(?1))
 LIMIT 100000;

-- name: list_payments
-- Those that no other process has sealed meanwhile, with the account that each was drawn from.
SELECT p.id, p.booking_id, p.method, d.account_id AS drawn_from
  FROM payments p LEFT JOIN account_payments d ON d.id = p.id
 WHERE p.id IN (SELECT value FROM json_each(?1)) AND p.method NOT LIKE '________-____-____-____-____________/…%'
 ORDER BY p.id LIMIT 1000;

-- name: list_payment_keys
-- The requests that opened payments.
SELECT caller, key, request_hash FROM payment_keys WHERE payment_id IN (SELECT value FROM json_each(?1)) LIMIT 100000;

-- name: list_entries
-- What the journal says of bookings, and what it remembers to answer about them.
SELECT id, coalesce(booking_id, json_extract(facts, '$.booking_id')) AS about, facts, answer_body, caller, key, request_hash
  FROM journal
 WHERE booking_id IN (SELECT value FROM json_each(?1)) OR id IN (SELECT value FROM json_each(?2)) ORDER BY id LIMIT 100000;

-- name: list_messages
-- What webhooks are sent of these entries, or were sent lately; by the key that says that an entry is queued once.
SELECT d.id, d.entry_id, d.body
  FROM webhooks w JOIN deliveries d ON d.webhook_id = w.id AND d.entry_id IN (SELECT value FROM json_each(?1)) LIMIT 100000;

-- name: seal_booking
-- A booking shows its method, and needs no more of it.
UPDATE bookings SET payment_method = ?3 WHERE id = ?1 AND payment_method = ?2;

-- name: seal_payment
-- It refers to the account from now on.
UPDATE payments SET method = ?2 WHERE id = ?1;

-- name: seal_draw
-- What was asked of an account and not drawn, which has no entry.
UPDATE account_payments SET account_id = ?3 WHERE id = ?1 AND account_id = ?2;

-- name: seal_payment_key
-- A plain hash of a request with a short code in it could be tried out.
UPDATE payment_keys SET key = ?3, request_hash = ?4 WHERE caller = ?1 AND key = ?2;

-- name: seal_journal
-- The same story, with the codes struck out and the hashes sealed.
UPDATE journal SET facts = ?2, answer_body = ?3, key = ?4, request_hash = ?5 WHERE id = ?1;

-- name: seal_message
-- The same message, with the codes struck out.
UPDATE deliveries SET body = ?2 WHERE id = ?1;

-- name: list_strange_draws
-- What was asked of no account, on from an id.
SELECT p.id FROM account_payments p
 WHERE p.account_id <> ?3 AND p.id > ?1 AND NOT EXISTS (SELECT 1 FROM accounts a WHERE a.id = p.account_id)
 ORDER BY p.id LIMIT ?2;

-- name: seal_strange_draw
-- It keeps no code either.
UPDATE account_payments SET account_id = ?2 WHERE id = ?1;
