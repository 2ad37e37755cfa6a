-- An optimistic transaction: what it reads without locks, the call that writes if nothing has moved since, and the pages
-- that fill its seat cache.

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
