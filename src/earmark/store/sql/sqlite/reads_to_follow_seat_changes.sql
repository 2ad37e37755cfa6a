-- What the followers of an event need.

-- name: newest_number
-- The newest number in the journal of an event.
SELECT coalesce((SELECT max(j.sequence) FROM journal j WHERE j.event_id = ?1 AND j.sequence IS NOT NULL), 0) AS newest;

-- name: read_some_seats
-- Seats that may have changed, with their owners, by key.
SELECT s.event_id, s.id, s.price, s.blocked, s.booking_id, s.fence, s.row_name, s.number, s.section, s.category, s.x, s.y,
       b.state, b.expires_at, b.buyer
  FROM json_each(?2) AS wanted
  CROSS JOIN seats s ON s.event_id = ?1 AND s.id = wanted.value
  LEFT JOIN bookings b ON b.id = s.booking_id
 ORDER BY s.position, s.id LIMIT 200000;
