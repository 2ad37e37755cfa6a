-- expand
-- A payment reference that a shop gives at confirm is unique within its mode: what was tried with `till-1` in test mode does not
-- keep the live `till-1` from confirming. The mode is the booking's. SQLite replaces the key of a table only with the table:
-- it has the columns that it had, and no code names the key, for an older server inserts `ON CONFLICT DO NOTHING`.
CREATE TABLE outside_payments_by_mode (
    payment_id text NOT NULL,
    booking_id text NOT NULL REFERENCES bookings,
    live       integer,
    UNIQUE (payment_id, live)
);

INSERT INTO outside_payments_by_mode (payment_id, booking_id, live)
SELECT p.payment_id, p.booking_id, coalesce(b.live, 1)
  FROM outside_payments p LEFT JOIN bookings b ON b.id = p.booking_id;

-- Its guards go with it. `0018_payment_mode_guards.sql` makes them anew, in the same transaction.
DROP TABLE outside_payments;
ALTER TABLE outside_payments_by_mode RENAME TO outside_payments;

-- An older server does not say the mode. It gives way to a row that has the reference in that mode, and finds that nothing was
-- inserted; else the mode is filled in before the statement ends. No other statement comes between: there is one writer.
CREATE TRIGGER outside_payment_gives_way BEFORE INSERT ON outside_payments
WHEN NEW.live IS NULL
     AND EXISTS (SELECT 1 FROM outside_payments o JOIN bookings b ON b.id = NEW.booking_id
                  WHERE o.payment_id = NEW.payment_id AND o.live = b.live)
BEGIN
    SELECT RAISE(IGNORE);
END;

CREATE TRIGGER outside_payment_gets_its_mode AFTER INSERT ON outside_payments
WHEN NEW.live IS NULL
BEGIN
    UPDATE outside_payments SET live = (SELECT b.live FROM bookings b WHERE b.id = NEW.booking_id)
     WHERE payment_id = NEW.payment_id AND booking_id = NEW.booking_id AND live IS NULL;
END;
