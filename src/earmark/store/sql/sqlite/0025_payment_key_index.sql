-- expand
-- The way to the keys that opened a buyer's payments, for the erasure of that buyer.
CREATE INDEX payment_keys_by_payment ON payment_keys (payment_id);
