-- What a failover would lose, for the doctor. Nothing here writes, so nothing here waits for a standby.

-- name: read_replication
-- The settings that decide whether a commit waits for a standby, and whether this server is one itself.
SELECT pg_is_in_recovery()                          AS in_recovery,
       current_setting('synchronous_commit')        AS synchronous_commit,
       current_setting('synchronous_standby_names') AS synchronous_standby_names;

-- name: read_standbys
-- Who follows, in which role, and how many bytes are not yet on that disk. A role without pg_read_all_stats sees NULL.
SELECT application_name AS name,
       sync_state,
       CASE WHEN NOT pg_is_in_recovery() THEN pg_wal_lsn_diff(pg_current_wal_lsn(), flush_lsn) END::bigint AS lag_bytes
  FROM pg_stat_replication
 WHERE state IS DISTINCT FROM 'backup'
 ORDER BY application_name, pid
 LIMIT 100;

-- name: read_waiting_commits
-- Commits that wait for a standby at this moment, and for how long the oldest of them has.
SELECT count(*)                                                                          AS commits,
       coalesce(extract(epoch FROM max(clock_timestamp() - query_start)), 0)::double precision AS seconds
  FROM pg_stat_activity
 WHERE wait_event = 'SyncRep';
