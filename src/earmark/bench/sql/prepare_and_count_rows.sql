-- What a bench needs of its database beside the measured statements: new events, vacuumed tables, and counts.

-- name: open_event
-- Each measurement has its own event, so that none is slowed by the rows of another.
INSERT INTO events (id, name, currency, mode, created_at) VALUES ($1, 'A benchmark', 'EUR', 'test', statement_timestamp());

-- name: open_seats
-- Seats S0, S1, … in one statement.
INSERT INTO seats (event_id, id, price, position)
SELECT $1, 'S' || n, 4500, n FROM generate_series(0, $2::integer - 1) AS n;

-- name: open_pool
-- One pool, larger than a measurement can sell.
INSERT INTO pools (event_id, id, capacity, price, position) VALUES ($1, 'GA', $2, 2500, 0);

-- name: tidy_tables
-- Dead rows and old statistics of one measurement must not slow the next. There is no checkpoint in between:
-- after one, the first contender would write every page that it changes to the log as a whole.
-- Columns with documents are left out of the statistics: no plan uses them, and reading them takes longest.
VACUUM (ANALYZE) events, seats, pools, buyer_totals, outside_payments,
       bookings (id, event_id, buyer, mode, state, created_at, expires_at, ended_at, payment_id),
       journal (id, event_id, booking_id, version, verb, at, caller, key);

-- name: count_bookings
-- Sales and holds.
SELECT count(*) FILTER (WHERE state = 'confirmed') AS confirmed, count(*) FILTER (WHERE state = 'held') AS held
  FROM bookings WHERE event_id = ANY ($1::text[]);

-- name: count_seats
-- Seats that belong to a sale.
SELECT count(*) FROM seats s JOIN bookings b ON b.id = s.booking_id
 WHERE s.event_id = ANY ($1::text[]) AND b.event_id = s.event_id AND b.state = 'confirmed';

-- name: count_oversold_seats
-- A seat that n active bookings list was sold n - 1 times too often.
SELECT coalesce(sum(c.owners - 1), 0)::integer
  FROM (SELECT count(*) AS owners
          FROM bookings b, jsonb_array_elements(b.lines -> 'seats') line
         WHERE b.event_id = ANY ($1::text[]) AND b.state IN ('held', 'paying', 'confirmed')
         GROUP BY b.event_id, line ->> 'id' HAVING count(*) > 1) AS c;

-- name: count_oversold_units
-- Units beyond a pool's capacity, by its own count or by its bookings, whichever is worse.
SELECT coalesce(sum(greatest(p.held + p.sold - p.capacity, coalesce(c.units, 0) - p.capacity, 0)), 0)::integer
  FROM pools p
  LEFT JOIN (SELECT b.event_id, line ->> 'id' AS id, sum((line ->> 'units')::integer) AS units
               FROM bookings b, jsonb_array_elements(b.lines -> 'pools') line
              WHERE b.event_id = ANY ($1::text[]) AND b.state IN ('held', 'paying', 'confirmed')
              GROUP BY 1, 2) AS c ON c.event_id = p.event_id AND c.id = p.id
 WHERE p.event_id = ANY ($1::text[]);

-- name: count_double_charged
-- A payment on two bookings, or two outside payments for one.
SELECT (SELECT count(*) FROM (SELECT payment_id FROM bookings
                               WHERE event_id = ANY ($1::text[]) AND payment_id IS NOT NULL
                               GROUP BY payment_id HAVING count(*) > 1) AS shared)
     + (SELECT count(*) FROM (SELECT p.booking_id FROM outside_payments p JOIN bookings b ON b.id = p.booking_id
                               WHERE b.event_id = ANY ($1::text[])
                               GROUP BY p.booking_id HAVING count(*) > 1) AS twice);

-- name: count_lost
-- Bookings that a client was told it has, and that are not there, or whose seats are not theirs.
SELECT count(*) FROM unnest($1::uuid[]) AS told (id)
 WHERE NOT EXISTS (SELECT 1 FROM bookings b WHERE b.id = told.id AND b.state = ANY ($2::text[])
                      AND NOT EXISTS (SELECT 1 FROM jsonb_array_elements(b.lines -> 'seats') line
                                       WHERE NOT EXISTS (SELECT 1 FROM seats s
                                                          WHERE s.event_id = b.event_id AND s.id = line ->> 'id'
                                                            AND s.booking_id = b.id)));

-- name: write_to_log
-- A record without meaning, which the log needs before it can go on to its next file.
SELECT pg_logical_emit_message(false, 'earmark', 'bench');

-- name: next_log_file
-- The rest of the present file is left empty.
SELECT pg_switch_wal();

-- name: checkpoint
-- Files of the log that are not needed any more are used again.
CHECKPOINT;

-- name: count_deadlocks
-- How many deadlocks the database has ended, whether a client saw them or not.
SELECT deadlocks FROM pg_stat_database WHERE datname = current_database();

-- name: read_settings
-- The settings of the server: without a wait for the disk, figures do not apply to production.
SELECT n AS name, current_setting(n) AS setting FROM unnest($1::text[]) AS n;

-- name: as_replica
-- Past bookings are loaded in their last state, which the guards would refuse: a booking begins as held.
SET session_replication_role = replica;

-- name: as_origin
-- Turns the guards on again.
SET session_replication_role = origin;

-- name: empty_tables
-- A database without bookings, again.
TRUNCATE events, bookings, seats, pools, buyer_totals, outside_payments, journal;
