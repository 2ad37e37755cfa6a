-- expand
-- Until how long before the start a buyer may cancel without the shop; null is never. The rule is added as not valid, so that no
-- row is read under the lock: all rows that are there have null, and every new one is checked.
ALTER TABLE events ADD COLUMN buyer_cancel_until_seconds integer;
ALTER TABLE events ADD CONSTRAINT buyer_cancel_limit_not_negative CHECK (buyer_cancel_until_seconds >= 0) NOT VALID;
