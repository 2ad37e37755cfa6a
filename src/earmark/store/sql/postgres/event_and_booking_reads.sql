-- What is read of events and bookings outside of a transaction. One event is read by `read_events`, as transactions do.

-- name: list_events
-- A page of events, by id.
SELECT id, name, currency, mode, created_at, starts_at, sale_opens_at, sale_closes_at, hold_ttl_seconds, per_buyer_max,
       version, on_decline, refund_until_seconds, refund_fee_percent, refund_fee_fixed,
       buyer_cancel_until_seconds
  FROM events WHERE mode = $1 AND id > $2 ORDER BY id LIMIT $3;

-- name: read_booking
-- One booking and the moment at which it was read, in one statement: a later moment would judge it by what it was.
SELECT b.id, b.event_id, b.buyer, b.mode, b.state, b.lines, b.total, b.currency, b.created_at, b.expires_at,
       b.paying_until, b.confirmed_at, b.ended_at, b.payment_id, b.payment_method, b.version, m.now
  FROM (SELECT statement_timestamp() + $2::interval AS now) AS m LEFT JOIN bookings b ON b.id = $1;

-- name: list_bookings
-- A page of all bookings, oldest first. A hold whose time is over is listed as expired, swept or not.
SELECT id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at, paying_until, confirmed_at,
       ended_at, payment_id, payment_method, version
  FROM bookings
 WHERE mode = $1 AND id > $2
   AND ($3::text IS NULL OR (CASE WHEN state = 'held' AND expires_at <= $4 THEN 'expired' ELSE state END) = $3)
 ORDER BY id LIMIT $5;

-- name: list_bookings_of_event
-- As above, for one event: a statement of its own, so that the generic plan can use the index.
SELECT id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at, paying_until, confirmed_at,
       ended_at, payment_id, payment_method, version
  FROM bookings
 WHERE mode = $1 AND id > $2
   AND ($3::text IS NULL OR (CASE WHEN state = 'held' AND expires_at <= $4 THEN 'expired' ELSE state END) = $3)
   AND event_id = $6
 ORDER BY id LIMIT $5;

-- name: list_bookings_of_buyer
-- As above, for one buyer, at one event or at all.
SELECT id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at, paying_until, confirmed_at,
       ended_at, payment_id, payment_method, version
  FROM bookings
 WHERE mode = $1 AND id > $2
   AND ($3::text IS NULL OR (CASE WHEN state = 'held' AND expires_at <= $4 THEN 'expired' ELSE state END) = $3)
   AND buyer = $6 AND ($7::text IS NULL OR event_id = $7)
 ORDER BY id LIMIT $5;

-- name: read_history
-- All that happened to a booking.
SELECT id, event_id, booking_id, version, verb, before, after, actor, reason, at, facts
  FROM journal WHERE booking_id = $1 ORDER BY version LIMIT 10000;

-- name: seconds_to_next_due
-- When the sweeper should wake.
SELECT extract(epoch FROM min(expires_at) - (statement_timestamp() + $1::interval))::double precision
  FROM bookings WHERE state = 'held';
