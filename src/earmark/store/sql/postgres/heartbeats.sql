-- The heartbeats of workers. No verb of a booking runs these.

-- name: tell_beats
-- All roles of one process, in one order in every transaction.
INSERT INTO beats (process_id, role, host, version, started_at, beat_at, outcome, rounds)
SELECT $1, p.role, $2, $3, statement_timestamp() + $4::interval, statement_timestamp() + $4::interval, p.outcome, p.rounds
  FROM unnest($5::text[], $6::text[], $7::bigint[]) AS p (role, outcome, rounds) ORDER BY p.role
ON CONFLICT (process_id, role)
DO UPDATE SET beat_at = excluded.beat_at, outcome = excluded.outcome, rounds = excluded.rounds;

-- name: leave_beats
-- A process that stops removes its rows.
DELETE FROM beats WHERE process_id = $1;

-- name: read_beats
-- The heartbeats, the latest first in each role.
SELECT process_id, role, host, version, started_at, beat_at, outcome, rounds
  FROM beats ORDER BY role, beat_at DESC, process_id LIMIT $1;

-- name: clear_beats
-- Roles without a heartbeat since then, the oldest first. One that is being written is passed over.
WITH old AS MATERIALIZED (
    SELECT process_id, role FROM beats WHERE beat_at <= $1 ORDER BY beat_at LIMIT $2 FOR UPDATE SKIP LOCKED)
DELETE FROM beats b USING old
 WHERE b.process_id = old.process_id AND b.role = old.role
RETURNING b.role;
