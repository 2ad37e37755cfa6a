-- The seats and pools of one event, for showing only, and when the clock alone changes them.

-- name: read_map
-- The seats of an event with their owners, in the order in which they were laid out.
SELECT s.event_id, s.id, s.price, s.blocked, s.booking_id, s.fence, s.row_name, s.number, s.section, s.category, s.x, s.y,
       b.state, b.expires_at, b.buyer
  FROM seats s LEFT JOIN bookings b ON b.id = s.booking_id
 WHERE s.event_id = $1
 ORDER BY s.position, s.id LIMIT 200000;

-- name: read_seat
-- One seat with its owner and the moment at which it was read, by key: a generic plan must not read all seats for it.
SELECT m.now, s.event_id, s.id, s.price, s.blocked, s.booking_id, s.fence, s.row_name, s.number, s.section, s.category,
       s.x, s.y, b.state, b.expires_at, b.buyer
  FROM (SELECT statement_timestamp() + $3::interval AS now) AS m
  LEFT JOIN seats s ON s.event_id = $1 AND s.id = $2
  LEFT JOIN bookings b ON b.id = s.booking_id;

-- name: read_pools
-- The pools of an event, less what lapsed holds still count (those units can be held).
SELECT p.event_id, p.id, p.capacity, p.sold, p.price,
       p.held - coalesce((SELECT sum((line ->> 'units')::integer)
                            FROM bookings b, jsonb_array_elements(b.lines -> 'pools') line
                           WHERE b.state = 'held' AND b.expires_at <= $2 AND b.event_id = p.event_id
                             AND line ->> 'id' = p.id), 0)::integer AS held
  FROM pools p WHERE p.event_id = $1 ORDER BY p.position, p.id LIMIT 10000;

-- name: next_lapse
-- When the clock alone changes a map: the first hold of the event to run out. Units of a pool have no seat that tells.
SELECT expires_at FROM bookings
 WHERE state = 'held' AND expires_at > $2 AND expires_at <= $3 AND event_id = $1
 ORDER BY expires_at LIMIT 1;
