-- A verb is one statement, which is one transaction and one round trip.

-- name: hold
-- Lock, look and write at once. A seat is judged by its own columns alone, for those are what a statement that had to wait
-- reads again; its owner is looked at only to say why it was refused. A claim of seats, which most are.
WITH sale AS MATERIALIZED (
    SELECT statement_timestamp() AS now, e.mode, e.currency, coalesce(e.per_buyer_max, 2147483647) AS units_max,
           j.booking_id AS earlier, j.request_hash,
           j.booking_id IS NULL
           AND (e.sale_opens_at IS NULL OR e.sale_opens_at <= statement_timestamp())
           AND (e.sale_closes_at IS NULL OR statement_timestamp() < e.sale_closes_at) AS is_open
      FROM events e LEFT JOIN journal j ON j.caller = $9 AND j.key = $10
     WHERE e.id = $1
), free_seats AS MATERIALIZED (
    SELECT s.id, s.price
      FROM seats s
     WHERE s.event_id = $1 AND s.id = ANY ($3::text[]) AND s.booking_id IS NULL AND NOT s.blocked
       AND (SELECT is_open FROM sale)
     ORDER BY s.id FOR UPDATE
), claim AS MATERIALIZED (
    SELECT count(*)::integer AS units, sum(f.price)::bigint AS total,
           jsonb_build_object('seats', jsonb_agg(jsonb_build_object('id', f.id, 'price', f.price)), 'pools', '[]'::jsonb)
           AS lines
      FROM free_seats f
    HAVING count(*) = cardinality($3::text[]) AND cardinality($4::text[]) + cardinality($5::integer[]) = 0
), counted AS (
    INSERT INTO buyer_totals AS t (event_id, buyer, units)
    SELECT $1, $2, c.units FROM claim c WHERE c.units <= (SELECT units_max FROM sale)
    ON CONFLICT (event_id, buyer) DO UPDATE SET units = t.units + excluded.units
     WHERE t.units + excluded.units <= (SELECT units_max FROM sale)
    RETURNING t.units
), opened AS (
    INSERT INTO bookings (id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at, version)
    SELECT $6, $1, $2, s.mode, 'held', c.lines, c.total, s.currency, s.now,
           s.now + make_interval(secs => $7::integer), 1
      FROM counted, claim c, sale s
    RETURNING id, event_id, buyer, state, lines, total, currency, created_at, expires_at, version
), pointed AS (
    UPDATE seats s SET booking_id = $6
     WHERE s.event_id = $1 AND s.id = ANY ($3::text[]) AND EXISTS (SELECT FROM opened)
), told AS (
    INSERT INTO journal (id, event_id, booking_id, version, verb, before, after, actor, reason, at, facts,
                         caller, key, request_hash, answer_status, answer_body)
    SELECT $8, o.event_id, o.id, o.version, 'hold', NULL, o.state, $9, NULL, o.created_at,
           jsonb_build_object('buyer', o.buyer, 'lines', o.lines, 'total', o.total, 'currency', o.currency,
                              'expires_at', o.expires_at),
           $9, $10, $11, 201,
           convert_to(json_build_object(
               'id', o.id, 'event_id', o.event_id, 'buyer', o.buyer, 'state', o.state, 'lines', o.lines,
               'total', o.total, 'currency', o.currency, 'created_at', o.created_at, 'expires_at', o.expires_at,
               'confirmed_at', NULL, 'payment_id', NULL, 'version', o.version)::text, 'UTF8')
      FROM opened o
    RETURNING booking_id
)
SELECT t.booking_id, sale.earlier, sale.request_hash,
       CASE WHEN t.booking_id IS NULL THEN
           EXISTS (SELECT FROM seats s JOIN bookings b ON b.id = s.booking_id
                    WHERE s.event_id = $1 AND s.id = ANY ($3::text[])
                      AND (b.state NOT IN ('held', 'paying', 'confirmed')
                           OR (b.state = 'held' AND b.expires_at <= statement_timestamp())))
       END AS stale
  FROM sale LEFT JOIN told t ON true;

