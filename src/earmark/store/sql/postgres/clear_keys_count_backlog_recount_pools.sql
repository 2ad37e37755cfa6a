-- What the janitor and `earmark doctor` need. No verb of a booking runs these.

-- name: take_mark
-- Where the walk stopped; no row back means that another janitor is walking.
SELECT place FROM marks WHERE name = $1 FOR UPDATE SKIP LOCKED;

-- name: move_mark
-- Where the next walk goes on; in the transaction of the walk, so that one that failed is repeated.
UPDATE marks SET place = $2 WHERE name = $1;

-- name: walk_journal
-- The next entries by id, which is by age, whether their time is over, and whether they have an idempotency record.
SELECT id, at <= $2 AS over, key IS NOT NULL AS keyed FROM journal WHERE id > $1 ORDER BY id LIMIT $3;

-- name: clear_keys
-- The entry stays; only its idempotency record goes. A relay that is numbering one of these entries is waited for.
UPDATE journal SET caller = NULL, key = NULL, request_hash = NULL, answer_status = NULL, answer_body = NULL
 WHERE id = ANY ($1::uuid[]);

-- name: count_due
-- Holds that a sweeper should have ended, by its own index.
SELECT count(*) AS due, min(d.expires_at) AS due_since
  FROM (SELECT expires_at FROM bookings WHERE state = 'held' AND expires_at <= $1 ORDER BY expires_at LIMIT $2) AS d;

-- name: count_holds
-- For metrics and the console: the holds of one mode, by the sweeper's index.
SELECT count(*) FILTER (WHERE h.expires_at > $1) AS held, min(h.expires_at) FILTER (WHERE h.expires_at > $1) AS next_at,
       count(*) FILTER (WHERE h.expires_at <= $1) AS due, min(h.expires_at) FILTER (WHERE h.expires_at <= $1) AS due_since
  FROM (SELECT expires_at FROM bookings WHERE state = 'held' AND mode = $2 ORDER BY expires_at LIMIT $3) AS h;

-- name: count_unsent
-- Entries that a relay should have numbered, by its own index.
SELECT count(*) AS unsent, min(u.at) AS unsent_since
  FROM (SELECT at FROM journal WHERE sequence IS NULL LIMIT $1) AS u;

-- name: find_drifted_pools
-- As `verify` finds them, by key.
SELECT p.event_id, p.id
  FROM pools p
  LEFT JOIN (SELECT b.event_id, line ->> 'id' AS id,
                    sum((line ->> 'units')::integer) FILTER (WHERE b.state IN ('held', 'paying')) AS held,
                    sum((line ->> 'units')::integer) FILTER (WHERE b.state = 'confirmed') AS sold
               FROM bookings b CROSS JOIN LATERAL jsonb_array_elements(b.lines -> 'pools') AS line
              WHERE b.state IN ('held', 'paying', 'confirmed') GROUP BY 1, 2) AS c
    ON c.event_id = p.event_id AND c.id = p.id
 WHERE (p.held, p.sold) IS DISTINCT FROM (coalesce(c.held, 0), coalesce(c.sold, 0))
 ORDER BY p.event_id, p.id LIMIT $1;

-- name: find_drifted_totals
-- As `verify` finds them, by key; also those that are missing.
SELECT both_sides.event_id, both_sides.buyer
  FROM (SELECT event_id, buyer, units::bigint AS counted, 0::bigint AS claimed FROM buyer_totals
         UNION ALL
        SELECT b.event_id, b.buyer, 0, jsonb_array_length(b.lines -> 'seats')
               + coalesce((SELECT sum((line ->> 'units')::integer) FROM jsonb_array_elements(b.lines -> 'pools') line), 0)
          FROM bookings b WHERE b.state IN ('held', 'paying', 'confirmed')) AS both_sides
 GROUP BY event_id, buyer HAVING sum(counted) <> sum(claimed)
 ORDER BY event_id, buyer LIMIT $1;

-- name: lock_pool_alone
-- A verb that changes a booking of this pool changes the pool in the same transaction: it has committed, or waits for this one.
SELECT 1 FROM pools WHERE event_id = $1 AND id = $2 FOR NO KEY UPDATE;

-- name: recount_pool
-- A statement of its own, after the lock: it sees what was committed before.
UPDATE pools p SET held = c.held, sold = c.sold
  FROM (SELECT coalesce(sum((line ->> 'units')::integer) FILTER (WHERE b.state IN ('held', 'paying')), 0) AS held,
               coalesce(sum((line ->> 'units')::integer) FILTER (WHERE b.state = 'confirmed'), 0) AS sold
          FROM bookings b CROSS JOIN LATERAL jsonb_array_elements(b.lines -> 'pools') AS line
         WHERE b.event_id = $1 AND b.state IN ('held', 'paying', 'confirmed') AND line ->> 'id' = $2) AS c
 WHERE p.event_id = $1 AND p.id = $2 AND (p.held, p.sold) IS DISTINCT FROM (c.held, c.sold)
RETURNING p.id;

-- name: lock_total_alone
-- Made where it is missing, else locked: a conflict locks, and changes nothing.
INSERT INTO buyer_totals AS t (event_id, buyer, units) VALUES ($1, $2, 0)
ON CONFLICT (event_id, buyer) DO UPDATE SET units = t.units WHERE false;

-- name: recount_total
-- A statement of its own, after the lock: it sees what was committed before.
UPDATE buyer_totals t SET units = c.units
  FROM (SELECT coalesce(sum(jsonb_array_length(b.lines -> 'seats')
               + coalesce((SELECT sum((line ->> 'units')::integer) FROM jsonb_array_elements(b.lines -> 'pools') line), 0)),
                        0) AS units
          FROM bookings b WHERE b.buyer = $2 AND b.event_id = $1 AND b.state IN ('held', 'paying', 'confirmed')) AS c
 WHERE t.event_id = $1 AND t.buyer = $2 AND t.units <> c.units
RETURNING t.buyer;

-- name: forget_payment_keys
-- Which requests opened payments, the oldest first; not where the payment is not decided yet. A decided one stays decided, so
-- this may be judged beside the lock. Materialised, or a plan may look for the oldest again and again, and find more.
WITH old AS MATERIALIZED (
    SELECT caller, key FROM payment_keys o
     WHERE opened_at <= $1
       AND NOT EXISTS (SELECT 1 FROM payments p
                        WHERE p.id = o.payment_id AND p.state IN ('pending', 'requires_action', 'unknown'))
     ORDER BY opened_at LIMIT $2 FOR UPDATE SKIP LOCKED)
DELETE FROM payment_keys k USING old
 WHERE k.caller = old.caller AND k.key = old.key AND k.opened_at <= $1
RETURNING k.key;

-- name: forget_payers
-- Buyers who have not tried to pay since, the longest ago first. A buyer who is trying is passed over.
WITH old AS MATERIALIZED (
    SELECT mode, buyer FROM payers WHERE tried_at <= $1 ORDER BY tried_at LIMIT $2 FOR UPDATE SKIP LOCKED)
DELETE FROM payers p USING old
 WHERE p.mode = old.mode AND p.buyer = old.buyer AND p.tried_at <= $1
RETURNING p.buyer;
