-- expand
-- What people gave back of a payment at its gateway's own page, as the gateway lists it. It is no refund of ours: nothing
-- is owed for it, and nothing is asked for.

ALTER TABLE payments ADD COLUMN refunded_elsewhere INTEGER NOT NULL DEFAULT 0;

-- When a payer last tried, and both ways of the janitor to rows whose time is over.
ALTER TABLE payers ADD COLUMN tried_at INTEGER NOT NULL DEFAULT 0;
UPDATE payers SET tried_at = CAST(strftime('%s', 'now') AS INTEGER) * 1000000;
CREATE INDEX payers_by_age ON payers (tried_at);
CREATE INDEX payment_keys_by_age ON payment_keys (opened_at);
