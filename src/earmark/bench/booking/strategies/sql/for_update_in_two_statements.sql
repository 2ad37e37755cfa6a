-- One statement that locks, one that writes.

-- name: lock_to_hold
-- All wanted seats, locked in key order, each with the rules of the event and with what the key was answered before.
SELECT statement_timestamp() AS now, e.mode, e.currency, e.per_buyer_max,
       (e.sale_opens_at IS NULL OR e.sale_opens_at <= statement_timestamp())
       AND (e.sale_closes_at IS NULL OR statement_timestamp() < e.sale_closes_at) AS on_sale,
       j.booking_id AS earlier, j.request_hash,
       s.id, s.price, s.blocked, s.booking_id,
       coalesce(b.state NOT IN ('held', 'paying', 'confirmed')
                OR (b.state = 'held' AND b.expires_at <= statement_timestamp()), false) AS stale
  FROM events e
  JOIN seats s ON s.event_id = e.id
  LEFT JOIN bookings b ON b.id = s.booking_id
  LEFT JOIN journal j ON j.caller = $3 AND j.key = $4
 WHERE e.id = $1 AND s.event_id = $1 AND s.id = ANY ($2::text[])
 ORDER BY s.id FOR UPDATE OF s;

-- name: write_hold
-- The whole hold, unless it is beyond the buyer's limit.
WITH counted AS (
    INSERT INTO buyer_totals AS t (event_id, buyer, units)
    SELECT $2, $3, $11::integer WHERE $11 <= coalesce($13::integer, 2147483647)
    ON CONFLICT (event_id, buyer) DO UPDATE SET units = t.units + excluded.units
     WHERE t.units + excluded.units <= coalesce($13, 2147483647)
    RETURNING t.units
), opened AS (
    INSERT INTO bookings (id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at, version)
    SELECT $1, $2, $3, $4, $5, $6::text::jsonb, $7, $8, $9, $10, 1 FROM counted
    RETURNING id
), pointed AS (
    UPDATE seats SET booking_id = $1 WHERE event_id = $2 AND id = ANY ($12::text[]) AND EXISTS (SELECT FROM opened)
)
INSERT INTO journal (id, event_id, booking_id, version, verb, before, after, actor, reason, at, facts,
                     caller, key, request_hash, answer_status, answer_body)
SELECT $14, $2, o.id, 1, 'hold', NULL, $5, $15, $16, $9, $17::text::jsonb, $18, $19, $20, $21, $22 FROM opened o
RETURNING booking_id;

-- name: write_confirm
-- The sale, its payment and its journal entry.
WITH moved AS (
    UPDATE bookings SET state = 'confirmed', confirmed_at = $2, payment_id = $3, version = $4 WHERE id = $1
), paid AS (
    INSERT INTO outside_payments (payment_id, mode, booking_id) VALUES ($3, 'test', $1)
)
INSERT INTO journal (id, event_id, booking_id, version, verb, before, after, actor, reason, at, facts,
                     caller, key, request_hash, answer_status, answer_body)
VALUES ($5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15::text::jsonb, $16, $17, $18, $19, $20);

-- name: lock_seats
-- The same for a claim that has pools too: all wanted seats, in key order. Their pointers are as they are after the wait;
-- an owner may be older, and so never decides that a seat may be taken.
SELECT s.id, s.price, s.blocked, s.booking_id,
       coalesce(b.state NOT IN ('held', 'paying', 'confirmed')
                OR (b.state = 'held' AND b.expires_at <= statement_timestamp()), false) AS stale
  FROM seats s LEFT JOIN bookings b ON b.id = s.booking_id
 WHERE s.event_id = $1 AND s.id = ANY ($2::text[])
 ORDER BY s.id FOR UPDATE OF s;

-- name: lock_pools
-- All wanted pools, in key order.
SELECT p.id, p.price, p.capacity - p.held - p.sold AS free
  FROM pools p WHERE p.event_id = $1 AND p.id = ANY ($2::text[])
 ORDER BY p.id FOR UPDATE;

-- name: lock_booking
-- The booking, and whether this key was answered before.
SELECT statement_timestamp() AS now, b.*, j.booking_id AS earlier, j.request_hash
  FROM bookings b LEFT JOIN journal j ON j.caller = $2 AND j.key = $3
 WHERE b.id = $1 FOR UPDATE OF b;
