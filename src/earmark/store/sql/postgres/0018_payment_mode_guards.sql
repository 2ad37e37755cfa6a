-- expand
-- A payment that was taken elsewhere is of the mode of its booking, also where a statement says the mode itself. A statement that
-- leaves it out is not asked: PostgreSQL takes triggers by name, and `outside_payment_gets_its_mode` comes after this one.
-- The guards against a change of these rows stayed with their table.
CREATE FUNCTION earmark_refuse_mode() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM bookings b WHERE b.id = NEW.booking_id AND b.live = NEW.live) THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'earmark: payment % is not of the mode of booking %', NEW.payment_id, NEW.booking_id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'outside_payment_agrees_with_booking';
END $$;

CREATE TRIGGER outside_payment_agrees_with_booking BEFORE INSERT ON outside_payments
    FOR EACH ROW WHEN (NEW.live IS NOT NULL) EXECUTE FUNCTION earmark_refuse_mode();
