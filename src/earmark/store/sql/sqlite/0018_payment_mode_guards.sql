-- expand
-- The guards of outside payments, for the table that `0017_payment_modes.sql` made. What confirmed a booking is not taken back,
-- nor given to another. The only change is that of `outside_payment_gets_its_mode`. An insert that comes second gives way in
-- silence, and its sender finds that nothing was inserted: a trigger cannot tell whether a statement would have replaced the first
-- row or yielded to it.
CREATE TRIGGER outside_payment_stays BEFORE UPDATE ON outside_payments
WHEN OLD.live IS NOT NULL
     OR (NEW.payment_id, NEW.booking_id, NEW.live)
        IS NOT (OLD.payment_id, OLD.booking_id, (SELECT b.live FROM bookings b WHERE b.id = OLD.booking_id))
BEGIN
    SELECT RAISE(ABORT, 'earmark: a payment is of one booking for good (outside_payment_stays)');
END;

CREATE TRIGGER outside_payment_is_not_removed BEFORE DELETE ON outside_payments
BEGIN
    SELECT RAISE(ABORT, 'earmark: a payment is of one booking for good (outside_payment_stays)');
END;

CREATE TRIGGER outside_payment_is_not_replaced BEFORE INSERT ON outside_payments
WHEN EXISTS (SELECT 1 FROM outside_payments o WHERE o.payment_id = NEW.payment_id AND o.live = NEW.live)
BEGIN
    SELECT RAISE(IGNORE);
END;

-- And it is of the mode of its booking, also where a statement says the mode itself.
CREATE TRIGGER outside_payment_agrees_with_booking BEFORE INSERT ON outside_payments
WHEN NEW.live IS NOT NULL AND NEW.live IS NOT (SELECT b.live FROM bookings b WHERE b.id = NEW.booking_id)
BEGIN
    SELECT RAISE(ABORT, 'earmark: a payment is of the mode of its booking (outside_payment_agrees_with_booking)');
END;
