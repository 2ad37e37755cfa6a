-- The rows of accounts. A transaction about them locks one account, before it reads anything, and no other row.

-- name: lock_account
-- By key alone. A transaction that waited here sees the account as the one before left it.
SELECT id, currency, mode, created_at, number, balance, set_aside FROM accounts WHERE id = $1 FOR UPDATE;

-- name: read_account
-- For showing only.
SELECT id, currency, mode, created_at, number, balance, set_aside FROM accounts WHERE id = $1;

-- name: find_code
-- By what a code may be kept as: under the secret in use, or under an older one.
SELECT id FROM accounts WHERE code_digest = ANY ($1::bytea[]) ORDER BY array_position($1::bytea[], code_digest) LIMIT 1;

-- name: open_account
-- No row back means that there is one of this id, or one that this code opens.
INSERT INTO accounts (id, currency, mode, created_at, code_digest) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: change_account
-- The guarded update: the account is as the entry found it, and good for it. No row changed means that it is not.
UPDATE accounts SET number = number + 1, balance = balance + $3, set_aside = set_aside + $4
 WHERE id = $1 AND number = $2 - 1 AND 0 <= set_aside + $4 AND set_aside + $4 <= balance + $3;

-- name: insert_account_entry
-- After the change that it records, and in its transaction.
INSERT INTO account_entries (account_id, number, kind, id, amount, aside, balance, set_aside, at, payment_id, reason)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11);

-- name: find_account_entry
-- Whether this entry was written before.
SELECT account_id, number, kind, id, amount, aside, balance, set_aside, at, payment_id, reason
  FROM account_entries WHERE kind = $1 AND id = $2;

-- name: list_account_entries
-- The entries of an account, on from a number.
SELECT account_id, number, kind, id, amount, aside, balance, set_aside, at, payment_id, reason
  FROM account_entries WHERE account_id = $1 AND number > $2 ORDER BY number LIMIT $3;

-- name: insert_draw
-- The draw that was requested, before anything is drawn. No row back means that it was requested before.
INSERT INTO account_payments (id, account_id, currency, mode, amount, automatic, created_at, code)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: find_draw
-- A payment with what its entries say.
SELECT p.id AS payment_id, p.account_id, p.currency, p.mode, p.amount, p.automatic, p.created_at, p.code,
       coalesce(sum(e.aside) FILTER (WHERE e.kind = 'set_aside'), 0)::bigint AS set_aside,
       coalesce(-sum(e.aside) FILTER (WHERE e.kind = 'let_go'), 0)::bigint AS let_go,
       coalesce(-sum(e.amount) FILTER (WHERE e.kind = 'taken'), 0)::bigint AS taken,
       coalesce(sum(e.amount) FILTER (WHERE e.kind = 'given_back'), 0)::bigint AS given_back
  FROM account_payments p LEFT JOIN account_entries e ON e.payment_id = p.id
 WHERE p.id = $1 GROUP BY p.id;

-- name: list_draws
-- The draws, by age. `LATERAL`, so that the limit is met before any entry is counted.
SELECT p.id AS payment_id, p.account_id, p.currency, p.mode, p.amount, p.automatic, p.created_at, p.code,
       e.set_aside, e.let_go, e.taken, e.given_back
  FROM (SELECT * FROM account_payments
         WHERE (created_at, id) > ($2::timestamptz, $3::uuid) AND mode = $1 ORDER BY created_at, id LIMIT $4) AS p
 CROSS JOIN LATERAL (
        SELECT coalesce(sum(aside) FILTER (WHERE kind = 'set_aside'), 0)::bigint AS set_aside,
               coalesce(-sum(aside) FILTER (WHERE kind = 'let_go'), 0)::bigint AS let_go,
               coalesce(-sum(amount) FILTER (WHERE kind = 'taken'), 0)::bigint AS taken,
               coalesce(sum(amount) FILTER (WHERE kind = 'given_back'), 0)::bigint AS given_back
          FROM account_entries WHERE payment_id = p.id) AS e
 ORDER BY p.created_at, p.id;
