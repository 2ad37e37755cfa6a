-- expand
-- The law of the money, in the schema: what no program and no hand-written SQL may do to payments, refunds and callbacks.
-- As in `0002_guards.sql`, these guards know no clock, a laboratory can build a database without them, and what a REPLACE
-- or a shell without foreign keys would do is refused too. None of them stands on bookings or seats.

CREATE TRIGGER payment_amounts_in_order BEFORE UPDATE OF amount, captured, refunding, refunded ON payments
WHEN NOT (0 < NEW.amount AND 0 <= NEW.refunded AND NEW.refunded <= NEW.refunding AND NEW.refunding <= NEW.captured
          AND NEW.captured <= NEW.amount)
BEGIN
    SELECT RAISE(ABORT, 'earmark: 0 <= refunded <= refunding <= captured <= amount (payment_amounts_in_order)');
END;

CREATE TRIGGER new_payment_amounts_in_order BEFORE INSERT ON payments
WHEN NEW.amount <= 0
BEGIN
    SELECT RAISE(ABORT, 'earmark: a payment asks for something (payment_amounts_in_order)');
END;

-- A column takes what it is given: text or a fraction would pass every comparison with a number.
CREATE TRIGGER payment_counts_are_integers
BEFORE UPDATE OF amount, captured, refunding, refunded, tries, version ON payments
WHEN typeof(NEW.amount) <> 'integer' OR typeof(NEW.captured) <> 'integer' OR typeof(NEW.refunding) <> 'integer'
     OR typeof(NEW.refunded) <> 'integer' OR typeof(NEW.tries) <> 'integer' OR typeof(NEW.version) <> 'integer'
BEGIN
    SELECT RAISE(ABORT, 'earmark: a count is a whole number (counts_are_integers)');
END;

CREATE TRIGGER new_payment_counts_are_integers BEFORE INSERT ON payments
WHEN typeof(NEW.amount) <> 'integer' OR typeof(NEW.captured) <> 'integer' OR typeof(NEW.refunding) <> 'integer'
     OR typeof(NEW.refunded) <> 'integer' OR typeof(NEW.tries) <> 'integer' OR typeof(NEW.version) <> 'integer'
BEGIN
    SELECT RAISE(ABORT, 'earmark: a count is a whole number (counts_are_integers)');
END;

CREATE TRIGGER new_refund_counts_are_integers BEFORE INSERT ON refunds
WHEN typeof(NEW.amount) <> 'integer'
BEGIN
    SELECT RAISE(ABORT, 'earmark: a count is a whole number (counts_are_integers)');
END;

CREATE TRIGGER refund_gives_something_back BEFORE INSERT ON refunds
WHEN NEW.amount <= 0
BEGIN
    SELECT RAISE(ABORT, 'earmark: a refund gives something back (refund_gives_something_back)');
END;

-- A payment begins before anybody was asked for money, and moves only along an edge of the law.
CREATE TRIGGER payment_begins_pending BEFORE INSERT ON payments
WHEN NEW.state <> 'pending' OR NEW.captured <> 0 OR NEW.refunding <> 0 OR NEW.refunded <> 0
BEGIN
    SELECT RAISE(ABORT, 'earmark: a payment begins as pending with nothing captured (payment_begins_pending)');
END;

CREATE TRIGGER payment_moves_along_an_edge BEFORE UPDATE OF state ON payments
WHEN OLD.state <> NEW.state AND (OLD.state, NEW.state) NOT IN (VALUES
    ('pending', 'requires_action'), ('pending', 'unknown'), ('pending', 'authorised'), ('pending', 'captured'),
    ('pending', 'voiding'), ('pending', 'failed'), ('pending', 'needs_attention'),
    ('requires_action', 'pending'), ('requires_action', 'authorised'), ('requires_action', 'captured'),
    ('requires_action', 'voiding'), ('requires_action', 'failed'), ('requires_action', 'needs_attention'),
    ('unknown', 'pending'), ('unknown', 'requires_action'), ('unknown', 'authorised'), ('unknown', 'captured'),
    ('unknown', 'voiding'), ('unknown', 'failed'), ('unknown', 'needs_attention'),
    ('authorised', 'captured'), ('authorised', 'voiding'), ('authorised', 'failed'),
    ('authorised', 'needs_attention'),
    ('captured', 'partially_refunded'), ('captured', 'refunded'), ('captured', 'needs_attention'),
    ('partially_refunded', 'refunded'), ('partially_refunded', 'needs_attention'),
    ('refunded', 'needs_attention'),
    ('voiding', 'captured'), ('voiding', 'voided'), ('voiding', 'needs_attention'),
    ('voided', 'captured'), ('voided', 'voiding'), ('voided', 'needs_attention'),
    ('failed', 'captured'), ('failed', 'voiding'), ('failed', 'needs_attention'),
    ('needs_attention', 'authorised'), ('needs_attention', 'captured'), ('needs_attention', 'voiding'),
    ('needs_attention', 'failed')
)
BEGIN
    SELECT RAISE(ABORT, 'earmark: a payment cannot move this way (payment_moves_along_an_edge)');
END;

-- A payment is of a booking that is there, and asks for its kind of money.
CREATE TRIGGER payment_of_its_booking BEFORE INSERT ON payments
WHEN NOT EXISTS (
    SELECT 1 FROM bookings b
     WHERE b.id = NEW.booking_id AND b.event_id = NEW.event_id AND b.live = NEW.live AND b.currency = NEW.currency)
BEGIN
    SELECT RAISE(ABORT, 'earmark: a payment is of a booking of its event, mode and currency (payment_of_its_booking)');
END;

