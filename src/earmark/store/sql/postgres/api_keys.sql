-- The rows of API keys. A transaction about them locks one key and no other row.

-- name: find_key
-- The key whose secret this is, or was before: two looks by index. The caller judges whether it is still valid.
SELECT id, name, mode, scopes, hash, created_at, expires_at, rotated_at, old_hash, old_until, revoked_at
  FROM api_keys WHERE hash = $1
UNION ALL
SELECT id, name, mode, scopes, hash, created_at, expires_at, rotated_at, old_hash, old_until, revoked_at
  FROM api_keys WHERE old_hash = $1
 LIMIT 1;

-- name: read_key
-- For requests with a token that a key has issued.
SELECT id, name, mode, scopes, hash, created_at, expires_at, rotated_at, old_hash, old_until, revoked_at
  FROM api_keys WHERE id = $1;

-- name: lock_key
-- By key alone. A transaction that waited here sees the key as the one before left it.
SELECT id, name, mode, scopes, hash, created_at, expires_at, rotated_at, old_hash, old_until, revoked_at
  FROM api_keys WHERE id = $1 FOR NO KEY UPDATE;

-- name: list_keys
-- For operators, with the revoked ones.
SELECT id, name, mode, scopes, hash, created_at, expires_at, rotated_at, old_hash, old_until, revoked_at
  FROM api_keys WHERE id > $1 ORDER BY id LIMIT $2;

-- name: insert_key
-- No row back means that there is one of this id.
INSERT INTO api_keys (id, name, mode, scopes, hash, created_at, expires_at) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (id) DO NOTHING
RETURNING id;

-- name: change_key
-- Its secrets, and that it was revoked. Nothing else of a key changes.
UPDATE api_keys SET hash = $2, old_hash = $3, rotated_at = $4, old_until = $5, revoked_at = $6 WHERE id = $1;
