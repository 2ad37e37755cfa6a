-- Numbering what happened, event by event, and reading it by number. One writer, so an event needs no claim.

-- name: find_events
-- Events with unsent entries.
SELECT u.event_id, count(*) AS entries
  FROM (SELECT j.event_id FROM journal j
         WHERE j.sequence IS NULL AND j.event_id > ?1 ORDER BY j.event_id LIMIT ?2) AS u
 GROUP BY u.event_id ORDER BY u.event_id;

-- name: number_entries
-- Whichever entries the limit leaves, the older ones of the same bookings come along. A booking's versions keep their
-- order though moments and ids may not: each is placed no earlier than the version before it.
WITH taken AS MATERIALIZED (
    SELECT u.id, u.booking_id, u.version, u.at FROM journal u WHERE u.sequence IS NULL AND u.event_id = ?1 LIMIT ?2
), whole AS (
    SELECT t.id, t.booking_id, t.version, t.at FROM taken t
     UNION
    SELECT older.id, older.booking_id, older.version, older.at
      FROM taken t CROSS JOIN journal older ON older.booking_id = t.booking_id AND older.version < t.version
     WHERE older.sequence IS NULL
), placed AS (
    SELECT w.id, w.version, max(w.at) OVER (PARTITION BY coalesce(w.booking_id, w.id) ORDER BY w.version) AS place
      FROM whole w
), numbered AS MATERIALIZED (
    SELECT p.id,
           coalesce((SELECT max(l.sequence) FROM journal l WHERE l.event_id = ?1 AND l.sequence IS NOT NULL), 0)
           + row_number() OVER (ORDER BY p.place, p.version, p.id) AS sequence
      FROM placed p
)
UPDATE journal SET sequence = n.sequence FROM numbered n WHERE journal.id = n.id
RETURNING id, event_id, booking_id, version, verb, before, after, actor, reason, at, facts, sequence;

-- name: read_numbered
-- The journal of an event, on from a number.
SELECT id, event_id, booking_id, version, verb, before, after, actor, reason, at, facts, sequence
  FROM journal WHERE event_id = ?1 AND sequence > ?2 ORDER BY sequence LIMIT ?3;

-- name: count_entries
-- Whether anything happened to these events, in one look: the newest number, and how many entries have none.
SELECT e.value AS id,
       coalesce((SELECT max(j.sequence) FROM journal j WHERE j.event_id = e.value AND j.sequence IS NOT NULL), 0) AS numbered,
       (SELECT count(*) FROM (SELECT 1 FROM journal j WHERE j.event_id = e.value AND j.sequence IS NULL LIMIT ?2)) AS unsent
  FROM json_each(?1) AS e;

-- name: read_lag
-- How far the relay is behind, for metrics. By the index of what is unsent, up to a limit.
SELECT count(*) AS unsent, min(u.at) AS oldest_at
  FROM (SELECT j.at FROM journal j WHERE j.sequence IS NULL ORDER BY j.event_id LIMIT ?1) AS u;
