-- name: begin
-- A transaction's one moment. The offset is zero in production; tests move time with it.
SELECT statement_timestamp() + $1::interval AS now;

-- name: begin_locking
-- The same, and how long this transaction waits for a locked row.
SELECT statement_timestamp() + $1::interval AS now, set_config('lock_timeout', $2::text, true);

-- name: claim_keys
-- Claim idempotency keys until the transaction ends, without waiting: one that another transaction has is busy.
SELECT statement_timestamp() + $1::interval AS now, k.n::integer AS n,
       pg_try_advisory_xact_lock(earmark_claim(k.caller, k.key)) AS claimed, wait
  FROM set_config('lock_timeout', $4::text, true) AS wait, unnest($2::text[], $3::text[]) WITH ORDINALITY AS k (caller, key, n);

-- name: read_idempotency_records
-- The idempotency records of claimed keys. A second statement, so that it sees what was committed before the claim.
-- Key by key, whatever the planner believes about the size of the journal.
SELECT j.caller, j.key, j.request_hash, j.answer_status, j.answer_body,
       current_setting('synchronous_standby_names') <> '' AS replicated
  FROM unnest($1::text[], $2::text[]) AS k (caller, key)
 CROSS JOIN LATERAL (SELECT * FROM journal WHERE caller = k.caller AND key = k.key AND key IS NOT NULL OFFSET 0) AS j;

-- name: read_events
-- The rules a claim is judged by.
SELECT id, name, currency, mode, created_at, starts_at, sale_opens_at, sale_closes_at, hold_ttl_seconds, per_buyer_max,
       version, on_decline, refund_until_seconds, refund_fee_percent, refund_fee_fixed
  FROM events WHERE id = ANY ($1::text[]) LIMIT 1000;

-- name: read_seats
-- Seats and their owners in ONE snapshot: bookings read on their own could be older than the pointers.
SELECT r.n::integer AS n, s.price, s.blocked, s.booking_id, s.fence, b.state, b.expires_at, b.buyer,
       s.row_name, s.number, s.section, s.category
  FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS r (event_id, id, n)
  JOIN seats s ON s.event_id = r.event_id AND s.id = r.id
  LEFT JOIN bookings b ON b.id = s.booking_id;

-- name: insert_event
-- No row back means the id is taken.
INSERT INTO events (id, name, currency, mode, created_at, starts_at, sale_opens_at, sale_closes_at,
                    hold_ttl_seconds, per_buyer_max, on_decline, refund_until_seconds, refund_fee_percent,
                    refund_fee_fixed, version)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, 1)
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

-- name: lock_event
-- Operators change an event one after the other.
SELECT id, name, currency, mode, created_at, starts_at, sale_opens_at, sale_closes_at, hold_ttl_seconds, per_buyer_max,
       version, on_decline, refund_until_seconds, refund_fee_percent, refund_fee_fixed
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
-- Which of these buyers have lapsed holds, also those that another transaction is changing. What is due is read once for
-- all of them: as a condition of its own, IS TRUE keeps it from being joined, which would read it for each buyer again.
SELECT r.n FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS r (event_id, buyer, n)
 WHERE ((r.event_id, r.buyer) IN (SELECT b.event_id, b.buyer FROM bookings b
                                   WHERE b.state = 'held' AND b.expires_at <= $1)) IS TRUE;

-- name: find_pools_with_due
-- Which of these pools have units in lapsed holds, also in those that another transaction is changing; read once, too.
WITH due AS MATERIALIZED (
    SELECT DISTINCT b.event_id, line ->> 'id' AS id
      FROM bookings b CROSS JOIN LATERAL jsonb_array_elements(b.lines -> 'pools') AS line
     WHERE b.state = 'held' AND b.expires_at <= $1
)
SELECT r.n FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS r (event_id, id, n)
 WHERE ((r.event_id, r.id) IN (SELECT due.event_id, due.id FROM due)) IS TRUE;

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

-- name: take_payments
-- One outside payment, one booking, in each mode: a reference that does not come back was taken before.
INSERT INTO outside_payments (payment_id, mode, booking_id)
SELECT p.payment_id, p.mode, p.booking_id
  FROM unnest($1::text[], $2::text[], $3::uuid[]) AS p (payment_id, mode, booking_id)
 ORDER BY p.payment_id, p.mode
