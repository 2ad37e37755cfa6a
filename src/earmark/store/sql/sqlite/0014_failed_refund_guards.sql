-- expand
-- A refund that was made can still fail, weeks later: the buyer's account is closed, and the money comes back. Then it is
-- refused after all, what its payment gave back is less by that, and somebody is called in the same transaction. The
-- guards of `0006_payment_guards.sql`, with this one way.

DROP TRIGGER refunds_never_shrink;

CREATE TRIGGER refunds_never_shrink BEFORE UPDATE OF refunding, refunded ON payments
WHEN NEW.refunding < OLD.refunding OR (NEW.refunded < OLD.refunded AND NEW.state <> 'needs_attention')
BEGIN
    SELECT RAISE(ABORT, 'earmark: what a payment gives back never shrinks (refunds_never_shrink)');
END;

DROP TRIGGER refund_is_not_replaced;

-- Nobody can tell here whether an insert over a refund that is there would update or replace it: it may do no more than
-- an update may.
CREATE TRIGGER refund_is_not_replaced BEFORE INSERT ON refunds
WHEN EXISTS (
    SELECT 1 FROM refunds r
     WHERE r.id = NEW.id
       AND ((r.payment_id, r.booking_id, r.amount, r.created_at)
            IS NOT
            (NEW.payment_id, NEW.booking_id, NEW.amount, NEW.created_at)
            OR (r.state <> NEW.state AND (r.state, NEW.state) NOT IN (VALUES
                ('pending', 'done'), ('pending', 'refused'), ('done', 'refused')))
            OR (r.state = 'done' AND NEW.state = 'refused'
                AND NOT EXISTS (SELECT 1 FROM payments p WHERE p.id = r.payment_id AND p.state = 'needs_attention'))))
BEGIN
    SELECT RAISE(ABORT, 'earmark: there is a refund with this id (refund_stays)');
END;

DROP TRIGGER refund_moves_along_an_edge;

CREATE TRIGGER refund_moves_along_an_edge BEFORE UPDATE OF state ON refunds
WHEN OLD.state <> NEW.state AND (OLD.state, NEW.state) NOT IN (VALUES
    ('pending', 'done'), ('pending', 'refused'), ('done', 'refused')
)
BEGIN
    SELECT RAISE(ABORT, 'earmark: a refund cannot move this way (refund_moves_along_an_edge)');
END;

-- The payment is written first, so what it says here is what it says from now on.
CREATE TRIGGER failed_refund_calls_somebody BEFORE UPDATE OF state ON refunds
WHEN OLD.state = 'done' AND NEW.state = 'refused'
     AND NOT EXISTS (SELECT 1 FROM payments p WHERE p.id = NEW.payment_id AND p.state = 'needs_attention')
BEGIN
    SELECT RAISE(ABORT, 'earmark: a refund that was made fails, and nobody is told (failed_refund_calls_somebody)');
END;
