-- expand
-- A payment reference that a shop gives at confirm is unique within its mode: what was tried with `till-1` in test mode does not
-- keep the live `till-1` from confirming. The mode is the booking's. The key that is replaced allowed less than the new one, and
-- no code names it: an older server inserts `ON CONFLICT DO NOTHING`, which asks whichever key there is.

-- The default spares most rows a write, for most references are live: the rows that are there have it without being touched.
ALTER TABLE outside_payments ADD COLUMN live boolean DEFAULT true;
ALTER TABLE outside_payments ALTER COLUMN live DROP DEFAULT;

-- The guard of these rows, where there is one, allows no change.
ALTER TABLE outside_payments DISABLE TRIGGER USER;
UPDATE outside_payments p SET live = false FROM bookings b WHERE b.id = p.booking_id AND NOT b.live;
ALTER TABLE outside_payments ENABLE TRIGGER USER;

ALTER TABLE outside_payments DROP CONSTRAINT outside_payments_pkey, ADD PRIMARY KEY (payment_id, live);

-- An older server does not say the mode, and neither does `earmark_write`.
CREATE FUNCTION earmark_fill_mode() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.live := (SELECT b.live FROM bookings b WHERE b.id = NEW.booking_id);
    RETURN NEW;
END $$;

CREATE TRIGGER outside_payment_gets_its_mode BEFORE INSERT ON outside_payments
    FOR EACH ROW WHEN (NEW.live IS NULL) EXECUTE FUNCTION earmark_fill_mode();