ON CONFLICT DO NOTHING
RETURNING payment_id, mode;

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
       on_decline = $8, refund_until_seconds = $9, refund_fee_percent = $10, refund_fee_fixed = $11, version = $12
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

-- name: has_entry
-- Did a commit whose answer was lost take place? With a synchronous standby, that it is here does not say that it is there.
SELECT EXISTS (SELECT 1 FROM journal WHERE id = $1) AS found,
       current_setting('synchronous_standby_names') <> '' AS replicated;

-- name: wait_for_standby
-- A write to no table, whose commit waits for the synchronous standby: what was committed before it is then there too.
SELECT pg_logical_emit_message(true, 'earmark', 'replay');

-- name: still_running
-- Which of these backends have not ended, nor finished what they were doing; and which of them wait for a standby.
-- A number may have gone to another process: ours is a session of this role on this database that began before we left
-- it; a second is allowed for clocks that differ. A session that has taken another role on may not see its own, only
-- NULLs; these count, as forgetting them would fill the server.
SELECT pid, coalesce(a.wait_event = 'SyncRep', false) AS hanging
  FROM unnest($1::integer[], $2::float8[]) AS abandoned (pid, seconds) JOIN pg_stat_activity a USING (pid)
 WHERE a.datname = current_database() AND a.usename = session_user AND a.state IS DISTINCT FROM 'idle'
   AND (a.backend_type = 'client backend') IS NOT FALSE
   AND (clock_timestamp() - a.backend_start >= make_interval(secs => abandoned.seconds - 1)) IS NOT FALSE LIMIT 1000;

-- name: readiness
-- Whether this server keeps what is written: a standby and a read-only database refuse it, and a commit that has waited
-- for its synchronous standby for so long will not be answered.
SELECT pg_is_in_recovery() AS standby, current_setting('transaction_read_only') = 'on' AS read_only,
       (SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND wait_event = 'SyncRep'
           AND state_change < clock_timestamp() - $1::interval) AS hanging;

-- name: which_server
-- Which server a new connection has met, and whether its transactions are what every guarded write was written for.
SELECT pg_postmaster_start_time() AS started_at, current_setting('default_transaction_isolation') AS isolation;

-- name: lock_table
-- How many locks PostgreSQL has room for, in all sessions together.
SELECT current_setting('max_locks_per_transaction')::integer
       * (current_setting('max_connections')::integer + current_setting('max_prepared_transactions')::integer) AS entries;

-- name: known_keys
-- Which of many keys have an idempotency record, most often none. They come as JSON, which costs the caller less than arrays.
SELECT k.n::integer AS n
  FROM json_array_elements($1::json) WITH ORDINALITY AS k (pair, n)
 CROSS JOIN LATERAL (SELECT FROM journal
                      WHERE caller = k.pair ->> 0 AND key = k.pair ->> 1 AND key IS NOT NULL OFFSET 0) AS j;

-- name: list_events
-- A page of events, by id.
SELECT id, name, currency, mode, created_at, starts_at, sale_opens_at, sale_closes_at, hold_ttl_seconds, per_buyer_max,
       version, on_decline, refund_until_seconds, refund_fee_percent, refund_fee_fixed
  FROM events WHERE mode = $1 AND id > $2 ORDER BY id LIMIT $3;

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

-- name: read_booking
-- One booking and the moment at which it was read, in one statement: a later moment would judge it by what it was.
SELECT b.id, b.event_id, b.buyer, b.mode, b.state, b.lines, b.total, b.currency, b.created_at, b.expires_at,
       b.paying_until, b.confirmed_at, b.ended_at, b.payment_id, b.payment_method, b.version, m.now
  FROM (SELECT statement_timestamp() + $2::interval AS now) AS m LEFT JOIN bookings b ON b.id = $1;

-- name: list_bookings
-- A page of all bookings, oldest first. A hold whose time is over is listed as expired, swept or not.
SELECT id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at, paying_until, confirmed_at,
       ended_at, payment_id, payment_method, version
  FROM bookings
 WHERE mode = $1 AND id > $2
   AND ($3::text IS NULL OR (CASE WHEN state = 'held' AND expires_at <= $4 THEN 'expired' ELSE state END) = $3)
 ORDER BY id LIMIT $5;

