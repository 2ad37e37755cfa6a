-- The heartbeats of workers. No verb of a booking runs these.

-- name: tell_beats
-- One role of one process.
INSERT INTO beats (process_id, role, host, version, started_at, beat_at, outcome, rounds)
VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?6, ?7)
ON CONFLICT (process_id, role)
DO UPDATE SET beat_at = excluded.beat_at, outcome = excluded.outcome, rounds = excluded.rounds;

-- name: leave_beats
-- A process that stops removes its rows.
DELETE FROM beats WHERE process_id = ?1;

-- name: read_beats
-- The heartbeats, the latest first in each role.
SELECT process_id, role, host, version, started_at, beat_at, outcome, rounds
  FROM beats ORDER BY role, beat_at DESC, process_id LIMIT ?1;

-- name: clear_beats
-- Roles without a heartbeat since then, the oldest first.
DELETE FROM beats
 WHERE (process_id, role) IN (SELECT process_id, role FROM beats WHERE beat_at <= ?1 ORDER BY beat_at LIMIT ?2);
