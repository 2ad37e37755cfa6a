-- Locks on names, which the database keeps and gives back with the transaction.

-- name: lock_names
-- In the order of the array, which is sorted. Until the transaction ends, other transactions wait here for these names.
SELECT pg_advisory_xact_lock(n.name) FROM unnest($1::bigint[]) AS n (name);
