-- What the strategies share: the opening of a transaction, the plain look, and one write statement per table.

-- name: open_hold
-- The moment, the rules of the event, and whether this key was answered before: one round trip for all of it.
SELECT statement_timestamp() AS now, e.mode, e.currency, e.per_buyer_max,
       (e.sale_opens_at IS NULL OR e.sale_opens_at <= statement_timestamp())
       AND (e.sale_closes_at IS NULL OR statement_timestamp() < e.sale_closes_at) AS on_sale,
       j.booking_id AS earlier, j.request_hash
  FROM events e LEFT JOIN journal j ON j.caller = $2 AND j.key = $3
 WHERE e.id = $1;

-- name: find_key
-- Whether this key was answered before, and for which request.
SELECT j.booking_id AS earlier, j.request_hash FROM journal j WHERE j.caller = $1 AND j.key = $2;

-- name: look_at_seats
-- Seats with no lock on them. Only an empty pointer is free; a pointer to a lapsed hold or an ended booking is stale:
-- the strategy expires it first and then looks again.
SELECT s.id, s.price, s.blocked, s.booking_id, s.fence,
       coalesce(b.state NOT IN ('held', 'paying', 'confirmed')
                OR (b.state = 'held' AND b.expires_at <= statement_timestamp()), false) AS stale
  FROM seats s LEFT JOIN bookings b ON b.id = s.booking_id
 WHERE s.event_id = $1 AND s.id = ANY ($2::text[]);

-- name: look_at_pools
-- Pools with no lock on them.
SELECT p.id, p.price, p.capacity - p.held - p.sold AS free
  FROM pools p WHERE p.event_id = $1 AND p.id = ANY ($2::text[]);

-- name: look_at_booking
-- A booking with no lock on it.
SELECT statement_timestamp() AS now, b.* FROM bookings b WHERE b.id = $1;

-- name: add_total
-- What the buyer has by now. The row is the buyer's own, so that requests rarely wait for it.
INSERT INTO buyer_totals AS t (event_id, buyer, units) VALUES ($1, $2, $3)
ON CONFLICT (event_id, buyer) DO UPDATE SET units = t.units + excluded.units
RETURNING t.units;

-- name: give_back
-- What the buyer has no longer. An upsert would be refused here: the schema judges the row to insert, which is negative.
UPDATE buyer_totals SET units = units - $3 WHERE event_id = $1 AND buyer = $2;

-- name: add_pools
-- Units that were looked at before are held now.
UPDATE pools p SET held = p.held + d.held, sold = p.sold + d.sold
  FROM unnest($2::text[], $3::integer[], $4::integer[]) AS d (id, held, sold)
 WHERE p.event_id = $1 AND p.id = d.id;

-- name: insert_booking
-- The new hold.
INSERT INTO bookings (id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at, version)
VALUES ($1, $2, $3, $4, $5, $6::text::jsonb, $7, $8, $9, $10, 1);

-- name: point_seats
-- The seats belong to the new hold, whatever they pointed to: that they were free was looked at before.
UPDATE seats SET booking_id = $3 WHERE event_id = $1 AND id = ANY ($2::text[]);

-- name: insert_entry
-- The journal entry: audit entry, outbox row and idempotency record in one.
INSERT INTO journal (id, event_id, booking_id, version, verb, before, after, actor, reason, at, facts,
                     caller, key, request_hash, answer_status, answer_body)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11::text::jsonb, $12, $13, $14, $15, $16);

-- name: insert_payment
-- One outside payment confirms one booking: the primary key refuses a second.
INSERT INTO outside_payments (payment_id, mode, booking_id) VALUES ($1, 'test', $2);

-- name: mark_confirmed
-- The hold becomes a sale. That it may was judged before.
UPDATE bookings SET state = 'confirmed', confirmed_at = $2, payment_id = $3, version = $4 WHERE id = $1;

-- name: lock_stale
-- The owners of these seats that have ended or lapsed. By key, in key order; what comes back
-- is judged again, for it may have waited.
SELECT statement_timestamp() AS now, b.*
  FROM bookings b
 WHERE b.id IN (SELECT s.booking_id FROM seats s
                 WHERE s.event_id = $1 AND s.id = ANY ($2::text[]) AND s.booking_id IS NOT NULL)
 ORDER BY b.id FOR NO KEY UPDATE;

-- name: mark_expired
-- A hold whose time is over.
UPDATE bookings SET state = 'expired', ended_at = $2, version = $3 WHERE id = $1;

-- name: clear_seats
-- Seats of a booking that has ended are free to all.
UPDATE seats SET booking_id = NULL WHERE event_id = $1 AND id = ANY ($2::text[]) AND booking_id = $3;