-- name: list_bookings_of_event
-- As above, for one event: a statement of its own, so that the generic plan can use the index.
SELECT id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at, paying_until, confirmed_at,
       ended_at, payment_id, payment_method, version
  FROM bookings
 WHERE mode = $1 AND id > $2
   AND ($3::text IS NULL OR (CASE WHEN state = 'held' AND expires_at <= $4 THEN 'expired' ELSE state END) = $3)
   AND event_id = $6
 ORDER BY id LIMIT $5;

-- name: list_bookings_of_buyer
-- As above, for one buyer, at one event or at all.
SELECT id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at, paying_until, confirmed_at,
       ended_at, payment_id, payment_method, version
  FROM bookings
 WHERE mode = $1 AND id > $2
   AND ($3::text IS NULL OR (CASE WHEN state = 'held' AND expires_at <= $4 THEN 'expired' ELSE state END) = $3)
   AND buyer = $6 AND ($7::text IS NULL OR event_id = $7)
 ORDER BY id LIMIT $5;

-- name: read_history
-- All that happened to a booking.
SELECT id, event_id, booking_id, version, verb, before, after, actor, reason, at, facts
  FROM journal WHERE booking_id = $1 ORDER BY version LIMIT 10000;

-- name: seconds_to_next_due
-- When the sweeper should wake.
SELECT extract(epoch FROM min(expires_at) - (statement_timestamp() + $1::interval))::double precision
  FROM bookings WHERE state = 'held';

-- name: look_to_hold
-- All that holds are judged by, in one snapshot and one round trip: idempotency records, events, seats with owners.
SELECT statement_timestamp() + $1::interval AS now,
       ARRAY (SELECT (j.caller, j.key, j.request_hash, j.answer_status, j.answer_body)::earmark_memory
                FROM unnest($2::text[], $3::text[]) AS k (caller, key)
               CROSS JOIN LATERAL (SELECT * FROM journal
                                    WHERE caller = k.caller AND key = k.key AND key IS NOT NULL OFFSET 0) AS j) AS memories,
       ARRAY (SELECT (id, name, currency, mode, created_at, starts_at, sale_opens_at, sale_closes_at, hold_ttl_seconds,
                      per_buyer_max, version)::earmark_event FROM events WHERE id = ANY ($4::text[])) AS events,
       ARRAY (SELECT (r.n, s.price, s.blocked, s.booking_id, s.fence, b.state, b.expires_at, b.buyer,
                      s.row_name, s.number, s.section, s.category)::earmark_seat_named
                FROM unnest($5::text[], $6::text[]) WITH ORDINALITY AS r (event_id, id, n)
                JOIN seats s ON s.event_id = r.event_id AND s.id = r.id
                LEFT JOIN bookings b ON b.id = s.booking_id) AS seats,
       current_setting('synchronous_standby_names') <> '' AS replicated;

-- name: look_at_bookings
-- All that the other verbs are judged by: idempotency records, and the bookings as they are.
SELECT statement_timestamp() + $1::interval AS now,
       ARRAY (SELECT (j.caller, j.key, j.request_hash, j.answer_status, j.answer_body)::earmark_memory
                FROM unnest($2::text[], $3::text[]) AS k (caller, key)
               CROSS JOIN LATERAL (SELECT * FROM journal
                                    WHERE caller = k.caller AND key = k.key AND key IS NOT NULL OFFSET 0) AS j) AS memories,
       ARRAY (SELECT (id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at, paying_until,
                      confirmed_at, ended_at, payment_id, payment_method, version)::earmark_booking
                FROM bookings WHERE id = ANY ($4::uuid[])) AS bookings,
       current_setting('synchronous_standby_names') <> '' AS replicated;

-- name: see_bookings
-- Owners whose hold seems to have run out, unlocked: the write compares their versions.
SELECT id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at, paying_until, confirmed_at,
       ended_at, payment_id, payment_method, version
  FROM bookings WHERE id = ANY ($1::uuid[]);

