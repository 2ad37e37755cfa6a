-- expand
-- Until how long before the start a buyer may cancel without the shop; null is never.
ALTER TABLE events ADD COLUMN buyer_cancel_until_seconds integer
    CONSTRAINT buyer_cancel_limit_not_negative
    CHECK (buyer_cancel_until_seconds IS NULL
           OR (typeof(buyer_cancel_until_seconds) = 'integer' AND buyer_cancel_until_seconds >= 0));
