-- name: make_event
-- Each scenario has its own event, so that no rows of another one are left.
INSERT INTO events (id, name, currency, mode, created_at) VALUES ($1, 'A race', 'EUR', 'test', statement_timestamp());

-- name: make_seats
-- The few seats that all buyers want.
INSERT INTO seats (event_id, id, price, position)
SELECT $1, s.id, 4500, s.n::integer FROM unnest($2::text[]) WITH ORDINALITY AS s (id, n);

-- name: count_sales
-- Seats that more than one active booking lists, and to how many buyers the worst of them was sold.
SELECT count(*) FILTER (WHERE c.buyers > 1)::integer AS double_sold, coalesce(max(c.buyers), 0)::integer AS buyers_max
  FROM (SELECT b.event_id, line ->> 'id' AS seat, count(*) AS buyers
          FROM bookings b CROSS JOIN jsonb_array_elements(b.lines -> 'seats') AS line
         WHERE b.event_id = ANY ($1::text[])
           AND (b.state IN ('paying', 'confirmed') OR (b.state = 'held' AND b.expires_at > statement_timestamp()))
         GROUP BY b.event_id, line ->> 'id') AS c;

-- name: count_confirmed
-- Sales, as the database has them.
SELECT count(*)::integer FROM bookings WHERE event_id = ANY ($1::text[]) AND state = 'confirmed';

-- name: count_stranded
-- Seats that count as sold though no buyer has paid, and that nothing frees again.
SELECT count(*)::integer
  FROM bookings b CROSS JOIN jsonb_array_elements(b.lines -> 'seats') AS line
 WHERE b.event_id = ANY ($1::text[]) AND b.state = 'confirmed'
   AND NOT EXISTS (SELECT FROM outside_payments p WHERE p.booking_id = b.id);

-- name: count_running
-- Holds whose time is not over yet.
SELECT count(*)::integer FROM bookings
 WHERE event_id = $1 AND state = 'held' AND expires_at > statement_timestamp();
