-- expand
-- A refund that was made can still fail, weeks later: the buyer's account is closed, and the money comes back. Then it is
-- refused after all, what its payment gave back is less by that, and somebody is called in the same transaction. The
-- guards of `0006_payment_guards.sql`, with this one way.

DROP TRIGGER payment_amounts_only_grow ON payments;

CREATE TRIGGER payment_amounts_only_grow AFTER UPDATE OF captured, refunding, refunded ON payments
    FOR EACH ROW WHEN (
        (OLD.captured <> 0 AND NEW.captured <> OLD.captured)
        OR NEW.refunding < OLD.refunding
        OR (NEW.refunded < OLD.refunded AND NEW.state <> 'needs_attention')
    ) EXECUTE FUNCTION earmark_keep_amounts();

DROP TRIGGER refund_moves_along_an_edge ON refunds;

CREATE TRIGGER refund_moves_along_an_edge AFTER UPDATE OF state ON refunds
    FOR EACH ROW WHEN (OLD.state <> NEW.state AND (OLD.state, NEW.state) NOT IN (
        ('pending', 'done'), ('pending', 'refused'), ('done', 'refused')
    )) EXECUTE FUNCTION earmark_refuse_refund_move();

-- The payment is written first, so what it says here is what it says from now on.
CREATE FUNCTION earmark_refuse_quiet_failure() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM payments WHERE id = NEW.payment_id AND state = 'needs_attention') THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'earmark: refund % was made, and nobody is told that it failed', OLD.id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'failed_refund_calls_somebody';
END $$;

CREATE TRIGGER failed_refund_calls_somebody AFTER UPDATE OF state ON refunds
    FOR EACH ROW WHEN (OLD.state = 'done' AND NEW.state = 'refused') EXECUTE FUNCTION earmark_refuse_quiet_failure();
