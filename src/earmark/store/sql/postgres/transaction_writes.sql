-- What a transaction writes of events, bookings, seats, pools and totals, and the journal entry of each change. A statement
-- writes all rows of its kind.

-- name: insert_event
-- No row back means the id is taken.
INSERT INTO events (id, name, currency, mode, created_at, starts_at, sale_opens_at, sale_closes_at,
                    hold_ttl_seconds, per_buyer_max, on_decline, refund_until_seconds, refund_fee_percent,
                    refund_fee_fixed, buyer_cancel_until_seconds, version)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, 1)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: insert_seats
-- All seats of a new event, in one statement.
INSERT INTO seats (event_id, id, price, blocked, position, row_name, number, section, category, x, y)
SELECT $1, s.id, s.price, s.blocked, s.position, s.row_name, s.number, s.section, s.category, s.x, s.y
  FROM unnest($2::text[], $3::bigint[], $4::boolean[], $5::integer[], $6::text[], $7::integer[], $8::text[], $9::text[],
              $10::double precision[], $11::double precision[])
       AS s (id, price, blocked, position, row_name, number, section, category, x, y);

-- name: insert_pools
-- The pools of a new event.
INSERT INTO pools (event_id, id, capacity, price, position)
SELECT $1, p.id, p.capacity, p.price, p.position
  FROM unnest($2::text[], $3::integer[], $4::bigint[], $5::integer[]) AS p (id, capacity, price, position);

-- name: tie_outside_payments
-- One outside payment, one booking, in each mode: a reference that does not come back was tied before.
INSERT INTO outside_payments (payment_id, mode, booking_id)
SELECT p.payment_id, p.mode, p.booking_id
  FROM unnest($1::text[], $2::text[], $3::uuid[]) AS p (payment_id, mode, booking_id)
 ORDER BY p.payment_id, p.mode
ON CONFLICT DO NOTHING
RETURNING payment_id, mode;

-- name: update_bookings
-- Bookings that this transaction has locked, as the verb has moved them. The version says that no other transaction did.
UPDATE bookings b
   SET state = m.state, lines = m.lines::jsonb, total = m.total, expires_at = m.expires_at, paying_until = m.paying_until,
       confirmed_at = m.confirmed_at, ended_at = m.ended_at, payment_id = m.payment_id,
       payment_method = m.payment_method, version = m.version
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[], $5::timestamptz[], $6::timestamptz[], $7::timestamptz[],
              $8::timestamptz[], $9::text[], $10::text[], $11::integer[])
       AS m (id, state, lines, total, expires_at, paying_until, confirmed_at, ended_at, payment_id, payment_method, version)
 WHERE b.id = m.id AND b.version < m.version;

-- name: add_totals
-- The totals were locked in order before.
UPDATE buyer_totals t SET units = t.units + d.units
  FROM unnest($1::text[], $2::text[], $3::integer[]) AS d (event_id, buyer, units)
 WHERE t.event_id = d.event_id AND t.buyer = d.buyer;

-- name: drop_empty_totals
-- A refused first hold leaves no row: totals that this transaction made and added nothing to.
DELETE FROM buyer_totals t USING unnest($1::text[], $2::text[]) AS d (event_id, buyer)
 WHERE t.event_id = d.event_id AND t.buyer = d.buyer AND t.units = 0;

-- name: add_pools
-- One change per pool and transaction, however many bookings it serves.
UPDATE pools p SET held = p.held + d.held, sold = p.sold + d.sold
  FROM unnest($1::text[], $2::text[], $3::integer[], $4::integer[]) AS d (event_id, id, held, sold)
 WHERE p.event_id = d.event_id AND p.id = d.id;

-- name: insert_bookings
-- New holds.
INSERT INTO bookings (id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at, version)
SELECT b.id, b.event_id, b.buyer, b.mode, b.state, b.lines::jsonb, b.total, b.currency, b.created_at, b.expires_at, 1
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::text[],
              $9::timestamptz[], $10::timestamptz[])
       AS b (id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at);

-- name: point_seats
-- Seats that were compared and locked now belong to their new booking.
UPDATE seats s SET booking_id = p.booking_id
  FROM unnest($1::text[], $2::text[], $3::uuid[]) AS p (event_id, id, booking_id)
 WHERE s.event_id = p.event_id AND s.id = p.id;

-- name: clear_seats
-- Seats that a booking gives back while it stays sold: the pointer must go, for its owner lives on. The fence rises, so
-- that a seat that points to no booking, with a fence of zero, is one that was never held.
UPDATE seats s SET booking_id = NULL, fence = s.fence + 1
  FROM (SELECT s2.event_id, s2.id FROM seats s2
          JOIN unnest($1::text[], $2::text[], $3::uuid[]) AS p (event_id, id, booking_id)
            ON s2.event_id = p.event_id AND s2.id = p.id AND s2.booking_id = p.booking_id
         ORDER BY s2.event_id, s2.id FOR NO KEY UPDATE OF s2) AS c
 WHERE s.event_id = c.event_id AND s.id = c.id;

-- name: update_event
-- An operator's change; the row was locked before.
UPDATE events
   SET name = $2, starts_at = $3, sale_opens_at = $4, sale_closes_at = $5, hold_ttl_seconds = $6, per_buyer_max = $7,
       on_decline = $8, refund_until_seconds = $9, refund_fee_percent = $10, refund_fee_fixed = $11,
       buyer_cancel_until_seconds = $12, version = $13
 WHERE id = $1;

-- name: change_seats
-- Block, unblock, price anew.
UPDATE seats s SET blocked = coalesce(c.blocked, s.blocked), price = coalesce(c.price, s.price)
  FROM unnest($1::text[], $2::text[], $3::boolean[], $4::bigint[]) AS c (event_id, id, blocked, price)
 WHERE s.event_id = c.event_id AND s.id = c.id;

-- name: change_pools
-- More or fewer units, another price.
UPDATE pools p SET capacity = coalesce(c.capacity, p.capacity), price = coalesce(c.price, p.price)
  FROM unnest($1::text[], $2::text[], $3::integer[], $4::bigint[]) AS c (event_id, id, capacity, price)
 WHERE p.event_id = c.event_id AND p.id = c.id;

-- name: insert_entries
-- The journal, in the transaction that makes it true.
INSERT INTO journal (id, event_id, booking_id, version, verb, before, after, actor, reason, at, facts,
                     caller, key, request_hash, answer_status, answer_body)
SELECT e.id, e.event_id, e.booking_id, e.version, e.verb, e.before, e.after, e.actor, e.reason, e.at, e.facts::jsonb,
       e.caller, e.key, e.request_hash, e.answer_status, e.answer_body
  FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::integer[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
              $10::timestamptz[], $11::text[], $12::text[], $13::text[], $14::bytea[], $15::integer[], $16::bytea[])
       AS e (id, event_id, booking_id, version, verb, before, after, actor, reason, at, facts,
             caller, key, request_hash, answer_status, answer_body);
