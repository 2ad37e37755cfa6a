-- What a transaction under locks begins with, reads, and locks, in the order of the port: bookings, totals, pools, seats.
-- Also which of those rows another transaction keeps locked.

-- name: begin
-- A transaction's one moment. The offset is zero in production; tests move time with it.
SELECT statement_timestamp() + $1::interval AS now;

-- name: begin_locking
-- The same, and how long this transaction waits for a locked row.
SELECT statement_timestamp() + $1::interval AS now, set_config('lock_timeout', $2::text, true);

-- name: read_events
-- The rules a claim is judged by.
SELECT id, name, currency, mode, created_at, starts_at, sale_opens_at, sale_closes_at, hold_ttl_seconds, per_buyer_max,
       version, on_decline, refund_until_seconds, refund_fee_percent, refund_fee_fixed,
       buyer_cancel_until_seconds
  FROM events WHERE id = ANY ($1::text[]) LIMIT 1000;

-- name: read_seats
-- Seats and their owners in ONE snapshot: bookings read on their own could be older than the pointers.
SELECT r.n::integer AS n, s.price, s.blocked, s.booking_id, s.fence, b.state, b.expires_at, b.buyer,
       s.row_name, s.number, s.section, s.category
  FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS r (event_id, id, n)
  JOIN seats s ON s.event_id = r.event_id AND s.id = r.id
  LEFT JOIN bookings b ON b.id = s.booking_id;

-- name: read_bookings
-- Of which event a booking is, before its seats are read and anything is locked.
SELECT id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at, paying_until, confirmed_at,
       ended_at, payment_id, payment_method, version
  FROM bookings WHERE id = ANY ($1::uuid[]) LIMIT 1000;

-- name: lock_event
-- Operators change an event one after the other.
SELECT id, name, currency, mode, created_at, starts_at, sale_opens_at, sale_closes_at, hold_ttl_seconds, per_buyer_max,
       version, on_decline, refund_until_seconds, refund_fee_percent, refund_fee_fixed,
       buyer_cancel_until_seconds
  FROM events WHERE id = $1 FOR NO KEY UPDATE;

-- name: lock_bookings
-- By key alone and in key order; the verb judges the rows, never this statement.
SELECT id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at, paying_until, confirmed_at,
       ended_at, payment_id, payment_method, version
  FROM bookings WHERE id = ANY ($1::uuid[]) ORDER BY id FOR NO KEY UPDATE;

-- name: lock_due
-- The guard stands in the query that locks: a subselect would flip a booking that was confirmed meanwhile.
SELECT id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at, paying_until, confirmed_at,
       ended_at, payment_id, payment_method, version
  FROM bookings
 WHERE state = 'held' AND expires_at <= $1
 ORDER BY expires_at LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED;

-- name: lock_due_behind
-- The same behind the first so many, which are not locked: rows that OFFSET passes over in a locking query are. The guard
-- stands in the locking query again, for what the subselect saw may have moved.
SELECT id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at, paying_until, confirmed_at,
       ended_at, payment_id, payment_method, version
  FROM bookings
 WHERE id = ANY (ARRAY (SELECT due.id FROM bookings due WHERE due.state = 'held' AND due.expires_at <= $1
                         ORDER BY due.expires_at LIMIT $2 OFFSET $3))
   AND state = 'held' AND expires_at <= $1
 ORDER BY expires_at FOR NO KEY UPDATE SKIP LOCKED;

-- name: lock_due_of_buyer
-- Before a hold is refused for the buyer's limit: what has lapsed does not count.
SELECT id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at, paying_until, confirmed_at,
       ended_at, payment_id, payment_method, version
  FROM bookings
 WHERE state = 'held' AND expires_at <= $1 AND event_id = $3 AND buyer = $4
 ORDER BY expires_at LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED;

-- name: lock_due_of_pool
-- Before a hold is refused for the pool: what has lapsed is free.
SELECT id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at, paying_until, confirmed_at,
       ended_at, payment_id, payment_method, version
  FROM bookings
 WHERE state = 'held' AND expires_at <= $1 AND event_id = $3
   AND lines -> 'pools' @> jsonb_build_array(jsonb_build_object('id', $4::text))
 ORDER BY expires_at LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED;

-- name: find_buyers_with_due
-- Which of these buyers have lapsed holds, also those that another transaction is changing. Only these buyers' bookings are
-- read, and once for all of them: as a condition of its own, IS TRUE keeps what was found from being joined.
WITH due AS MATERIALIZED (
    SELECT DISTINCT b.event_id, b.buyer FROM bookings b
     WHERE b.state = 'held' AND b.expires_at <= $1 AND b.event_id = ANY ($2::text[]) AND b.buyer = ANY ($3::text[])
)
SELECT r.n FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS r (event_id, buyer, n)
 WHERE ((r.event_id, r.buyer) IN (SELECT due.event_id, due.buyer FROM due)) IS TRUE;