-- name: hold_with_pools
-- The same, with the same arguments, for a claim with pools in it. Two statements, because steps that have nothing to do
-- cost time all the same.
WITH sale AS MATERIALIZED (
    SELECT statement_timestamp() AS now, e.mode, e.currency, coalesce(e.per_buyer_max, 2147483647) AS units_max,
           j.booking_id AS earlier, j.request_hash,
           j.booking_id IS NULL
           AND (e.sale_opens_at IS NULL OR e.sale_opens_at <= statement_timestamp())
           AND (e.sale_closes_at IS NULL OR statement_timestamp() < e.sale_closes_at) AS is_open
      FROM events e LEFT JOIN journal j ON j.caller = $9 AND j.key = $10
     WHERE e.id = $1
), free_seats AS MATERIALIZED (
    SELECT s.id, s.price
      FROM seats s
     WHERE s.event_id = $1 AND s.id = ANY ($3::text[]) AND s.booking_id IS NULL AND NOT s.blocked
       AND (SELECT is_open FROM sale)
     ORDER BY s.id FOR UPDATE
), free_pools AS MATERIALIZED (
    SELECT p.id, p.price, d.units
      FROM unnest($4::text[], $5::integer[]) AS d (id, units) JOIN pools p ON p.event_id = $1 AND p.id = d.id
     WHERE p.capacity - p.held - p.sold >= d.units AND (SELECT is_open FROM sale)
     ORDER BY p.id FOR UPDATE OF p
), claim AS MATERIALIZED (
    SELECT s.units + p.units AS units, s.total + p.total AS total,
           jsonb_build_object('seats', s.lines, 'pools', p.lines) AS lines
      FROM (SELECT count(*)::integer AS units, coalesce(sum(f.price), 0)::bigint AS total,
                   coalesce(jsonb_agg(jsonb_build_object('id', f.id, 'price', f.price)), '[]') AS lines
              FROM free_seats f HAVING count(*) = cardinality($3::text[])) AS s,
           (SELECT sum(f.units)::integer AS units, sum(f.price * f.units)::bigint AS total,
                   jsonb_agg(jsonb_build_object('id', f.id, 'units', f.units, 'price', f.price)) AS lines
              FROM free_pools f HAVING count(*) = cardinality($4::text[])) AS p
), counted AS (
    INSERT INTO buyer_totals AS t (event_id, buyer, units)
    SELECT $1, $2, c.units FROM claim c WHERE c.units <= (SELECT units_max FROM sale)
    ON CONFLICT (event_id, buyer) DO UPDATE SET units = t.units + excluded.units
     WHERE t.units + excluded.units <= (SELECT units_max FROM sale)
    RETURNING t.units
), opened AS (
    INSERT INTO bookings (id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at, version)
    SELECT $6, $1, $2, s.mode, 'held', c.lines, c.total, s.currency, s.now,
           s.now + make_interval(secs => $7::integer), 1
      FROM counted, claim c, sale s
    RETURNING id, event_id, buyer, state, lines, total, currency, created_at, expires_at, version
), taken AS (
    UPDATE pools p SET held = p.held + d.units
      FROM unnest($4::text[], $5::integer[]) AS d (id, units)
     WHERE p.event_id = $1 AND p.id = d.id AND EXISTS (SELECT FROM opened)
), pointed AS (
    UPDATE seats s SET booking_id = $6
     WHERE s.event_id = $1 AND s.id = ANY ($3::text[]) AND EXISTS (SELECT FROM opened)
), told AS (
    INSERT INTO journal (id, event_id, booking_id, version, verb, before, after, actor, reason, at, facts,
                         caller, key, request_hash, answer_status, answer_body)
    SELECT $8, o.event_id, o.id, o.version, 'hold', NULL, o.state, $9, NULL, o.created_at,
           jsonb_build_object('buyer', o.buyer, 'lines', o.lines, 'total', o.total, 'currency', o.currency,
                              'expires_at', o.expires_at),
           $9, $10, $11, 201,
           convert_to(json_build_object(
               'id', o.id, 'event_id', o.event_id, 'buyer', o.buyer, 'state', o.state, 'lines', o.lines,
               'total', o.total, 'currency', o.currency, 'created_at', o.created_at, 'expires_at', o.expires_at,
               'confirmed_at', NULL, 'payment_id', NULL, 'version', o.version)::text, 'UTF8')
      FROM opened o
    RETURNING booking_id
)
SELECT t.booking_id, sale.earlier, sale.request_hash,
       CASE WHEN t.booking_id IS NULL THEN
           EXISTS (SELECT FROM seats s JOIN bookings b ON b.id = s.booking_id
                    WHERE s.event_id = $1 AND s.id = ANY ($3::text[])
                      AND (b.state NOT IN ('held', 'paying', 'confirmed')
                           OR (b.state = 'held' AND b.expires_at <= statement_timestamp())))
       END AS stale
  FROM sale LEFT JOIN told t ON true;

-- name: confirm
-- One guarded write and what follows from it. No row back means that it was not held any more: then, and only then, it is
-- asked why. The guard is a CASE because a plain one invites the planner to walk all holds by their time, rather than to
-- take the one booking by its key.
WITH moved AS (
    UPDATE bookings b
       SET state = 'confirmed', confirmed_at = statement_timestamp(), payment_id = $2, version = b.version + 1
     WHERE b.id = $1 AND CASE WHEN b.state = 'held' THEN b.expires_at > statement_timestamp() END
    RETURNING b.*
), paid AS (
    INSERT INTO outside_payments (payment_id, mode, booking_id) SELECT $2, 'test', m.id FROM moved m
), sold AS (
    UPDATE pools p SET held = p.held - l.units, sold = p.sold + l.units
      FROM moved m CROSS JOIN LATERAL jsonb_to_recordset(m.lines -> 'pools') AS l (id text, units integer)
     WHERE p.event_id = m.event_id AND p.id = l.id
)
INSERT INTO journal (id, event_id, booking_id, version, verb, before, after, actor, reason, at, facts,
                     caller, key, request_hash, answer_status, answer_body)
SELECT $3, m.event_id, m.id, m.version, 'confirm', 'held', 'confirmed', $4, NULL, m.confirmed_at,
       jsonb_build_object('was', '{}'::jsonb, 'confirmed_at', m.confirmed_at, 'payment_id', m.payment_id),
       $4, $5, $6, 200,
       convert_to(json_build_object(
           'id', m.id, 'event_id', m.event_id, 'buyer', m.buyer, 'state', m.state, 'lines', m.lines, 'total', m.total,
           'currency', m.currency, 'created_at', m.created_at, 'expires_at', m.expires_at,
           'confirmed_at', m.confirmed_at, 'payment_id', m.payment_id, 'version', m.version)::text, 'UTF8')
  FROM moved m
RETURNING booking_id;
