-- Webhooks and their deliveries. A transaction that changes both locks the webhook first.

-- name: find_wanted
-- The second statement of a relay that has numbered something: the webhooks that want these events. A test webhook gets test
-- events. Locked against removal until the deliveries are written, and against nothing else.
SELECT w.id AS webhook_id, e.id AS event_id, w.types
  FROM webhooks w JOIN events e ON e.mode = w.mode AND (w.event_id IS NULL OR w.event_id = e.id)
 WHERE w.disabled_at IS NULL AND e.id = ANY ($1::text[])
   FOR KEY SHARE OF w;

-- name: queue_deliveries
-- In the order of the entries, which is the order of the queue. What is there already stays as it is.
INSERT INTO deliveries (id, webhook_id, entry_id, type, body, created_at, due_at)
SELECT q.id, q.webhook_id, q.entry_id, q.type, q.body, q.created_at, q.due_at
  FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::bytea[], $6::timestamptz[], $7::timestamptz[])
       WITH ORDINALITY AS q (id, webhook_id, entry_id, type, body, created_at, due_at, n)
 ORDER BY q.n
ON CONFLICT DO NOTHING;

-- name: make_webhook
-- No row back means that there are as many of its kind as there may be. Two requests at once may make one too many, which does no harm.
INSERT INTO webhooks (id, mode, url, types, event_id, description, secret, created_at)
SELECT $1::uuid, $2::text, $3, $4::text[], $5, $6, $7, $8::timestamptz
 WHERE (SELECT count(*) FROM webhooks WHERE mode = $2) < $9::bigint
RETURNING id;

-- name: keep_deed
-- First in its transaction: the same request waits here for the one before it. No row back means that this was done.
INSERT INTO webhook_keys (caller, key, request_hash, webhook_id, status, done_at)
VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING RETURNING key;

-- name: read_deed
-- By key.
SELECT caller, key, request_hash, webhook_id, status, done_at FROM webhook_keys WHERE caller = $1 AND key = $2;

-- name: forget_deeds
-- The oldest first. What another janitor is removing is passed over.
WITH old AS MATERIALIZED (
    SELECT caller, key FROM webhook_keys WHERE done_at <= $1 ORDER BY done_at LIMIT $2 FOR UPDATE SKIP LOCKED)
DELETE FROM webhook_keys k USING old
 WHERE k.caller = old.caller AND k.key = old.key;

-- name: read_webhooks
-- By key.
SELECT id, mode, url, types, event_id, description, secret, old_secret, old_secret_until, created_at, disabled_at,
       disabled_because, failing_since, resting_until, version
  FROM webhooks WHERE id = ANY ($1::uuid[]);

-- name: page_webhooks
-- By id, which is by age.
SELECT id, mode, url, types, event_id, description, secret, old_secret, old_secret_until, created_at, disabled_at,
       disabled_because, failing_since, resting_until, version
  FROM webhooks WHERE mode = $1 AND id > $2 ORDER BY id LIMIT $3;

-- name: count_waiting
-- For metrics and the console: which webhooks have deliveries waiting, counted up to a limit.
SELECT q.webhook_id, q.pending, q.due_at
  FROM (SELECT w.id AS webhook_id,
               (SELECT count(*) FROM (SELECT 1 FROM deliveries d
                                       WHERE d.webhook_id = w.id AND d.state = 'pending' LIMIT $2) AS few) AS pending,
               (SELECT min(d.due_at) FROM deliveries d WHERE d.webhook_id = w.id AND d.state = 'pending') AS due_at
          FROM webhooks w WHERE w.mode = $1) AS q
 WHERE q.pending > 0 ORDER BY q.webhook_id;

-- name: save_webhook
-- The guarded update: no row back means that another request has saved it meanwhile.
UPDATE webhooks
   SET url = $3, types = $4::text[], event_id = $5, description = $6, secret = $7, old_secret = $8, old_secret_until = $9,
       disabled_at = $10, disabled_because = $11, failing_since = $12, resting_until = $13, version = $2
 WHERE id = $1 AND version = $2 - 1
RETURNING id;

-- name: remove_deliveries
-- Ahead of their webhook, so that no one transaction has to remove a long log.
DELETE FROM deliveries WHERE id IN (SELECT d.id FROM deliveries d WHERE d.webhook_id = $1 ORDER BY d.number LIMIT $2);

-- name: remove_webhook
-- With what little is left of its deliveries.
DELETE FROM webhooks WHERE id = $1 RETURNING id;

-- name: log_deliveries
-- Newest first, before a number.
SELECT id, number, webhook_id, entry_id, type, body, state, created_at, due_at, attempts, first_at, tried_at, ended_at,
       status, error, took_ms
  FROM deliveries WHERE webhook_id = $1 AND number < $2 AND ($3::text IS NULL OR state = $3) ORDER BY number DESC LIMIT $4;

