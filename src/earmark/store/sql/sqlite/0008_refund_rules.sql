-- expand
-- What a cancelled sale gives back, as policy of its event: until how long before the start, and less which fee.

ALTER TABLE events ADD COLUMN refund_until_seconds integer
    CONSTRAINT refund_window_not_negative
    CHECK (refund_until_seconds IS NULL OR (typeof(refund_until_seconds) = 'integer' AND refund_until_seconds >= 0));
ALTER TABLE events ADD COLUMN refund_fee_percent integer NOT NULL DEFAULT 0
    CONSTRAINT refund_fee_is_a_percentage
    CHECK (typeof(refund_fee_percent) = 'integer' AND refund_fee_percent BETWEEN 0 AND 100);
ALTER TABLE events ADD COLUMN refund_fee_fixed integer NOT NULL DEFAULT 0
    CONSTRAINT refund_fee_not_negative
    CHECK (typeof(refund_fee_fixed) = 'integer' AND refund_fee_fixed >= 0);
