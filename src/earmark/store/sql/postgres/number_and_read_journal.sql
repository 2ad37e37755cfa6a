-- Numbering what happened, event by event, and reading it by number.

-- name: claim_events
-- Events with unsent entries, each claimed until the transaction ends, without waiting: one relay per event at a time.
-- The two-part lock shares no number with the one-part locks of idempotency keys and migrations.
WITH found AS MATERIALIZED (
    SELECT u.event_id, count(*) AS entries
      FROM (SELECT j.event_id FROM journal j
             WHERE j.sequence IS NULL AND j.event_id > $1 ORDER BY j.event_id LIMIT $2) AS u
     GROUP BY u.event_id)
SELECT f.event_id, f.entries, pg_try_advisory_xact_lock($3::integer, hashtext(f.event_id)) AS claimed
  FROM found f ORDER BY f.event_id;

-- name: number_entries
-- A statement of its own, after the claim: it must see the numbers that the last relay gave.
-- A range of one event and not `=`, so that the plan walks the index and stops at the limit.
-- Whichever entries the limit leaves, the older ones of the same bookings come along. A booking's versions keep their
-- order though moments and ids may not: each is placed no earlier than the version before it.
-- `LATERAL` with a limit, and no `IS NULL`, so that they are found by booking: a plan that was made when the table was small
-- would else walk all that is unsent, once for each.
WITH claimed AS MATERIALIZED (
    SELECT e.id, coalesce((SELECT max(l.sequence) FROM journal l WHERE l.event_id = e.id AND l.sequence IS NOT NULL), 0)
           AS newest
      FROM unnest($1::text[]) AS e (id)
), taken AS MATERIALIZED (
    SELECT j.id, j.event_id, j.booking_id, j.version, j.at
      FROM claimed c CROSS JOIN LATERAL (
        SELECT u.id, u.event_id, u.booking_id, u.version, u.at FROM journal u
         WHERE u.sequence IS NULL AND u.event_id >= c.id AND u.event_id <= c.id
         ORDER BY u.event_id LIMIT $2) AS j
), whole AS (
    SELECT t.id, t.event_id, t.booking_id, t.version, t.at FROM taken t
     UNION
    SELECT older.id, older.event_id, older.booking_id, older.version, older.at
      FROM taken t CROSS JOIN LATERAL (
        SELECT o.id, o.event_id, o.booking_id, o.version, o.at FROM journal o
         WHERE o.booking_id = t.booking_id AND o.version < t.version AND coalesce(o.sequence, 0) = 0
         ORDER BY o.version LIMIT 10000) AS older
     WHERE t.version > 1 AND t.booking_id IS NOT NULL
), placed AS (
    SELECT w.id, w.event_id, w.version,
           max(w.at) OVER (PARTITION BY coalesce(w.booking_id, w.id) ORDER BY w.version) AS place
      FROM whole w
), numbered AS MATERIALIZED (
    SELECT p.id, c.newest + row_number() OVER (PARTITION BY p.event_id ORDER BY p.place, p.version, p.id) AS sequence
      FROM placed p JOIN claimed c ON c.id = p.event_id
)
UPDATE journal j SET sequence = n.sequence FROM numbered n WHERE j.id = n.id
RETURNING j.id, j.event_id, j.booking_id, j.version, j.verb, j.before, j.after, j.actor, j.reason, j.at, j.facts, j.sequence;

-- name: read_numbered
-- The journal of an event, on from a number.
SELECT id, event_id, booking_id, version, verb, before, after, actor, reason, at, facts, sequence
  FROM journal WHERE event_id = $1 AND sequence > $2 ORDER BY sequence LIMIT $3;

-- name: count_entries
-- Whether anything happened to these events, in one look: the newest number, and how many entries have none.
SELECT e.id,
       coalesce((SELECT max(j.sequence) FROM journal j WHERE j.event_id = e.id AND j.sequence IS NOT NULL), 0) AS numbered,
       (SELECT count(*) FROM (SELECT FROM journal j WHERE j.event_id = e.id AND j.sequence IS NULL LIMIT $2) AS u) AS unsent
  FROM unnest($1::text[]) AS e (id);

-- name: read_lag
-- How far the relay is behind, for metrics. By the index of what is unsent, up to a limit.
SELECT count(*) AS unsent, min(u.at) AS oldest_at
  FROM (SELECT j.at FROM journal j WHERE j.sequence IS NULL ORDER BY j.event_id LIMIT $1) AS u;