-- It stays the same order to the same gateway, and is neither removed nor replaced.
CREATE TRIGGER payment_stays BEFORE DELETE ON payments
BEGIN
    SELECT RAISE(ABORT, 'earmark: a payment stays (payment_stays)');
END;

CREATE TRIGGER payment_is_not_replaced BEFORE INSERT ON payments
WHEN EXISTS (SELECT 1 FROM payments p WHERE p.id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'earmark: there is a payment with this id (payment_stays)');
END;

CREATE TRIGGER payment_keeps_its_identity
BEFORE UPDATE OF id, booking_id, event_id, live, gateway, method, amount, currency, automatic, created_at ON payments
WHEN (OLD.id, OLD.booking_id, OLD.event_id, OLD.live, OLD.gateway, OLD.method, OLD.amount, OLD.currency, OLD.automatic,
      OLD.created_at)
     IS NOT
     (NEW.id, NEW.booking_id, NEW.event_id, NEW.live, NEW.gateway, NEW.method, NEW.amount, NEW.currency, NEW.automatic,
      NEW.created_at)
BEGIN
    SELECT RAISE(ABORT, 'earmark: a payment keeps its id, booking, gateway, amount and beginning (payment_keeps_its_identity)');
END;

-- What was taken is a fact, and what was owed or given back is never taken back.
CREATE TRIGGER captured_is_a_fact BEFORE UPDATE OF captured ON payments
WHEN OLD.captured <> 0 AND NEW.captured <> OLD.captured
BEGIN
    SELECT RAISE(ABORT, 'earmark: what was captured stays captured (captured_is_a_fact)');
END;

CREATE TRIGGER refunds_never_shrink BEFORE UPDATE OF refunding, refunded ON payments
WHEN NEW.refunding < OLD.refunding OR NEW.refunded < OLD.refunded
BEGIN
    SELECT RAISE(ABORT, 'earmark: what a payment gives back never shrinks (refunds_never_shrink)');
END;

-- A refund begins before its gateway is asked, and is decided once. Nobody can tell here whether an insert over a refund
-- that is there would update or replace it: it may do no more than an update may.
CREATE TRIGGER refund_begins_pending BEFORE INSERT ON refunds
WHEN NEW.state <> 'pending' AND NOT EXISTS (SELECT 1 FROM refunds r WHERE r.id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'earmark: a refund begins as pending (refund_begins_pending)');
END;

CREATE TRIGGER refund_is_not_replaced BEFORE INSERT ON refunds
WHEN EXISTS (
    SELECT 1 FROM refunds r
     WHERE r.id = NEW.id
       AND ((r.payment_id, r.booking_id, r.amount, r.created_at)
            IS NOT
            (NEW.payment_id, NEW.booking_id, NEW.amount, NEW.created_at)
            OR (r.state <> NEW.state AND (r.state, NEW.state) NOT IN (VALUES ('pending', 'done'), ('pending', 'refused')))))
BEGIN
    SELECT RAISE(ABORT, 'earmark: there is a refund with this id (refund_stays)');
END;

CREATE TRIGGER refund_moves_along_an_edge BEFORE UPDATE OF state ON refunds
WHEN OLD.state <> NEW.state AND (OLD.state, NEW.state) NOT IN (VALUES
    ('pending', 'done'), ('pending', 'refused')
)
BEGIN
    SELECT RAISE(ABORT, 'earmark: a refund cannot move this way (refund_moves_along_an_edge)');
END;

-- It is of a payment of its booking, and all of them together are what that payment owes.
CREATE TRIGGER refund_of_its_payment BEFORE INSERT ON refunds
WHEN NOT EXISTS (SELECT 1 FROM payments p WHERE p.id = NEW.payment_id AND p.booking_id = NEW.booking_id)
BEGIN
    SELECT RAISE(ABORT, 'earmark: a refund is of a payment of its booking (refund_of_its_payment)');
END;

CREATE TRIGGER refunds_within_what_is_owed AFTER INSERT ON refunds
WHEN (SELECT sum(r.amount) FROM refunds r WHERE r.payment_id = NEW.payment_id)
     > (SELECT p.refunding FROM payments p WHERE p.id = NEW.payment_id)
BEGIN
    SELECT RAISE(ABORT, 'earmark: refunds are no more than their payment owes (refunds_within_what_is_owed)');
END;

CREATE TRIGGER refund_stays BEFORE DELETE ON refunds
BEGIN
    SELECT RAISE(ABORT, 'earmark: a refund stays (refund_stays)');
END;

CREATE TRIGGER refund_keeps_its_identity BEFORE UPDATE OF id, payment_id, booking_id, amount, created_at ON refunds
WHEN (OLD.id, OLD.payment_id, OLD.booking_id, OLD.amount, OLD.created_at)
     IS NOT
     (NEW.id, NEW.payment_id, NEW.booking_id, NEW.amount, NEW.created_at)
BEGIN
    SELECT RAISE(ABORT, 'earmark: a refund keeps its id, payment, booking, amount and beginning (refund_keeps_its_identity)');
END;

-- What a gateway called about is remembered for good. Who comes second gives way in silence, as the program's own insert
-- does.
CREATE TRIGGER callback_stays BEFORE UPDATE ON callbacks
BEGIN
    SELECT RAISE(ABORT, 'earmark: a callback stays as it is (callback_stays)');
END;

CREATE TRIGGER callback_is_not_removed BEFORE DELETE ON callbacks
BEGIN
    SELECT RAISE(ABORT, 'earmark: a callback stays as it is (callback_stays)');
END;

CREATE TRIGGER callback_is_not_replaced BEFORE INSERT ON callbacks
WHEN EXISTS (SELECT 1 FROM callbacks c WHERE c.gateway = NEW.gateway AND c.id = NEW.id)
BEGIN
    SELECT RAISE(IGNORE);
END;
