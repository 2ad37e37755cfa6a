-- The seats and pools of one event, for showing only, and when the clock alone changes them.

-- name: read_map
-- The seats of an event with their owners, in the order in which they were laid out.
SELECT s.event_id, s.id, s.price, s.blocked, s.booking_id, s.fence, s.row_name, s.number, s.section, s.category, s.x, s.y,
       b.state, b.expires_at, b.buyer
  FROM seats s LEFT JOIN bookings b ON b.id = s.booking_id
 WHERE s.event_id = ?1
 ORDER BY s.position, s.id LIMIT 200000;

-- name: read_map_of_one
-- One seat of an event with its owner.
SELECT s.event_id, s.id, s.price, s.blocked, s.booking_id, s.fence, s.row_name, s.number, s.section, s.category, s.x, s.y,
       b.state, b.expires_at, b.buyer
  FROM seats s LEFT JOIN bookings b ON b.id = s.booking_id
 WHERE s.event_id = ?1 AND s.id = ?2;

-- name: read_pools
-- The pools of an event, less what lapsed holds still count (those units can be held).
SELECT p.event_id, p.id, p.capacity, p.held - coalesce(lapsed.units, 0) AS held, p.sold, p.price
  FROM pools p
  LEFT JOIN (SELECT json_extract(line.value, '$.id') AS id, sum(json_extract(line.value, '$.units')) AS units
               FROM bookings b, json_each(b.lines, '$.pools') AS line
              WHERE b.state = 'held' AND b.expires_at <= ?2 AND +b.event_id = ?1
              GROUP BY 1) AS lapsed ON lapsed.id = p.id
 WHERE p.event_id = ?1 ORDER BY p.position, p.id LIMIT 10000;

-- name: next_lapse
-- When the clock alone changes a map: the first hold of the event to run out. Units of a pool have no seat that tells.
SELECT expires_at FROM bookings
 WHERE state = 'held' AND expires_at > ?2 AND expires_at <= ?3 AND +event_id = ?1
 ORDER BY expires_at LIMIT 1;
