-- expand
-- The law of the money, in the schema: what no program and no hand-written SQL may do to payments, refunds and callbacks.
-- As in `0002_guards.sql`, these guards know no clock, and a laboratory can build a database without them. None of them
-- stands on bookings or seats: whoever sells without taking money pays nothing for them.

ALTER TABLE payments
    ADD CONSTRAINT payment_amounts_in_order
        CHECK (0 < amount AND 0 <= refunded AND refunded <= refunding AND refunding <= captured AND captured <= amount);

ALTER TABLE refunds
    ADD CONSTRAINT refund_gives_something_back CHECK (amount > 0);

-- A payment begins before anybody was asked for money, and moves only along an edge of the law.
CREATE FUNCTION earmark_refuse_payment_move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        RAISE EXCEPTION 'earmark: a payment begins as pending with nothing captured, not as %', NEW.state
            USING ERRCODE = 'check_violation', CONSTRAINT = 'payment_begins_pending';
    END IF;
    RAISE EXCEPTION 'earmark: payment % cannot move from % to %', OLD.id, OLD.state, NEW.state
        USING ERRCODE = 'check_violation', CONSTRAINT = 'payment_moves_along_an_edge';
END $$;

CREATE TRIGGER payment_begins_pending BEFORE INSERT ON payments
    FOR EACH ROW WHEN (NEW.state <> 'pending' OR NEW.captured <> 0 OR NEW.refunding <> 0 OR NEW.refunded <> 0)
    EXECUTE FUNCTION earmark_refuse_payment_move();

CREATE TRIGGER payment_moves_along_an_edge AFTER UPDATE OF state ON payments
    FOR EACH ROW WHEN (OLD.state <> NEW.state AND (OLD.state, NEW.state) NOT IN (
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
    )) EXECUTE FUNCTION earmark_refuse_payment_move();

-- A payment is of a booking that is there, and asks for its kind of money.
CREATE FUNCTION earmark_refuse_strange_payment() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM bookings b
                    WHERE b.id = NEW.booking_id AND b.event_id = NEW.event_id AND b.live = NEW.live
                      AND b.currency = NEW.currency) THEN
        RAISE EXCEPTION 'earmark: payment % and booking % do not agree in event, mode and currency', NEW.id, NEW.booking_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'payment_of_its_booking';
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER payment_of_its_booking AFTER INSERT ON payments
    FOR EACH ROW EXECUTE FUNCTION earmark_refuse_strange_payment();

-- It stays the same order to the same gateway, and is never removed.
CREATE FUNCTION earmark_keep_gateway_payment() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'earmark: payment % stays', OLD.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'payment_stays';
    END IF;
    RAISE EXCEPTION 'earmark: payment % keeps its id, booking, gateway, amount and beginning', OLD.id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'payment_keeps_its_identity';
END $$;

CREATE TRIGGER payment_stays BEFORE DELETE ON payments
    FOR EACH ROW EXECUTE FUNCTION earmark_keep_gateway_payment();

CREATE TRIGGER payment_keeps_its_identity
    AFTER UPDATE OF id, booking_id, event_id, live, gateway, method, amount, currency, automatic, created_at ON payments
    FOR EACH ROW WHEN (
        (OLD.id, OLD.booking_id, OLD.event_id, OLD.live, OLD.gateway, OLD.method, OLD.amount, OLD.currency, OLD.automatic,
         OLD.created_at)
        IS DISTINCT FROM
        (NEW.id, NEW.booking_id, NEW.event_id, NEW.live, NEW.gateway, NEW.method, NEW.amount, NEW.currency, NEW.automatic,
         NEW.created_at)
    ) EXECUTE FUNCTION earmark_keep_gateway_payment();

-- What was taken is a fact, and what was owed or given back is never taken back.
CREATE FUNCTION earmark_keep_amounts() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.captured <> 0 AND NEW.captured <> OLD.captured THEN
        RAISE EXCEPTION 'earmark: payment % captured %, and not %', OLD.id, OLD.captured, NEW.captured
            USING ERRCODE = 'check_violation', CONSTRAINT = 'captured_is_a_fact';
    END IF;
    RAISE EXCEPTION 'earmark: what payment % gives back never shrinks', OLD.id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'refunds_never_shrink';
END $$;