-- name: replay_delivery
-- As if it had just been queued, with the bytes and the id that it always had.
UPDATE deliveries SET state = 'pending', due_at = $3, attempts = 0, first_at = NULL, ended_at = NULL
 WHERE webhook_id = $1 AND id = $2
RETURNING id, number, webhook_id, entry_id, type, body, state, created_at, due_at, attempts, first_at, tried_at, ended_at,
          status, error, took_ms;

-- name: claim_deliveries
-- What is due, for some webhooks, the longest due first, and some deliveries of each, oldest first. Due again when the lease
-- is over. Passes over what another dispatcher is claiming.
WITH due AS MATERIALIZED (
    SELECT w.id, head.due_at
      FROM webhooks w CROSS JOIN LATERAL (
        SELECT d.due_at FROM deliveries d
         WHERE d.webhook_id = w.id AND d.state = 'pending' AND d.due_at <= $1 ORDER BY d.due_at LIMIT 1) AS head
     WHERE w.id <> ALL ($2::uuid[])
       AND CASE WHEN $3::boolean
                THEN w.disabled_at IS NULL AND w.failing_since IS NOT NULL AND coalesce(w.resting_until, $1) <= $1
                ELSE w.disabled_at IS NOT NULL OR w.failing_since IS NULL END
     ORDER BY head.due_at LIMIT $4
), picked AS MATERIALIZED (
    SELECT line.id
      FROM due CROSS JOIN LATERAL (
        SELECT d.id FROM deliveries d
         WHERE d.webhook_id = due.id AND d.state = 'pending' AND d.due_at <= $1
         ORDER BY d.number LIMIT $5 FOR UPDATE SKIP LOCKED) AS line
)
UPDATE deliveries d
   SET due_at = $1 + $6::interval, attempts = d.attempts + 1, tried_at = $1, first_at = coalesce(d.first_at, $1)
  FROM picked p WHERE d.id = p.id
RETURNING d.id, d.number, d.webhook_id, d.entry_id, d.type, d.body, d.state, d.created_at, d.due_at, d.attempts, d.first_at,
          d.tried_at, d.ended_at, d.status, d.error, d.took_ms;

-- name: lock_webhook
-- Before its deliveries: a transaction that removes the webhook locks them in this order too.
SELECT id FROM webhooks WHERE id = $1 FOR NO KEY UPDATE;

-- name: record_outcomes
-- A failure counts unless another dispatcher has claimed the delivery since; a success always does. What was not sent is as before.
UPDATE deliveries d
   SET state = o.state, due_at = o.due_at, ended_at = CASE WHEN o.state = 'pending' THEN NULL ELSE $2::timestamptz END,
       attempts = d.attempts - CASE WHEN o.sent THEN 0 ELSE 1 END,
       first_at = CASE WHEN o.sent OR d.attempts > 1 THEN d.first_at END,
       status = CASE WHEN o.sent THEN o.status ELSE d.status END,
       error = CASE WHEN o.sent OR o.state <> 'pending' THEN o.error ELSE d.error END,
       took_ms = CASE WHEN o.sent THEN o.took_ms ELSE d.took_ms END
  FROM unnest($3::uuid[], $4::integer[], $5::text[], $6::timestamptz[], $7::boolean[], $8::integer[], $9::text[], $10::integer[])
       AS o (id, attempt, state, due_at, sent, status, error, took_ms)
 WHERE d.id = o.id AND d.webhook_id = $1 AND d.state = 'pending' AND (o.state = 'delivered' OR d.attempts = o.attempt);

-- name: record_health
-- Since when it fails, and until when no delivery is tried.
UPDATE webhooks
   SET failing_since = CASE WHEN $2::boolean THEN NULL ELSE coalesce(failing_since, $3::timestamptz) END,
       resting_until = CASE WHEN $2 THEN NULL ELSE $4::timestamptz END
 WHERE id = $1;

-- name: disable_webhook
-- A row back means that it was disabled by this.
UPDATE webhooks SET disabled_at = $4, disabled_because = $2
 WHERE id = $1 AND disabled_at IS NULL AND ($3::timestamptz IS NULL OR failing_since <= $3)
RETURNING id;

-- name: prune_deliveries
-- What ended long ago, a bounded number at a time. What another janitor is removing is left for the next time.
DELETE FROM deliveries
 WHERE id IN (SELECT d.id FROM deliveries d WHERE d.ended_at < $1 ORDER BY d.ended_at LIMIT $2 FOR UPDATE SKIP LOCKED);
