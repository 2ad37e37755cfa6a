-- Webhooks and their deliveries. One writer, so nothing is locked.

-- name: find_wanted
-- The second statement of a relay that has numbered something: the webhooks that want these events. A test webhook gets test
-- events.
SELECT w.id AS webhook_id, e.id AS event_id, w.types
  FROM webhooks w CROSS JOIN json_each(?1) AS given CROSS JOIN events e
    ON e.id = given.value AND e.mode = w.mode AND (w.event_id IS NULL OR w.event_id = e.id)
 WHERE w.disabled_at IS NULL;

-- name: queue_delivery
-- One after the other, in the order of the entries, which is the order of the queue. What is there already stays as it is.
INSERT INTO deliveries (id, webhook_id, entry_id, type, body, created_at, due_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT DO NOTHING;

-- name: make_webhook
-- No row changed means that there are as many of its kind as there may be.
INSERT INTO webhooks (id, mode, url, types, event_id, description, secret, created_at)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8
 WHERE (SELECT count(*) FROM webhooks WHERE mode = ?2) < ?9;

-- name: keep_deed
-- First in its transaction. No row changed means that this was done.
INSERT INTO webhook_keys (caller, key, request_hash, webhook_id, status, done_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT DO NOTHING;

-- name: read_deed
-- By key.
SELECT caller, key, request_hash, webhook_id, status, done_at FROM webhook_keys WHERE caller = ?1 AND key = ?2;

-- name: forget_deeds
-- The oldest first.
DELETE FROM webhook_keys
 WHERE (caller, key) IN (SELECT caller, key FROM webhook_keys WHERE done_at <= ?1 ORDER BY done_at LIMIT ?2);

-- name: read_webhooks
-- By key.
SELECT id, mode, url, types, event_id, description, secret, old_secret, old_secret_until, created_at, disabled_at,
       disabled_because, failing_since, resting_until, version
  FROM webhooks WHERE id IN (SELECT value FROM json_each(?1));

-- name: page_webhooks
-- By id, which is by age.
SELECT id, mode, url, types, event_id, description, secret, old_secret, old_secret_until, created_at, disabled_at,
       disabled_because, failing_since, resting_until, version
  FROM webhooks WHERE mode = ?1 AND id > ?2 ORDER BY id LIMIT ?3;

-- name: count_waiting
-- For metrics and the console: which webhooks have deliveries waiting, counted up to a limit.
SELECT q.webhook_id, q.pending, q.due_at
  FROM (SELECT w.id AS webhook_id,
               (SELECT count(*) FROM (SELECT 1 FROM deliveries d
                                       WHERE d.webhook_id = w.id AND d.state = 'pending' LIMIT ?2) AS few) AS pending,
               (SELECT min(d.due_at) FROM deliveries d WHERE d.webhook_id = w.id AND d.state = 'pending') AS due_at
          FROM webhooks w WHERE w.mode = ?1) AS q
 WHERE q.pending > 0 ORDER BY q.webhook_id;

-- name: save_webhook
-- The guarded update: no row changed means that another request has saved it meanwhile.
UPDATE webhooks
   SET url = ?3, types = ?4, event_id = ?5, description = ?6, secret = ?7, old_secret = ?8, old_secret_until = ?9,
       disabled_at = ?10, disabled_because = ?11, failing_since = ?12, resting_until = ?13, version = ?2
 WHERE id = ?1 AND version = ?2 - 1;

-- name: remove_deliveries
-- Ahead of their webhook, so that no one transaction has to remove a long log.
DELETE FROM deliveries WHERE number IN (SELECT d.number FROM deliveries d WHERE d.webhook_id = ?1 ORDER BY d.number LIMIT ?2);

-- name: remove_webhook
-- With what little is left of its deliveries.
DELETE FROM webhooks WHERE id = ?1;

-- name: log_deliveries
-- Newest first, before a number.
SELECT id, number, webhook_id, entry_id, type, body, state, created_at, due_at, attempts, first_at, tried_at, ended_at,
       status, error, took_ms
  FROM deliveries WHERE webhook_id = ?1 AND number < ?2 AND (?3 IS NULL OR state = ?3) ORDER BY number DESC LIMIT ?4;

-- name: replay_delivery
-- As if it had just been queued, with the bytes and the id that it always had.
UPDATE deliveries SET state = 'pending', due_at = ?3, attempts = 0, first_at = NULL, ended_at = NULL
 WHERE webhook_id = ?1 AND id = ?2
RETURNING id, number, webhook_id, entry_id, type, body, state, created_at, due_at, attempts, first_at, tried_at, ended_at,
          status, error, took_ms;

-- name: find_due
-- Webhooks with something due, the longest due first.
SELECT w.id, (SELECT min(d.due_at) FROM deliveries d WHERE d.webhook_id = w.id AND d.state = 'pending') AS head
  FROM webhooks w
 WHERE w.id NOT IN (SELECT value FROM json_each(?2))
   AND CASE WHEN ?3
            THEN w.disabled_at IS NULL AND w.failing_since IS NOT NULL AND coalesce(w.resting_until, ?1) <= ?1
            ELSE w.disabled_at IS NOT NULL OR w.failing_since IS NULL END
   AND head <= ?1
 ORDER BY head LIMIT ?4;

-- name: claim_deliveries
-- Some of one webhook, oldest first. Due again when the lease is over.
UPDATE deliveries SET due_at = ?4, attempts = attempts + 1, tried_at = ?2, first_at = coalesce(first_at, ?2)
 WHERE number IN (SELECT d.number FROM deliveries d
                   WHERE d.webhook_id = ?1 AND d.state = 'pending' AND d.due_at <= ?2 ORDER BY d.number LIMIT ?3)
RETURNING id, number, webhook_id, entry_id, type, body, state, created_at, due_at, attempts, first_at, tried_at, ended_at,
          status, error, took_ms;

-- name: record_outcome
-- A failure counts unless another dispatcher has claimed the delivery since; a success always does. What was not sent is as before.
UPDATE deliveries
   SET state = ?5, due_at = ?6, ended_at = CASE WHEN ?5 = 'pending' THEN NULL ELSE ?2 END,
       attempts = attempts - CASE WHEN ?7 THEN 0 ELSE 1 END,
       first_at = CASE WHEN ?7 OR attempts > 1 THEN first_at END,
       status = CASE WHEN ?7 THEN ?8 ELSE status END,
       error = CASE WHEN ?7 OR ?5 <> 'pending' THEN ?9 ELSE error END,
       took_ms = CASE WHEN ?7 THEN ?10 ELSE took_ms END
 WHERE id = ?3 AND webhook_id = ?1 AND state = 'pending' AND (?5 = 'delivered' OR attempts = ?4);

-- name: disable_webhook
-- One row changed means that it was disabled by this.
UPDATE webhooks SET disabled_at = ?4, disabled_because = ?2
 WHERE id = ?1 AND disabled_at IS NULL AND (?3 IS NULL OR failing_since <= ?3);

-- name: record_health
-- Since when it fails, and until when no delivery is tried.
UPDATE webhooks SET failing_since = CASE WHEN ?2 THEN NULL ELSE coalesce(failing_since, ?3) END,
       resting_until = CASE WHEN ?2 THEN NULL ELSE ?4 END
 WHERE id = ?1;

-- name: prune_deliveries
-- What ended long ago, a bounded number at a time.
DELETE FROM deliveries WHERE number IN (SELECT d.number FROM deliveries d WHERE d.ended_at < ?1 ORDER BY d.ended_at LIMIT ?2);
