-- expand
-- What went back at a gateway's own page is, together with what we gave back, no more than was taken; and when it grows,
-- somebody is called in the same write. Not checked over the rows that are there: they have none of it.

ALTER TABLE payments
    ADD CONSTRAINT payment_refunded_elsewhere_in_order
        CHECK (0 <= refunded_elsewhere AND refunded + refunded_elsewhere <= captured) NOT VALID;

CREATE FUNCTION earmark_refuse_quiet_refund_elsewhere() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'earmark: money of payment % went back elsewhere, and nobody is told', OLD.id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'refund_elsewhere_calls_somebody';
END $$;

CREATE TRIGGER refund_elsewhere_calls_somebody AFTER UPDATE OF refunded_elsewhere ON payments
    FOR EACH ROW WHEN (NEW.refunded_elsewhere > OLD.refunded_elsewhere AND NEW.state <> 'needs_attention')
    EXECUTE FUNCTION earmark_refuse_quiet_refund_elsewhere();
