-- What a transaction reads. One writer: a transaction that has begun has every row to itself, so the steps that lock in
-- PostgreSQL only read here. They take their keys as one JSON array per event (measured faster than one read per row).

-- name: read_events
-- The rules a claim is judged by.
SELECT e.id, e.name, e.currency, e.mode, e.created_at, e.starts_at, e.sale_opens_at, e.sale_closes_at,
       e.hold_ttl_seconds, e.per_buyer_max, e.on_decline, e.refund_until_seconds, e.refund_fee_percent, e.refund_fee_fixed,
       e.buyer_cancel_until_seconds, e.version
  FROM json_each(?1) AS k CROSS JOIN events e ON e.id = k.value LIMIT 1000;

-- name: read_seats
-- Seats and their owners.
SELECT s.event_id, s.id, s.price, s.blocked, s.booking_id, s.fence,
       b.state, b.expires_at, b.buyer, s.row_name, s.number, s.section, s.category
  FROM json_each(?2) AS k
 CROSS JOIN seats s ON s.event_id = ?1 AND s.id = k.value
  LEFT JOIN bookings b ON b.id = s.booking_id;

-- name: lock_bookings
-- By key; the verb judges the rows.
SELECT b.id, b.event_id, b.buyer, b.mode, b.state, b.lines, b.total, b.currency, b.created_at, b.expires_at,
       b.paying_until, b.confirmed_at, b.ended_at, b.payment_id, b.payment_method, b.version
  FROM json_each(?1) AS k CROSS JOIN bookings b ON b.id = k.value;

-- name: lock_due
-- Holds that are due, for the sweeper, the longest due first.
SELECT id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at, paying_until, confirmed_at,
       ended_at, payment_id, payment_method, version
  FROM bookings
 WHERE state = 'held' AND expires_at <= ?1
 ORDER BY expires_at, id LIMIT ?2 OFFSET ?3;

-- name: lock_due_of_buyer
-- Before a hold is refused for the buyer's limit: what has lapsed does not count.
-- The plus signs keep to the buyer's few bookings, where the index of all that is due may be long.
SELECT id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at, paying_until, confirmed_at,
       ended_at, payment_id, payment_method, version
  FROM bookings
 WHERE buyer = ?4 AND +event_id = ?3 AND +state = 'held' AND +expires_at <= ?1
 ORDER BY expires_at, id LIMIT ?2;

-- name: lock_due_of_pool
-- Before a hold is refused for the pool: what has lapsed is free.
SELECT id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at, paying_until, confirmed_at,
       ended_at, payment_id, payment_method, version
  FROM bookings
 WHERE state = 'held' AND expires_at <= ?1 AND +event_id = ?3
   AND EXISTS (SELECT 1 FROM json_each(lines, '$.pools') AS line WHERE json_extract(line.value, '$.id') = ?4)
 ORDER BY expires_at, id LIMIT ?2;

-- name: lock_totals
-- What buyers have; a buyer without a row has nothing yet.
SELECT t.event_id, t.buyer, t.units
  FROM json_each(?2) AS k CROSS JOIN buyer_totals t ON t.event_id = ?1 AND t.buyer = k.value;

-- name: lock_pools
-- The counts of the pools in a claim.
SELECT p.event_id, p.id, p.capacity, p.held, p.sold, p.price
  FROM json_each(?2) AS k CROSS JOIN pools p ON p.event_id = ?1 AND p.id = k.value;

-- name: lock_seats
-- What a hold compares with what it saw: a seat that differs has moved.
SELECT s.event_id, s.id, s.booking_id, s.fence, s.blocked
  FROM json_each(?2) AS k CROSS JOIN seats s ON s.event_id = ?1 AND s.id = k.value;
