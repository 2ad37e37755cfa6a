-- One writer: a transaction that has begun has every row to itself, so the steps that lock elsewhere only read here.
-- Reads take their keys as one JSON array per event; writes run once per row (both measured faster than the other way).

-- name: read_idempotency_records
-- The idempotency records of claimed keys.
SELECT j.caller, j.key, j.request_hash, j.answer_status, j.answer_body
  FROM json_each(?2) AS k CROSS JOIN journal j ON j.caller = ?1 AND j.key = k.value;

-- name: read_events
-- The rules a claim is judged by.
SELECT e.id, e.name, e.currency, e.mode, e.created_at, e.starts_at, e.sale_opens_at, e.sale_closes_at,
       e.hold_ttl_seconds, e.per_buyer_max, e.on_decline, e.refund_until_seconds, e.refund_fee_percent, e.refund_fee_fixed,
       e.version
  FROM json_each(?1) AS k CROSS JOIN events e ON e.id = k.value LIMIT 1000;

-- name: read_seats
-- Seats and their owners.
SELECT s.event_id, s.id, s.price, s.blocked, s.booking_id, s.fence,
       b.state, b.expires_at, b.buyer, s.row_name, s.number, s.section, s.category
  FROM json_each(?2) AS k
 CROSS JOIN seats s ON s.event_id = ?1 AND s.id = k.value
  LEFT JOIN bookings b ON b.id = s.booking_id;

-- name: insert_event
-- No row changed means the id is taken.
INSERT INTO events (id, name, currency, mode, created_at, starts_at, sale_opens_at, sale_closes_at,
                    hold_ttl_seconds, per_buyer_max, on_decline, refund_until_seconds, refund_fee_percent,
                    refund_fee_fixed, version)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1)
ON CONFLICT DO NOTHING;

-- name: insert_seats
-- A seat of a new event.
INSERT INTO seats (event_id, id, price, blocked, position, row_name, number, section, category, x, y)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_pools
-- The pools of a new event.
INSERT INTO pools (event_id, id, capacity, price, position) VALUES (?, ?, ?, ?, ?);

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

-- name: take_payments
-- One outside payment, one booking, in each mode: where nothing is inserted, the reference was taken before.
INSERT INTO outside_payments (payment_id, mode, booking_id) VALUES (?, ?, ?)
ON CONFLICT DO NOTHING;

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

-- name: update_bookings
-- Bookings as the verb has moved them. The version says that no other transaction did.
UPDATE bookings
   SET state = ?2, lines = ?3, total = ?4, expires_at = ?5, paying_until = ?6, confirmed_at = ?7, ended_at = ?8,
       payment_id = ?9, payment_method = ?10, version = ?11
 WHERE id = ?1 AND version < ?11;

-- name: make_totals
-- A buyer's first units of an event.
INSERT INTO buyer_totals (event_id, buyer, units) VALUES (?1, ?2, ?3);

-- name: add_totals
-- More or fewer units for a buyer who has had some.
UPDATE buyer_totals SET units = units + ?3 WHERE event_id = ?1 AND buyer = ?2;

-- name: add_pools
-- One change per pool and transaction, however many bookings it serves.
UPDATE pools SET held = held + ?3, sold = sold + ?4 WHERE event_id = ?1 AND id = ?2;

-- name: insert_bookings
-- New holds.
INSERT INTO bookings (id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at, version)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1);

-- name: point_seats
-- Seats now belong to their new booking.
UPDATE seats SET booking_id = ?3 WHERE event_id = ?1 AND id = ?2;

-- name: clear_seats
-- Seats that a booking gives back while it stays sold: the pointer must go, for its owner lives on. The fence rises, so
-- that a seat that points to no booking, with a fence of zero, is one that was never held.
UPDATE seats SET booking_id = NULL, fence = fence + 1 WHERE event_id = ?1 AND id = ?2 AND booking_id = ?3;

-- name: update_event
-- An operator's change.
UPDATE events
   SET name = ?2, starts_at = ?3, sale_opens_at = ?4, sale_closes_at = ?5, hold_ttl_seconds = ?6, per_buyer_max = ?7,
       on_decline = ?8, refund_until_seconds = ?9, refund_fee_percent = ?10, refund_fee_fixed = ?11, version = ?12
 WHERE id = ?1;

-- name: change_seats
-- Block, unblock, price anew.
UPDATE seats SET blocked = coalesce(?3, blocked), price = coalesce(?4, price) WHERE event_id = ?1 AND id = ?2;

-- name: change_pools
-- More or fewer units, another price.
UPDATE pools SET capacity = coalesce(?3, capacity), price = coalesce(?4, price) WHERE event_id = ?1 AND id = ?2;

-- name: insert_entries
-- The journal, in the transaction that makes it true.
INSERT INTO journal (id, event_id, booking_id, version, verb, before, after, actor, reason, at, facts,
                     caller, key, request_hash, answer_status, answer_body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: has_entry
-- Did a commit whose answer was lost take place?
SELECT EXISTS (SELECT 1 FROM journal WHERE id = ?1);

-- name: known_keys
-- Which of many keys have an idempotency record, most often none.
SELECT k.key AS place
  FROM json_each(?1) AS k
 CROSS JOIN journal j ON j.caller = json_extract(k.value, '$[0]') AND j.key = json_extract(k.value, '$[1]');

-- name: list_events
-- A page of events, by id.
SELECT id, name, currency, mode, created_at, starts_at, sale_opens_at, sale_closes_at, hold_ttl_seconds, per_buyer_max,
       on_decline, refund_until_seconds, refund_fee_percent, refund_fee_fixed, version
  FROM events WHERE mode = ?1 AND id > ?2 ORDER BY id LIMIT ?3;

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
