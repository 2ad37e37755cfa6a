-- The rows of payments. What the order of locks is, and why, stands in `engine/ports/store.py`.

-- name: take_callback
-- No row back means that this callback was taken before.
INSERT INTO callbacks (gateway, id, payment_id, at) VALUES ($1, $2, $3, $4)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: lock_payments
-- By key alone and in key order, after the bookings.
SELECT id, booking_id, event_id, mode, gateway, method, amount, currency, automatic, created_at, state, gateway_id,
       captured, refunding, refunded, refunded_elsewhere, code, message, action, return_url, due_at, tries, version,
       processed_at
  FROM payments WHERE id = ANY ($1::uuid[]) ORDER BY id FOR NO KEY UPDATE;

-- name: read_payment_key
-- The key was claimed at the beginning of the transaction, so no other transaction is writing this row.
SELECT caller, key, request_hash, payment_id, opened_at FROM payment_keys WHERE caller = $1 AND key = $2;

-- name: write_payment_key
-- A key whose time was over names its new payment from here on.
INSERT INTO payment_keys (caller, key, request_hash, payment_id, opened_at) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (caller, key) DO UPDATE
   SET request_hash = excluded.request_hash, payment_id = excluded.payment_id, opened_at = excluded.opened_at;

-- name: lock_payer
-- A row that is there is locked; one that is not is made, so that there is something to lock.
INSERT INTO payers (mode, buyer, tries) VALUES ($1, $2, '{}')
ON CONFLICT (mode, buyer) DO UPDATE SET buyer = excluded.buyer
RETURNING tries;

-- name: write_payer
-- The payer was locked before.
UPDATE payers SET tries = $3::jsonb, tried_at = $4 WHERE mode = $1 AND buyer = $2;

-- name: read_tries
-- All payments of a booking, the newest first, and some others, as they are: only whether they were declined is asked.
SELECT id, booking_id, event_id, mode, gateway, method, amount, currency, automatic, created_at, state, gateway_id,
       captured, refunding, refunded, refunded_elsewhere, code, message, action, return_url, due_at, tries, version,
       processed_at
  FROM payments WHERE booking_id = $1 OR id = ANY ($2::uuid[])
 ORDER BY created_at DESC, id LIMIT 1000;

-- name: read_refunds
-- What goes back of some payments, oldest first.
SELECT id, payment_id, booking_id, amount, created_at, reason, state, gateway_id, code, processed_at
  FROM refunds WHERE payment_id = ANY ($1::uuid[]) ORDER BY created_at, id LIMIT 10000;

-- name: insert_payment
-- Before its gateway is called.
INSERT INTO payments ( id, booking_id, event_id, mode, gateway, method, amount, currency, automatic, created_at,
                      state, gateway_id, captured, refunding, refunded, refunded_elsewhere, code, message, action, return_url, due_at,
                      tries, version, processed_at)
VALUES ( $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24);

-- name: update_payment
-- The payment was locked before; the version says that no other transaction moved it.
UPDATE payments
   SET state = $2, gateway_id = $3, captured = $4, refunding = $5, refunded = $6, code = $7, message = $8, action = $9::jsonb,
       due_at = $10, tries = $11, version = $12, refunded_elsewhere = $13, processed_at = $14
 WHERE id = $1 AND version = $12 - 1;

