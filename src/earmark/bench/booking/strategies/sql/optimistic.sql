-- Compare and set: a row is written only if it still is as it was looked at.

-- name: point_seats_as_seen
-- Fewer rows than were asked for means that another request was faster.
UPDATE seats s SET booking_id = $4
  FROM unnest($2::text[], $3::integer[]) AS seen (id, fence)
 WHERE s.event_id = $1 AND s.id = seen.id AND s.booking_id IS NULL AND s.fence = seen.fence AND NOT s.blocked;

-- name: take_pools
-- A count needs no version: there is enough at the moment of the write, or there is not.
UPDATE pools p SET held = p.held + d.units
  FROM unnest($2::text[], $3::integer[]) AS d (id, units)
 WHERE p.event_id = $1 AND p.id = d.id AND p.capacity - p.held - p.sold >= d.units;

-- name: mark_confirmed_as_seen
-- No row means that the booking moved since it was looked at.
UPDATE bookings SET state = 'confirmed', confirmed_at = $2, payment_id = $3, version = $4
 WHERE id = $1 AND version = $4 - 1 AND state = 'held';
