-- Which idempotency keys have a record, and whether a commit whose answer was lost took place.

-- name: read_idempotency_records
-- The idempotency records of claimed keys.
SELECT j.caller, j.key, j.request_hash, j.answer_status, j.answer_body
  FROM json_each(?2) AS k CROSS JOIN journal j ON j.caller = ?1 AND j.key = k.value;

-- name: known_keys
-- Which of many keys have an idempotency record, most often none.
SELECT k.key AS place
  FROM json_each(?1) AS k
 CROSS JOIN journal j ON j.caller = json_extract(k.value, '$[0]') AND j.key = json_extract(k.value, '$[1]');

-- name: has_entry
-- Did a commit whose answer was lost take place?
SELECT EXISTS (SELECT 1 FROM journal WHERE id = ?1);
