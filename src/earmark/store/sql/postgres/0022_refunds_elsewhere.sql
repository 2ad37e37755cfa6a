-- expand
-- What people gave back of a payment at its gateway's own page, as the gateway lists it. It is no refund of ours: nothing
-- is owed for it, and nothing is asked for.

ALTER TABLE payments ADD COLUMN refunded_elsewhere bigint NOT NULL DEFAULT 0;
