-- expand
-- What a cancelled sale gives back, as policy of its event: until how long before the start, and less which fee.

ALTER TABLE events
    ADD COLUMN refund_until_seconds integer
        CONSTRAINT refund_window_not_negative CHECK (refund_until_seconds >= 0),
    ADD COLUMN refund_fee_percent integer NOT NULL DEFAULT 0
        CONSTRAINT refund_fee_is_a_percentage CHECK (refund_fee_percent BETWEEN 0 AND 100),
    ADD COLUMN refund_fee_fixed bigint NOT NULL DEFAULT 0
        CONSTRAINT refund_fee_not_negative CHECK (refund_fee_fixed >= 0);
