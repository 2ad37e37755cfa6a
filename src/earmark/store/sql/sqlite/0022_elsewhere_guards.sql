-- expand
-- What went back at a gateway's own page is, together with what we gave back, no more than was taken; and when it grows,
-- somebody is called in the same write.

-- A column takes what it is given: text or a fraction would pass every comparison with a number.
CREATE TRIGGER payment_refunded_elsewhere_in_order BEFORE UPDATE OF captured, refunded, refunded_elsewhere ON payments
WHEN typeof(NEW.refunded_elsewhere) <> 'integer'
     OR NOT (0 <= NEW.refunded_elsewhere AND NEW.refunded + NEW.refunded_elsewhere <= NEW.captured)
BEGIN
    SELECT RAISE(ABORT, 'earmark: no more goes back than was taken (payment_refunded_elsewhere_in_order)');
END;

CREATE TRIGGER new_payment_refunded_elsewhere_in_order BEFORE INSERT ON payments
WHEN NEW.refunded_elsewhere IS NOT 0
BEGIN
    SELECT RAISE(ABORT, 'earmark: a new payment gave nothing back (payment_refunded_elsewhere_in_order)');
END;

CREATE TRIGGER refund_elsewhere_calls_somebody BEFORE UPDATE OF refunded_elsewhere ON payments
WHEN NEW.refunded_elsewhere > OLD.refunded_elsewhere AND NEW.state <> 'needs_attention'
BEGIN
    SELECT RAISE(ABORT, 'earmark: money went back elsewhere, and nobody is told (refund_elsewhere_calls_somebody)');
END;
