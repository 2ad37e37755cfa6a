-- What `earmark migrate` does after the migrations: no code of an account stays in clear.
-- Every transaction drops the guards that keep these rows as they are, and makes them again before it ends.

-- name: find_lifted
-- Those of the guards that are there, as they were made.
SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND name IN (SELECT value FROM json_each(?1)) LIMIT 100;

-- name: list_clear_accounts
-- Those that have no digest: their id is their code.
SELECT id FROM accounts WHERE code_digest IS NULL ORDER BY id LIMIT ?1;

-- name: find_digest
-- The account that a code opens.
SELECT id FROM accounts WHERE code_digest IN (SELECT value FROM json_each(?1)) LIMIT 1;

-- name: seal_entries
-- The first entry of an account has the account's id as its own.
UPDATE account_entries SET account_id = ?2, id = CASE WHEN kind = 'opened' THEN ?2 ELSE id END WHERE account_id = ?1;

-- name: seal_draws
-- What was asked of the account.
UPDATE account_payments SET account_id = ?2 WHERE account_id = ?1;

-- name: seal_account
-- Last, for its entries and payments are found by the id that goes.
UPDATE accounts SET id = ?2, code_digest = ?3 WHERE id = ?1;

-- name: seal_strange_draws
-- What was asked of no account keeps no code either.
UPDATE account_payments SET account_id = ?1
 WHERE account_id <> ?1 AND NOT EXISTS (SELECT 1 FROM accounts a WHERE a.id = account_payments.account_id);

-- name: list_clear_payments
-- Payments whose method is a code, on from an id.
SELECT id, booking_id, method FROM payments
 WHERE gateway = 'balance' AND method NOT LIKE '________-____-____-____-____________/…%' AND id > ?1
 ORDER BY id LIMIT ?2;

-- name: seal_payment
-- It refers to the account from now on.
UPDATE payments SET method = ?2 WHERE id = ?1;

-- name: seal_booking
-- A booking shows its method, and needs no more of it.
UPDATE bookings SET payment_method = ?3 WHERE id = ?1 AND payment_method = ?2;

-- name: list_story
-- What the journal says of a booking.
SELECT id, facts, answer_body FROM journal WHERE booking_id = ?1 LIMIT 10000;

-- name: list_answers
-- What keys remember to answer about some bookings, and no more: by the index of keys, which have a day to live.
SELECT id, facts, answer_body FROM journal
 WHERE key IS NOT NULL AND booking_id IS NULL AND json_extract(facts, '$.booking_id') IN (SELECT value FROM json_each(?1)) LIMIT 100000;

-- name: seal_story
-- The same story, with the code struck out.
UPDATE journal SET facts = ?2, answer_body = ?3 WHERE id = ?1;

-- name: list_payment_keys
-- The requests that opened a payment.
SELECT caller, key, request_hash FROM payment_keys WHERE payment_id = ?1 LIMIT 1000;

-- name: seal_payment_key
-- A plain hash of a request with a short code in it could be tried out.
UPDATE payment_keys SET request_hash = ?3 WHERE caller = ?1 AND key = ?2;

-- name: seal_answer
-- The same hash, where the answer is remembered.
UPDATE journal SET request_hash = ?3 WHERE caller = ?1 AND key = ?2;
