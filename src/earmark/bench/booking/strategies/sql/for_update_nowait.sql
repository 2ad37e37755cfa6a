-- The locks of `for_update_in_two_statements`, without waiting for them. A confirm does wait: its buyer has paid.

-- name: lock_to_hold
-- A seat that another transaction has locked is an error at once.
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
 ORDER BY s.id FOR UPDATE OF s NOWAIT;

-- name: lock_seats
-- The same for a claim that has pools too.
SELECT s.id, s.price, s.blocked, s.booking_id,
       coalesce(b.state NOT IN ('held', 'paying', 'confirmed')
                OR (b.state = 'held' AND b.expires_at <= statement_timestamp()), false) AS stale
  FROM seats s LEFT JOIN bookings b ON b.id = s.booking_id
 WHERE s.event_id = $1 AND s.id = ANY ($2::text[])
 ORDER BY s.id FOR UPDATE OF s NOWAIT;

-- name: lock_pools
-- As for seats.
SELECT p.id, p.price, p.capacity - p.held - p.sold AS free
  FROM pools p WHERE p.event_id = $1 AND p.id = ANY ($2::text[])
 ORDER BY p.id FOR UPDATE NOWAIT;
