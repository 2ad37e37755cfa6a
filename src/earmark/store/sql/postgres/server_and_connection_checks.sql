-- What the store asks of the server: of new connections, for readiness, and of backends that it has left behind.

-- name: which_server
-- Which server a new connection has met, and whether its transactions are what every guarded write was written for.
SELECT pg_postmaster_start_time() AS started_at, current_setting('default_transaction_isolation') AS isolation;

-- name: lock_table
-- How many locks PostgreSQL has room for, in all sessions together.
SELECT current_setting('max_locks_per_transaction')::integer
       * (current_setting('max_connections')::integer + current_setting('max_prepared_transactions')::integer) AS entries;

-- name: readiness
-- Whether this server keeps what is written: a standby and a read-only database refuse it, and a commit that has waited
-- for its synchronous standby for so long will not be answered.
SELECT pg_is_in_recovery() AS standby, current_setting('transaction_read_only') = 'on' AS read_only,
       (SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND wait_event = 'SyncRep'
           AND state_change < clock_timestamp() - $1::interval) AS hanging;

-- name: still_running
-- Which of these backends have not ended, nor finished what they were doing; and which of them wait for a standby.
-- A number may have gone to another process: ours is a session of this role on this database that began before we left
-- it; a second is allowed for clocks that differ. A session that has taken another role on may not see its own, only
-- NULLs; these count, as forgetting them would fill the server.
SELECT pid, coalesce(a.wait_event = 'SyncRep', false) AS hanging
  FROM unnest($1::integer[], $2::float8[]) AS abandoned (pid, seconds) JOIN pg_stat_activity a USING (pid)
 WHERE a.datname = current_database() AND a.usename = session_user AND a.state IS DISTINCT FROM 'idle'
   AND (a.backend_type = 'client backend') IS NOT FALSE
   AND (clock_timestamp() - a.backend_start >= make_interval(secs => abandoned.seconds - 1)) IS NOT FALSE LIMIT 1000;