-- name: see_totals
-- The totals of buyers with a limit, unlocked: the write judges the limit again.
SELECT t.event_id, t.buyer, t.units
  FROM unnest($1::text[], $2::text[]) AS r (event_id, buyer)
  JOIN buyer_totals t ON t.event_id = r.event_id AND t.buyer = r.buyer;

-- name: see_pools
-- Prices and what is free, unlocked: the write judges the capacity again.
SELECT p.event_id, p.id, p.capacity, p.held, p.sold, p.price
  FROM unnest($1::text[], $2::text[]) AS r (event_id, id)
  JOIN pools p ON p.event_id = r.event_id AND p.id = r.id;

-- name: write_optimistically
-- Everything that an optimistic write changes, compared with what it saw; EM001 when a row moved. First how long it waits for a
-- locked row: a select list is evaluated from left to right.
SELECT set_config('lock_timeout', $14::text, true), earmark_write($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13);

-- name: write_hold_alone
-- One hold of seats that were never held, judged from the seat cache: what `write_optimistically` would do, compared and
-- refused as a whole in the same way, but in one statement of plain values. Totals are locked before seats, as there: the
-- last SELECT needs them in that order. The booking and its journal entry are written once both are known to hold.
WITH fit AS MATERIALIZED (
    SELECT e.id, e.per_buyer_max
      FROM events e
     WHERE e.id = $3 AND e.version = $4 AND set_config('lock_timeout', $25::text, true) <> ''
       AND $1::timestamptz BETWEEN statement_timestamp() + $2::interval - interval '1 second'
                               AND statement_timestamp() + $2::interval + interval '20 ms'
       AND ($21::text IS NULL OR pg_try_advisory_xact_lock(earmark_claim($20::text, $21::text)))
), counted AS (
    INSERT INTO buyer_totals AS t (event_id, buyer, units) SELECT fit.id, $5, $12::integer FROM fit
    ON CONFLICT (event_id, buyer) DO UPDATE SET units = t.units + excluded.units
     WHERE (SELECT per_buyer_max FROM fit) IS NULL OR t.units + excluded.units <= (SELECT per_buyer_max FROM fit)
    RETURNING 1
), taken AS (
    UPDATE seats s SET booking_id = $11::uuid
      FROM fit, unnest($13::text[], $14::integer[], $15::bigint[]) AS w (id, fence, price)
     WHERE s.event_id = fit.id AND s.id = w.id
       AND s.booking_id IS NULL AND s.fence = w.fence AND s.price = w.price AND NOT s.blocked
    RETURNING 1
), opened AS (
    INSERT INTO bookings (id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at, version)
    SELECT $11::uuid, fit.id, $5, $6, 'held', $7, $8, $9, $1, $10, 1 FROM fit
), told AS (
    INSERT INTO journal (id, event_id, booking_id, version, verb, before, after, actor, reason, at, facts,
                         caller, key, request_hash, answer_status, answer_body)
    SELECT $16, fit.id, $11::uuid, 1, 'hold', NULL, 'held', $17, $18, $1, $19, $20, $21, $22, $23, $24 FROM fit
)
SELECT CASE WHEN (SELECT count(*) FROM counted) <> 1 THEN earmark_expect(0, 1, 'totals')
            WHEN (SELECT count(*) FROM taken) <> cardinality($13) THEN earmark_expect(0, cardinality($13), 'seats')
       END;

-- name: read_free_seats
-- The free seats of an event, page by page, for the seat cache: those that were never held, and those whose booking
-- has ended, with its id. Most seats of a row have one price, which is given once.
SELECT price, fence, array_agg(id) AS ids, array_agg(booking_id) FILTER (WHERE booking_id IS NOT NULL) AS pointers,
       max(id) AS last, row_name, section, category, array_agg(number) AS numbers
  FROM (SELECT s.id, s.price, s.fence, s.booking_id, s.row_name, s.section, s.category, s.number
          FROM seats s LEFT JOIN bookings b ON b.id = s.booking_id
         WHERE s.event_id = $1 AND s.id > $2 AND NOT s.blocked
           AND (s.booking_id IS NULL OR b.state IN ('released', 'expired', 'failed', 'cancelled'))
         ORDER BY s.id LIMIT $3) AS page
 GROUP BY price, fence, booking_id IS NULL, row_name, section, category;
