-- What the janitor and `earmark doctor` need. No verb of a booking runs these.

-- name: take_mark
-- Where the walk stopped.
SELECT place FROM marks WHERE name = ?1;

-- name: move_mark
-- Where the next walk goes on; in the transaction of the walk, so that one that failed is repeated.
UPDATE marks SET place = ?2 WHERE name = ?1;

-- name: walk_journal
-- The next entries by id, which is by age, whether their time is over, and whether they have an idempotency record.
SELECT id, at <= ?2 AS over, key IS NOT NULL AS keyed FROM journal WHERE id > ?1 ORDER BY id LIMIT ?3;

-- name: clear_keys
-- The entry stays; only its idempotency record goes.
UPDATE journal SET caller = NULL, key = NULL, request_hash = NULL, answer_status = NULL, answer_body = NULL
 WHERE id IN (SELECT value FROM json_each(?1));

-- name: count_due
-- Holds that a sweeper should have ended, by its own index.
SELECT count(*) AS due, min(d.expires_at) AS due_since
  FROM (SELECT expires_at FROM bookings WHERE state = 'held' AND expires_at <= ?1 ORDER BY expires_at LIMIT ?2) AS d;

-- name: count_holds
-- For metrics and the console: the holds of one mode, by the sweeper's index.
SELECT count(*) FILTER (WHERE h.expires_at > ?1) AS held, min(h.expires_at) FILTER (WHERE h.expires_at > ?1) AS next_at,
       count(*) FILTER (WHERE h.expires_at <= ?1) AS due, min(h.expires_at) FILTER (WHERE h.expires_at <= ?1) AS due_since
  FROM (SELECT expires_at FROM bookings WHERE state = 'held' AND mode = ?2 ORDER BY expires_at LIMIT ?3) AS h;

-- name: count_unsent
-- Entries that a relay should have numbered, by its own index.
SELECT count(*) AS unsent, min(u.at) AS unsent_since
  FROM (SELECT at FROM journal WHERE sequence IS NULL LIMIT ?1) AS u;

-- name: find_drifted_pools
-- As `verify` finds them, by key.
SELECT p.event_id, p.id
  FROM pools p
  LEFT JOIN (SELECT b.event_id, json_extract(line.value, '$.id') AS id,
                    sum(json_extract(line.value, '$.units')) FILTER (WHERE b.state IN ('held', 'paying')) AS held,
                    sum(json_extract(line.value, '$.units')) FILTER (WHERE b.state = 'confirmed') AS sold
               FROM bookings b, json_each(b.lines, '$.pools') AS line
              WHERE b.state IN ('held', 'paying', 'confirmed') GROUP BY 1, 2) AS c
    ON c.event_id = p.event_id AND c.id = p.id
 WHERE (p.held, p.sold) IS NOT (coalesce(c.held, 0), coalesce(c.sold, 0))
 ORDER BY p.event_id, p.id LIMIT ?1;

-- name: find_drifted_totals
-- As `verify` finds them, by key; also those that are missing.
SELECT event_id, buyer
  FROM (SELECT event_id, buyer, units AS counted, 0 AS claimed FROM buyer_totals
         UNION ALL
        SELECT b.event_id, b.buyer, 0,
               json_array_length(b.lines, '$.seats')
               + coalesce((SELECT sum(json_extract(line.value, '$.units')) FROM json_each(b.lines, '$.pools') AS line), 0)
          FROM bookings b WHERE b.state IN ('held', 'paying', 'confirmed')) AS both_sides
 GROUP BY event_id, buyer HAVING sum(counted) <> sum(claimed)
 ORDER BY event_id, buyer LIMIT ?1;

-- name: recount_pool
-- There is one writer, so nothing is locked.
UPDATE pools SET (held, sold) = (
    SELECT coalesce(sum(json_extract(line.value, '$.units')) FILTER (WHERE b.state IN ('held', 'paying')), 0),
           coalesce(sum(json_extract(line.value, '$.units')) FILTER (WHERE b.state = 'confirmed'), 0)
      FROM bookings b, json_each(b.lines, '$.pools') AS line
     WHERE b.event_id = ?1 AND b.state IN ('held', 'paying', 'confirmed') AND json_extract(line.value, '$.id') = ?2)
 WHERE event_id = ?1 AND id = ?2;

-- name: make_total
-- A total that is missing is made before it is counted.
INSERT INTO buyer_totals (event_id, buyer, units)
SELECT ?1, ?2, 0 WHERE NOT EXISTS (SELECT 1 FROM buyer_totals WHERE event_id = ?1 AND buyer = ?2);

-- name: recount_total
-- There is one writer, so nothing is locked.
UPDATE buyer_totals SET units = (
    SELECT coalesce(sum(json_array_length(b.lines, '$.seats')
           + coalesce((SELECT sum(json_extract(line.value, '$.units')) FROM json_each(b.lines, '$.pools') AS line), 0)), 0)
      FROM bookings b WHERE b.buyer = ?2 AND b.event_id = ?1 AND b.state IN ('held', 'paying', 'confirmed'))
 WHERE event_id = ?1 AND buyer = ?2;

-- name: forget_payment_keys
-- Which requests opened payments, the oldest first; not where the payment is not decided yet.
DELETE FROM payment_keys
 WHERE (caller, key) IN (
    SELECT o.caller, o.key FROM payment_keys o
     WHERE o.opened_at <= ?1
       AND NOT EXISTS (SELECT 1 FROM payments p
                        WHERE p.id = o.payment_id AND p.state IN ('pending', 'requires_action', 'unknown'))
     ORDER BY o.opened_at LIMIT ?2);

-- name: forget_payers
-- Buyers who have not tried to pay since, the longest ago first.
DELETE FROM payers
 WHERE (mode, buyer) IN (SELECT mode, buyer FROM payers WHERE tried_at <= ?1 ORDER BY tried_at LIMIT ?2);