CREATE TRIGGER payment_amounts_only_grow AFTER UPDATE OF captured, refunding, refunded ON payments
    FOR EACH ROW WHEN (
        (OLD.captured <> 0 AND NEW.captured <> OLD.captured)
        OR NEW.refunding < OLD.refunding OR NEW.refunded < OLD.refunded
    ) EXECUTE FUNCTION earmark_keep_amounts();

-- A refund begins before its gateway is asked, and is decided once. Judged after the insert: one that gives way to an
-- update of the refund that is there is right.
CREATE FUNCTION earmark_refuse_refund_move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        RAISE EXCEPTION 'earmark: a refund begins as pending, not as %', NEW.state
            USING ERRCODE = 'check_violation', CONSTRAINT = 'refund_begins_pending';
    END IF;
    RAISE EXCEPTION 'earmark: refund % cannot move from % to %', OLD.id, OLD.state, NEW.state
        USING ERRCODE = 'check_violation', CONSTRAINT = 'refund_moves_along_an_edge';
END $$;

CREATE TRIGGER refund_begins_pending AFTER INSERT ON refunds
    FOR EACH ROW WHEN (NEW.state <> 'pending') EXECUTE FUNCTION earmark_refuse_refund_move();

CREATE TRIGGER refund_moves_along_an_edge AFTER UPDATE OF state ON refunds
    FOR EACH ROW WHEN (OLD.state <> NEW.state AND (OLD.state, NEW.state) NOT IN (
        ('pending', 'done'), ('pending', 'refused')
    )) EXECUTE FUNCTION earmark_refuse_refund_move();

-- It is of a payment of its booking, and all of them together are what that payment owes. The payment is locked first:
-- two who add refunds at once must each see the other's.
CREATE FUNCTION earmark_count_refunds() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    owing bigint;
    owed  bigint;
BEGIN
    SELECT refunding INTO owing FROM payments
     WHERE id = NEW.payment_id AND booking_id = NEW.booking_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'earmark: refund % is of no payment of booking %', NEW.id, NEW.booking_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'refund_of_its_payment';
    END IF;
    SELECT sum(amount) INTO owed FROM refunds WHERE payment_id = NEW.payment_id;
    IF owed > owing THEN
        RAISE EXCEPTION 'earmark: payment % owes %, and its refunds are %', NEW.payment_id, owing, owed
            USING ERRCODE = 'check_violation', CONSTRAINT = 'refunds_within_what_is_owed';
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER refunds_within_what_is_owed AFTER INSERT ON refunds
    FOR EACH ROW EXECUTE FUNCTION earmark_count_refunds();

CREATE FUNCTION earmark_keep_refund() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'earmark: refund % stays', OLD.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'refund_stays';
    END IF;
    RAISE EXCEPTION 'earmark: refund % keeps its id, payment, booking, amount and beginning', OLD.id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'refund_keeps_its_identity';
END $$;

CREATE TRIGGER refund_stays BEFORE DELETE ON refunds
    FOR EACH ROW EXECUTE FUNCTION earmark_keep_refund();

CREATE TRIGGER refund_keeps_its_identity AFTER UPDATE OF id, payment_id, booking_id, amount, created_at ON refunds
    FOR EACH ROW WHEN (
        (OLD.id, OLD.payment_id, OLD.booking_id, OLD.amount, OLD.created_at)
        IS DISTINCT FROM
        (NEW.id, NEW.payment_id, NEW.booking_id, NEW.amount, NEW.created_at)
    ) EXECUTE FUNCTION earmark_keep_refund();

-- What a gateway called about is remembered for good.
CREATE FUNCTION earmark_keep_callback() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'earmark: callback % of % stays as it is', OLD.id, OLD.gateway
        USING ERRCODE = 'check_violation', CONSTRAINT = 'callback_stays';
END $$;

CREATE TRIGGER callback_stays BEFORE UPDATE OR DELETE ON callbacks
    FOR EACH ROW EXECUTE FUNCTION earmark_keep_callback();

CREATE TRIGGER nothing_is_truncated BEFORE TRUNCATE ON payments
    FOR EACH STATEMENT EXECUTE FUNCTION earmark_refuse_truncate();
CREATE TRIGGER nothing_is_truncated BEFORE TRUNCATE ON refunds
    FOR EACH STATEMENT EXECUTE FUNCTION earmark_refuse_truncate();
CREATE TRIGGER nothing_is_truncated BEFORE TRUNCATE ON callbacks
    FOR EACH STATEMENT EXECUTE FUNCTION earmark_refuse_truncate();
