-- The rows of accounts. `BEGIN IMMEDIATE` has shut out every other writer, so nothing is locked.

-- name: lock_account
-- By key.
SELECT id, currency, mode, created_at, number, balance, set_aside FROM accounts WHERE id = ?1;

-- name: read_account
-- For showing only.
SELECT id, currency, mode, created_at, number, balance, set_aside FROM accounts WHERE id = ?1;

-- name: find_code
-- By what a code may be kept as: under the secret in use, or under an older one.
SELECT a.id FROM json_each(?1) AS d JOIN accounts a ON a.code_digest = d.value ORDER BY d.key LIMIT 1;

-- name: open_account
-- No row changed means that there is one of this id, or one that this code opens.
INSERT INTO accounts (id, currency, mode, created_at, code_digest) VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING;

-- name: change_account
-- The guarded update: the account is as the entry found it, and good for it. No row changed means that it is not.
UPDATE accounts SET number = number + 1, balance = balance + ?3, set_aside = set_aside + ?4
 WHERE id = ?1 AND number = ?2 - 1 AND 0 <= set_aside + ?4 AND set_aside + ?4 <= balance + ?3;

-- name: insert_account_entry
-- After the change that it records, and in its transaction.
INSERT INTO account_entries (account_id, number, kind, id, amount, aside, balance, set_aside, at, payment_id, reason)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: find_account_entry
-- Whether this entry was written before.
SELECT account_id, number, kind, id, amount, aside, balance, set_aside, at, payment_id, reason
  FROM account_entries WHERE kind = ?1 AND id = ?2;

-- name: list_account_entries
-- The entries of an account, on from a number.
SELECT account_id, number, kind, id, amount, aside, balance, set_aside, at, payment_id, reason
  FROM account_entries WHERE account_id = ?1 AND number > ?2 ORDER BY number LIMIT ?3;

-- name: insert_draw
-- The draw that was requested, before anything is drawn. No row changed means that it was requested before.
INSERT INTO account_payments (id, account_id, currency, mode, amount, automatic, created_at, code)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING;

-- name: find_draw
-- A payment with what its entries say.
SELECT p.id AS payment_id, p.account_id, p.currency, p.mode, p.amount, p.automatic, p.created_at, p.code,
       coalesce(sum(e.aside) FILTER (WHERE e.kind = 'set_aside'), 0) AS set_aside,
       coalesce(-sum(e.aside) FILTER (WHERE e.kind = 'let_go'), 0) AS let_go,
       coalesce(-sum(e.amount) FILTER (WHERE e.kind = 'taken'), 0) AS taken,
       coalesce(sum(e.amount) FILTER (WHERE e.kind = 'given_back'), 0) AS given_back
  FROM account_payments p LEFT JOIN account_entries e ON e.payment_id = p.id
 WHERE p.id = ?1 GROUP BY p.id;

-- name: list_draws
-- The draws, by age: the limit is met before any entry is counted.
SELECT p.id AS payment_id, p.account_id, p.currency, p.mode, p.amount, p.automatic, p.created_at, p.code,
       coalesce(sum(e.aside) FILTER (WHERE e.kind = 'set_aside'), 0) AS set_aside,
       coalesce(-sum(e.aside) FILTER (WHERE e.kind = 'let_go'), 0) AS let_go,
       coalesce(-sum(e.amount) FILTER (WHERE e.kind = 'taken'), 0) AS taken,
       coalesce(sum(e.amount) FILTER (WHERE e.kind = 'given_back'), 0) AS given_back
  FROM (SELECT * FROM account_payments
         WHERE (created_at, id) > (?2, ?3) AND mode = ?1 ORDER BY created_at, id LIMIT ?4) AS p
  LEFT JOIN account_entries e ON e.payment_id = p.id
 GROUP BY p.created_at, p.id ORDER BY p.created_at, p.id;
