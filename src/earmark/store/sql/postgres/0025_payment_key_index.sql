-- expand
-- The way to the keys that opened a buyer's payments, for the erasure of that buyer. Payments that are opened wait while it is
-- built. Where the table is large, build the index by hand before, CONCURRENTLY.
CREATE INDEX IF NOT EXISTS payment_keys_by_payment ON payment_keys (payment_id);
