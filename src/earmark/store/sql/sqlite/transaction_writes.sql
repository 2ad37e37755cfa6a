-- What a transaction writes of events, bookings, seats, pools and totals, and the journal entry of each change. A statement
-- runs once per row (measured faster than one statement for all rows).

-- name: insert_event
-- No row changed means the id is taken.
INSERT INTO events (id, name, currency, mode, created_at, starts_at, sale_opens_at, sale_closes_at,
                    hold_ttl_seconds, per_buyer_max, on_decline, refund_until_seconds, refund_fee_percent,
                    refund_fee_fixed, buyer_cancel_until_seconds, version)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1)
ON CONFLICT DO NOTHING;

-- name: insert_seats
-- A seat of a new event.
INSERT INTO seats (event_id, id, price, blocked, position, row_name, number, section, category, x, y)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_pools
-- The pools of a new event.
INSERT INTO pools (event_id, id, capacity, price, position) VALUES (?, ?, ?, ?, ?);

-- name: tie_outside_payments
-- One outside payment, one booking, in each mode: where nothing is inserted, the reference was tied before.
INSERT INTO outside_payments (payment_id, mode, booking_id) VALUES (?, ?, ?)
ON CONFLICT DO NOTHING;

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
       on_decline = ?8, refund_until_seconds = ?9, refund_fee_percent = ?10, refund_fee_fixed = ?11,
       buyer_cancel_until_seconds = ?12, version = ?13
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
