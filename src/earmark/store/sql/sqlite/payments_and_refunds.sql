-- The rows of payments. What the order of locks is, and why, stands in `engine/ports/store.py`.

-- name: take_callback
-- No row changed means that this callback was taken before.
INSERT INTO callbacks (gateway, id, payment_id, at) VALUES (?, ?, ?, ?)
ON CONFLICT DO NOTHING;

-- name: lock_payments
-- By key; the verb judges the rows.
SELECT p.id, p.booking_id, p.event_id, p.mode, p.gateway, p.method, p.amount, p.currency, p.automatic, p.created_at,
       p.state, p.gateway_id, p.captured, p.refunding, p.refunded, p.refunded_elsewhere, p.code, p.message, p.action, p.return_url,
       p.due_at, p.tries, p.version, p.processed_at
  FROM json_each(?1) AS k CROSS JOIN payments p ON p.id = k.value;

-- name: read_payment_key
-- At most one row.
SELECT caller, key, request_hash, payment_id, opened_at FROM payment_keys WHERE caller = ?1 AND key = ?2;

-- name: write_payment_key
-- A key whose time was over names its new payment from here on.
INSERT INTO payment_keys (caller, key, request_hash, payment_id, opened_at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (caller, key) DO UPDATE
   SET request_hash = excluded.request_hash, payment_id = excluded.payment_id, opened_at = excluded.opened_at;

-- name: lock_payer
-- At most one row; the one writer has locked the whole file.
SELECT tries FROM payers WHERE mode = ?1 AND buyer = ?2;

-- name: write_payer
-- New, or with another try.
INSERT INTO payers (mode, buyer, tries, tried_at) VALUES (?, ?, ?, ?)
ON CONFLICT (mode, buyer) DO UPDATE SET tries = excluded.tries, tried_at = excluded.tried_at;

-- name: read_tries
-- All payments of a booking, the newest first, and some others, as they are: only whether they were declined is asked.
SELECT id, booking_id, event_id, mode, gateway, method, amount, currency, automatic, created_at, state, gateway_id,
       captured, refunding, refunded, refunded_elsewhere, code, message, action, return_url, due_at, tries, version,
       processed_at
  FROM payments WHERE booking_id = ?1 OR id IN (SELECT value FROM json_each(?2))
 ORDER BY created_at DESC, id LIMIT 1000;

-- name: read_refunds
-- What goes back of some payments, oldest first.
SELECT r.id, r.payment_id, r.booking_id, r.amount, r.created_at, r.reason, r.state, r.gateway_id, r.code,
       r.processed_at
  FROM json_each(?1) AS k CROSS JOIN refunds r ON r.payment_id = k.value ORDER BY r.created_at, r.id LIMIT 10000;

-- name: insert_payment
-- Before its gateway is called.
INSERT INTO payments ( id, booking_id, event_id, mode, gateway, method, amount, currency, automatic, created_at,
                      state, gateway_id, captured, refunding, refunded, refunded_elsewhere, code, message, action, return_url, due_at,
                      tries, version, processed_at)
VALUES ( ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: update_payment
-- The version says that no other transaction moved it.
UPDATE payments
   SET state = ?2, gateway_id = ?3, captured = ?4, refunding = ?5, refunded = ?6, code = ?7, message = ?8, action = ?9,
       due_at = ?10, tries = ?11, version = ?12, refunded_elsewhere = ?13, processed_at = ?14
 WHERE id = ?1 AND version = ?12 - 1;

-- name: write_refund
-- New, or as its gateway has decided.
INSERT INTO refunds (id, payment_id, booking_id, amount, created_at, reason, state, gateway_id, code, processed_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET state = excluded.state, gateway_id = excluded.gateway_id, code = excluded.code,
                               processed_at = excluded.processed_at;

-- name: reclaim_seats
-- An expired booking that is sold after all: each of its seats changes, also one that points to it still. Where the
-- guards stand, the booking's own raises the fence once more.
UPDATE seats SET booking_id = ?3, fence = fence + 1 WHERE event_id = ?1 AND id = ?2;

-- name: read_payment
-- One payment.
SELECT id, booking_id, event_id, mode, gateway, method, amount, currency, automatic, created_at, state, gateway_id,
       captured, refunding, refunded, refunded_elsewhere, code, message, action, return_url, due_at, tries, version,
       processed_at
  FROM payments WHERE id = ?1;

-- name: list_payments
-- All that were opened for a booking, oldest first.
SELECT id, booking_id, event_id, mode, gateway, method, amount, currency, automatic, created_at, state, gateway_id,
       captured, refunding, refunded, refunded_elsewhere, code, message, action, return_url, due_at, tries, version,
       processed_at
  FROM payments WHERE booking_id = ?1 ORDER BY created_at, id LIMIT 1000;

-- name: list_paid_here
-- Of these bookings those whose payment Earmark made: an id that a shop gave as its own reference names no payment of the booking.
SELECT b.id AS booking_id FROM json_each(?1) AS k CROSS JOIN bookings b ON b.id = k.value
  JOIN payments p ON p.booking_id = b.id AND p.id = b.payment_id LIMIT 1000;

-- name: due_payments
-- What a reconciler has to look at, the longest due first. What is undecided by ?4 is given up without its gateway, so any
-- reconciler may have it.
SELECT id FROM payments
 WHERE due_at <= ?1
   AND (?3 IS NULL OR gateway IN (SELECT value FROM json_each(?3))
        OR (state IN ('pending', 'requires_action', 'unknown') AND created_at <= ?4))
 ORDER BY due_at, id LIMIT ?2;

-- name: lease_payment
-- Until then no other reconciler is given it.
UPDATE payments SET due_at = ?2 WHERE id = ?1;

-- name: next_payment
-- When the reconciler has to wake up.
SELECT min(due_at) AS due_at FROM payments
 WHERE due_at IS NOT NULL AND (?1 IS NULL OR gateway IN (SELECT value FROM json_each(?1)));

-- name: list_attention
-- Payments with which no worker goes on: an operator decides.
SELECT id, booking_id, event_id, mode, gateway, method, amount, currency, automatic, created_at, state, gateway_id,
       captured, refunding, refunded, refunded_elsewhere, code, message, action, return_url, due_at, tries, version,
       processed_at
  FROM payments WHERE state = 'needs_attention' AND (?2 IS NULL OR mode = ?2)
 ORDER BY created_at, id LIMIT ?1;

-- name: count_attention
-- For an alarm: how many need an operator, by gateway, counted up to a limit.
SELECT gateway, count(*) AS payments
  FROM (SELECT gateway FROM payments WHERE state = 'needs_attention' AND (?2 IS NULL OR mode = ?2) LIMIT ?1) AS flagged
 GROUP BY gateway;

-- name: count_open
-- Payments that a worker will go on with. They are due soonest, so they come before the later checks of failed ones.
SELECT count(*) AS open, min(since) AS open_since
  FROM (SELECT coalesce((SELECT min(r.created_at) FROM refunds r WHERE r.payment_id = p.id AND r.state = 'pending'),
                        CASE WHEN p.captured = 0 AND p.state NOT IN ('failed', 'voided') THEN p.created_at END) AS since
          FROM (SELECT id, captured, state, created_at FROM payments
                 WHERE due_at IS NOT NULL AND (?2 IS NULL OR mode = ?2) ORDER BY due_at LIMIT ?1) AS p) AS due
 WHERE since IS NOT NULL;

-- name: page_payments
-- The payments at a gateway, page by page along the primary key, to compare with its own list.
SELECT id, booking_id, event_id, mode, gateway, method, amount, currency, automatic, created_at, state, gateway_id,
       captured, refunding, refunded, refunded_elsewhere, code, message, action, return_url, due_at, tries, version,
       processed_at
  FROM payments WHERE gateway = ?1 AND created_at >= ?2 AND id > ?3 ORDER BY id LIMIT ?4;
