-- A statement for each row, the way an ORM sends them.

-- name: read_event
-- The rules of the event.
SELECT statement_timestamp() AS now, e.mode, e.currency, e.per_buyer_max,
       (e.sale_opens_at IS NULL OR e.sale_opens_at <= statement_timestamp())
       AND (e.sale_closes_at IS NULL OR statement_timestamp() < e.sale_closes_at) AS on_sale,
       NULL::uuid AS earlier
  FROM events e WHERE e.id = $1;

-- name: lock_seat
-- From here to the commit no other transaction locks this seat. Its pointer is as it is after the wait; its owner
-- may be older, and so never decides that the seat may be taken.
SELECT s.id, s.price, s.blocked, s.booking_id,
       coalesce(b.state NOT IN ('held', 'paying', 'confirmed')
                OR (b.state = 'held' AND b.expires_at <= statement_timestamp()), false) AS stale
  FROM seats s LEFT JOIN bookings b ON b.id = s.booking_id
 WHERE s.event_id = $1 AND s.id = $2 FOR UPDATE OF s;

-- name: lock_pool
-- As for a seat.
SELECT p.id, p.price, p.capacity - p.held - p.sold AS free FROM pools p WHERE p.event_id = $1 AND p.id = $2 FOR UPDATE;

-- name: point_seat
-- The seat belongs to the new hold.
UPDATE seats SET booking_id = $3 WHERE event_id = $1 AND id = $2;

-- name: add_pool
-- The held and sold units of one pool.
UPDATE pools SET held = held + $3, sold = sold + $4 WHERE event_id = $1 AND id = $2;

-- name: lock_booking
-- From here to the commit no other transaction decides about this booking.
SELECT statement_timestamp() AS now, b.* FROM bookings b WHERE b.id = $1 FOR UPDATE;
