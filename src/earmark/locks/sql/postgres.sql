-- The statements of earmark.locks.postgres. Only clock_timestamp() says what time it is: the client's clock is never
-- asked, and now() would be the moment at which a transaction began, which may be before a row was free.
-- Whatever takes several rows takes them in order of key, so that no two statements wait for each other.

-- name: create_table
-- One row for every key that was ever locked or fenced: it outlives the lease, because its fence must go on growing.
-- `fence` is the last number given for the key to any lease, `lease_fence` the one that the lease in this row was given:
-- a key may be leased here while a lease of it in Redis takes its number from the same row.
-- Nothing that changes is indexed and pages are kept half empty, so that every update stays within its page.
CREATE TABLE IF NOT EXISTS earmark_locks (
    key         text COLLATE "C" PRIMARY KEY,
    fence       bigint NOT NULL,
    lease_fence bigint,
    token       text,
    holder      text,
    acquired_at timestamptz,
    expires_at  timestamptz,
    CONSTRAINT lease_is_whole CHECK (num_nulls(lease_fence, token, holder, acquired_at, expires_at) IN (0, 5)),
    CONSTRAINT fence_covers_lease CHECK (lease_fence <= fence)
) WITH (fillfactor = 50);

-- name: acquire
-- A key is taken if it has no lease, or one that ran out, or this very one; a key that is not returned is held.
-- The same token again keeps its number: the caller did not receive the first answer.
WITH moment AS MATERIALIZED (
    SELECT clock_timestamp() AS now
)
INSERT INTO earmark_locks AS lock (key, fence, lease_fence, token, holder, acquired_at, expires_at)
SELECT wanted.key, micros.now, micros.now, $2, $3, moment.now, moment.now + make_interval(secs => $4)
  FROM unnest($1::text[]) AS wanted (key)
 CROSS JOIN moment
 CROSS JOIN LATERAL (SELECT (extract(epoch FROM moment.now) * 1000000)::bigint AS now) AS micros
 ORDER BY wanted.key COLLATE "C"
ON CONFLICT (key) DO UPDATE
   SET fence = CASE WHEN lock.token = excluded.token AND lock.expires_at > excluded.acquired_at
                    THEN lock.fence ELSE greatest(lock.fence + 1, excluded.fence) END,
       lease_fence = CASE WHEN lock.token = excluded.token AND lock.expires_at > excluded.acquired_at
                          THEN lock.lease_fence ELSE greatest(lock.fence + 1, excluded.fence) END,
       token = excluded.token,
       holder = excluded.holder,
       acquired_at = CASE WHEN lock.token = excluded.token AND lock.expires_at > excluded.acquired_at
                          THEN lock.acquired_at ELSE excluded.acquired_at END,
       expires_at = greatest(lock.expires_at, excluded.expires_at)
 WHERE lock.token IS NULL OR lock.token = excluded.token OR lock.expires_at <= clock_timestamp()
RETURNING lock.key, lock.fence, lock.lease_fence;

-- name: next_fence
-- A number for a lease that lives elsewhere; a lease that may be in this row is left as it is.
WITH moment AS MATERIALIZED (
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now
)
INSERT INTO earmark_locks AS lock (key, fence)
SELECT wanted.key, moment.now
  FROM unnest($1::text[]) AS wanted (key)
 CROSS JOIN moment
 ORDER BY wanted.key COLLATE "C"
ON CONFLICT (key) DO UPDATE SET fence = greatest(lock.fence + 1, excluded.fence)
RETURNING lock.key, lock.fence, lock.fence AS lease_fence;

-- name: level_fences
-- Keys taken together have one number: it is raised above the last of each, in the transaction that has these rows.
UPDATE earmark_locks
   SET fence = $2, lease_fence = CASE WHEN token = $3 THEN $2 ELSE lease_fence END
 WHERE key = ANY ($1);

-- name: release
-- Only what belongs to the token is cleared, whatever token holds the key now; the number stays. Returns whether each
-- lease was still good.
WITH mine AS MATERIALIZED (
    SELECT key, expires_at FROM earmark_locks WHERE key = ANY ($1) AND token = $2 ORDER BY key FOR UPDATE
)
UPDATE earmark_locks AS lock
   SET lease_fence = NULL, token = NULL, holder = NULL, acquired_at = NULL, expires_at = NULL
  FROM mine
 WHERE lock.key = mine.key
RETURNING mine.expires_at > clock_timestamp() AS good;

-- name: extend
-- A lease that ran out is lost even if no other token took it, and one that would live longer is not cut short.
WITH mine AS MATERIALIZED (
    SELECT key FROM earmark_locks WHERE key = ANY ($1) AND token = $2 ORDER BY key FOR UPDATE
)
UPDATE earmark_locks AS lock
   SET expires_at = greatest(lock.expires_at, clock_timestamp() + make_interval(secs => $3))
  FROM mine
 WHERE lock.key = mine.key AND lock.expires_at > clock_timestamp()
RETURNING lock.key;

-- name: evict
-- An operator takes a key from its holder.
UPDATE earmark_locks AS lock
   SET lease_fence = NULL, token = NULL, holder = NULL, acquired_at = NULL, expires_at = NULL
 WHERE lock.key = $1 AND lock.expires_at > clock_timestamp()
RETURNING lock.key;

-- name: holdings
-- The keys that are held. Waiters leave no trace here.
SELECT key, holder, token, lease_fence,
       extract(epoch FROM clock_timestamp() - acquired_at)::float8 AS age_seconds,
       extract(epoch FROM expires_at - clock_timestamp())::float8 AS ttl_seconds
  FROM earmark_locks
 WHERE expires_at > clock_timestamp() AND key ~ $1
 ORDER BY key
 LIMIT $2;

-- name: find
-- The same of one key.
SELECT key, holder, token, lease_fence,
       extract(epoch FROM clock_timestamp() - acquired_at)::float8 AS age_seconds,
       extract(epoch FROM expires_at - clock_timestamp())::float8 AS ttl_seconds
  FROM earmark_locks
 WHERE key = $1 AND expires_at > clock_timestamp();

-- name: last_fences
-- The numbers that were given last, for an inspector.
SELECT key, fence FROM earmark_locks WHERE key = ANY ($1);

-- name: prune
-- A row without a lease is kept for its number alone, and the clock has overtaken that number by so many seconds:
-- the next one will be greater without it, unless the clock goes back further than that.
WITH idle AS MATERIALIZED (
    SELECT key
      FROM earmark_locks
     WHERE starts_with(key, $1)
       AND (token IS NULL OR expires_at <= clock_timestamp())
       AND fence < (extract(epoch FROM clock_timestamp()) - $2::float8) * 1000000
     LIMIT $3
       FOR UPDATE SKIP LOCKED
)
DELETE FROM earmark_locks AS lock USING idle WHERE lock.key = idle.key
RETURNING lock.key;

-- name: ping
-- The shortest answer there is.
SELECT 1;