-- name: write_refund
-- New, or as its gateway has decided. Refunds change only under the lock of their payment.
INSERT INTO refunds (id, payment_id, booking_id, amount, created_at, reason, state, gateway_id, code, processed_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (id) DO UPDATE SET state = excluded.state, gateway_id = excluded.gateway_id, code = excluded.code,
                               processed_at = excluded.processed_at;

-- name: reclaim_seats
-- An expired booking that is sold after all: each of its seats changes, also one that points to it still: a hold that
-- saw the booking as ended must find that the seat has moved. Where there are guards, the booking's own raises the fence once more.
UPDATE seats s SET booking_id = p.booking_id, fence = s.fence + 1
  FROM unnest($1::text[], $2::text[], $3::uuid[]) AS p (event_id, id, booking_id)
 WHERE s.event_id = p.event_id AND s.id = p.id;

-- name: read_payment
-- One payment.
SELECT id, booking_id, event_id, mode, gateway, method, amount, currency, automatic, created_at, state, gateway_id,
       captured, refunding, refunded, refunded_elsewhere, code, message, action, return_url, due_at, tries, version,
       processed_at
  FROM payments WHERE id = $1;

-- name: list_payments
-- All that were opened for a booking, oldest first.
SELECT id, booking_id, event_id, mode, gateway, method, amount, currency, automatic, created_at, state, gateway_id,
       captured, refunding, refunded, refunded_elsewhere, code, message, action, return_url, due_at, tries, version,
       processed_at
  FROM payments WHERE booking_id = $1 ORDER BY created_at, id LIMIT 1000;

-- name: list_paid_here
-- Of these bookings those whose payment Earmark made: an id that a shop gave as its own reference names no payment of the booking.
SELECT b.id AS booking_id FROM bookings b JOIN payments p ON p.booking_id = b.id AND p.id::text = b.payment_id
 WHERE b.id = ANY ($1::uuid[]) LIMIT 1000;

-- name: claim_payments
-- What a reconciler has to look at: other reconcilers pass over what this one is claiming. Chosen once and
-- sorted at the end: an update chooses as often as its plan likes, and returns its rows in no order. What is undecided
-- by $5 is given up without its gateway, so any reconciler may have it.
WITH due AS MATERIALIZED (
    SELECT id, due_at FROM payments
     WHERE due_at <= $1
       AND ($4::text[] IS NULL OR gateway = ANY ($4::text[])
            OR (state IN ('pending', 'requires_action', 'unknown') AND created_at <= $5))
     ORDER BY due_at, id LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED
), leased AS (
    UPDATE payments p SET due_at = $1::timestamptz + $3::interval FROM due WHERE p.id = due.id
    RETURNING p.id, due.due_at
)
SELECT id FROM leased ORDER BY due_at, id;

-- name: next_payment
-- When the reconciler has to wake up.
SELECT min(due_at) AS due_at FROM payments WHERE due_at IS NOT NULL AND ($1::text[] IS NULL OR gateway = ANY ($1::text[]));

-- name: list_attention
-- Payments with which no worker goes on: an operator decides.
SELECT id, booking_id, event_id, mode, gateway, method, amount, currency, automatic, created_at, state, gateway_id,
       captured, refunding, refunded, refunded_elsewhere, code, message, action, return_url, due_at, tries, version,
       processed_at
  FROM payments WHERE state = 'needs_attention' AND ($2::text IS NULL OR mode = $2)
 ORDER BY created_at, id LIMIT $1;

-- name: count_attention
-- For an alarm: how many need an operator, by gateway, counted up to a limit.
SELECT gateway, count(*) AS payments
  FROM (SELECT gateway FROM payments WHERE state = 'needs_attention' AND ($2::text IS NULL OR mode = $2) LIMIT $1) AS flagged
 GROUP BY gateway;

-- name: count_open
-- Payments that a worker will go on with. They are due soonest, so they come before the later checks of failed ones.
SELECT count(*) AS open, min(since) AS open_since
  FROM (SELECT coalesce((SELECT min(r.created_at) FROM refunds r WHERE r.payment_id = p.id AND r.state = 'pending'),
                        CASE WHEN p.captured = 0 AND p.state NOT IN ('failed', 'voided') THEN p.created_at END) AS since
          FROM (SELECT id, captured, state, created_at FROM payments
                 WHERE due_at IS NOT NULL AND ($2::text IS NULL OR mode = $2) ORDER BY due_at LIMIT $1) AS p) AS due
 WHERE since IS NOT NULL;

-- name: page_payments
-- The payments at a gateway, page by page along the primary key, to compare with its own list.
SELECT id, booking_id, event_id, mode, gateway, method, amount, currency, automatic, created_at, state, gateway_id,
       captured, refunding, refunded, refunded_elsewhere, code, message, action, return_url, due_at, tries, version,
       processed_at
  FROM payments WHERE gateway = $1 AND created_at >= $2 AND id > $3 ORDER BY id LIMIT $4;
