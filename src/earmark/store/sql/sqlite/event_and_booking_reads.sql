-- What is read of events and bookings outside of a transaction. One event is read by `read_events`, as transactions do.

-- name: list_events
-- A page of events, by id.
SELECT id, name, currency, mode, created_at, starts_at, sale_opens_at, sale_closes_at, hold_ttl_seconds, per_buyer_max,
       on_decline, refund_until_seconds, refund_fee_percent, refund_fee_fixed, buyer_cancel_until_seconds, version
  FROM events WHERE mode = ?1 AND id > ?2 ORDER BY id LIMIT ?3;

-- name: read_booking
-- One booking.
SELECT id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at, paying_until, confirmed_at,
       ended_at, payment_id, payment_method, version
  FROM bookings WHERE id = ?1;

-- name: list_bookings
-- A page of bookings, oldest first. A hold whose time is over is listed as expired, swept or not.
SELECT id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at, paying_until, confirmed_at,
       ended_at, payment_id, payment_method, version
  FROM bookings
 WHERE mode = ?1 AND id > ?2
   AND (?5 IS NULL OR (CASE WHEN state = 'held' AND expires_at <= ?6 THEN 'expired' ELSE state END) = ?5)
 ORDER BY id LIMIT ?7;

-- name: list_bookings_of_event
-- The same page of one event; a statement of its own, so that it goes by the event's index.
SELECT id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at, paying_until, confirmed_at,
       ended_at, payment_id, payment_method, version
  FROM bookings
 WHERE mode = ?1 AND id > ?2 AND event_id = ?4
   AND (?5 IS NULL OR (CASE WHEN state = 'held' AND expires_at <= ?6 THEN 'expired' ELSE state END) = ?5)
 ORDER BY id LIMIT ?7;

-- name: list_bookings_of_buyer
-- The same page of one buyer, at one event or at all, by the buyer's index.
SELECT id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at, paying_until, confirmed_at,
       ended_at, payment_id, payment_method, version
  FROM bookings
 WHERE mode = ?1 AND id > ?2 AND buyer = ?3
   AND (?4 IS NULL OR +event_id = ?4)
   AND (?5 IS NULL OR (CASE WHEN state = 'held' AND expires_at <= ?6 THEN 'expired' ELSE state END) = ?5)
 ORDER BY id LIMIT ?7;

-- name: read_history
-- All that happened to a booking.
SELECT id, event_id, booking_id, version, verb, before, after, actor, reason, at, facts
  FROM journal WHERE booking_id = ?1 ORDER BY version LIMIT 10000;

-- name: next_due
-- When the sweeper should wake.
SELECT min(expires_at) FROM bookings WHERE state = 'held';
