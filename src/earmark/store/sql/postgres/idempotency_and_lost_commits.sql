-- Which idempotency keys have a record, and whether a commit whose answer was lost took place, here and at the standby.

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

-- name: known_keys
-- Which of many keys have an idempotency record, most often none. They come as JSON, which costs the caller less than arrays.
SELECT k.n::integer AS n
  FROM json_array_elements($1::json) WITH ORDINALITY AS k (pair, n)
 CROSS JOIN LATERAL (SELECT FROM journal
                      WHERE caller = k.pair ->> 0 AND key = k.pair ->> 1 AND key IS NOT NULL OFFSET 0) AS j;

-- name: has_entry
-- Did a commit whose answer was lost take place? With a synchronous standby, that it is here does not say that it is there.
SELECT EXISTS (SELECT 1 FROM journal WHERE id = $1) AS found,
       current_setting('synchronous_standby_names') <> '' AS replicated;

-- name: wait_for_standby
-- A write to no table, whose commit waits for the synchronous standby: what was committed before it is then there too.
SELECT pg_logical_emit_message(true, 'earmark', 'replay');