-- name: find_pools_with_due
-- Which of these pools have units in lapsed holds, also in those that another transaction is changing. Each of their events
-- is read once, whatever is due in others, and however many pools of it are asked about: OFFSET 0 keeps it from being joined.
WITH due AS MATERIALIZED (
    SELECT DISTINCT e.event_id, line ->> 'id' AS id
      FROM (SELECT DISTINCT w.event_id FROM unnest($2::text[]) AS w (event_id)) AS e
     CROSS JOIN LATERAL (SELECT b.lines FROM bookings b
                          WHERE b.state = 'held' AND b.expires_at <= $1 AND b.event_id = e.event_id OFFSET 0) AS held
     CROSS JOIN LATERAL jsonb_array_elements(held.lines -> 'pools') AS line
)
SELECT r.n FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS r (event_id, id, n)
 WHERE ((r.event_id, r.id) IN (SELECT due.event_id, due.id FROM due)) IS TRUE;

-- name: make_totals
-- First holds have no total to lock yet. Sorted, and what is there is locked on the way (a conflict locks, and changes
-- nothing): a transaction that made one total and then waited for another could be waited for by the one that has that other.
INSERT INTO buyer_totals AS b (event_id, buyer, units)
SELECT t.event_id, t.buyer, 0 FROM unnest($1::text[], $2::text[]) AS t (event_id, buyer)
 ORDER BY t.event_id, t.buyer
ON CONFLICT (event_id, buyer) DO UPDATE SET units = b.units WHERE false
RETURNING event_id, buyer;

-- name: lock_totals
-- In key order, after the bookings and before the pools.
SELECT t.event_id, t.buyer, t.units
  FROM buyer_totals t JOIN unnest($1::text[], $2::text[]) AS r (event_id, buyer)
    ON t.event_id = r.event_id AND t.buyer = r.buyer
 ORDER BY t.event_id, t.buyer FOR NO KEY UPDATE OF t;

-- name: lock_pools
-- In key order, after the totals and before the seats.
SELECT p.event_id, p.id, p.capacity, p.held, p.sold, p.price
  FROM pools p JOIN unnest($1::text[], $2::text[]) AS r (event_id, id)
    ON p.event_id = r.event_id AND p.id = r.id
 ORDER BY p.event_id, p.id FOR NO KEY UPDATE OF p;

-- name: lock_seats
-- Compare and lock: only the seat's own columns are compared, for those alone are read again after a wait.
-- A seat that does not come back has moved since it was seen.
SELECT s.event_id, s.id
  FROM seats s JOIN unnest($1::text[], $2::text[], $3::uuid[], $4::integer[], $5::boolean[])
       AS r (event_id, id, pointer, fence, blocked) ON s.event_id = r.event_id AND s.id = r.id
 WHERE s.booking_id IS NOT DISTINCT FROM r.pointer AND s.fence = r.fence AND s.blocked = r.blocked
 ORDER BY s.event_id, s.id FOR NO KEY UPDATE OF s;

-- name: find_locked
-- Which of these rows another transaction has locked: they exist, and cannot be locked at once. What can be is released
-- with the end of this statement, which waits for nothing. Locking them writes to PostgreSQL's log; its commit neither
-- flushes that nor waits for a standby.
WITH bookings_free AS MATERIALIZED (
    SELECT b.id FROM bookings b WHERE b.id = ANY ($1::uuid[]) FOR NO KEY UPDATE SKIP LOCKED
), totals_free AS MATERIALIZED (
    SELECT t.event_id, t.buyer FROM buyer_totals t JOIN unnest($2::text[], $3::text[]) AS r (event_id, buyer)
        ON t.event_id = r.event_id AND t.buyer = r.buyer FOR NO KEY UPDATE OF t SKIP LOCKED
), pools_free AS MATERIALIZED (
    SELECT p.event_id, p.id FROM pools p JOIN unnest($4::text[], $5::text[]) AS r (event_id, id)
        ON p.event_id = r.event_id AND p.id = r.id FOR NO KEY UPDATE OF p SKIP LOCKED
), seats_free AS MATERIALIZED (
    SELECT s.event_id, s.id FROM seats s JOIN unnest($6::text[], $7::text[]) AS r (event_id, id)
        ON s.event_id = r.event_id AND s.id = r.id FOR NO KEY UPDATE OF s SKIP LOCKED
)
SELECT ARRAY (SELECT b.id FROM bookings b WHERE b.id = ANY ($1::uuid[])
                 AND NOT EXISTS (SELECT 1 FROM bookings_free f WHERE f.id = b.id)) AS bookings,
       ARRAY (SELECT r.n::integer FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS r (event_id, buyer, n)
                JOIN buyer_totals t ON t.event_id = r.event_id AND t.buyer = r.buyer
               WHERE NOT EXISTS (SELECT 1 FROM totals_free f WHERE f.event_id = r.event_id AND f.buyer = r.buyer)) AS totals,
       ARRAY (SELECT r.n::integer FROM unnest($4::text[], $5::text[]) WITH ORDINALITY AS r (event_id, id, n)
                JOIN pools p ON p.event_id = r.event_id AND p.id = r.id
               WHERE NOT EXISTS (SELECT 1 FROM pools_free f WHERE f.event_id = r.event_id AND f.id = r.id)) AS pools,
       ARRAY (SELECT r.n::integer FROM unnest($6::text[], $7::text[]) WITH ORDINALITY AS r (event_id, id, n)
                JOIN seats s ON s.event_id = r.event_id AND s.id = r.id
               WHERE NOT EXISTS (SELECT 1 FROM seats_free f WHERE f.event_id = r.event_id AND f.id = r.id)) AS seats,
       set_config('synchronous_commit', 'off', true);
