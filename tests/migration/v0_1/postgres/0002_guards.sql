-- expand
-- The rules of selling and of money, in the schema: what no program and no hand-written SQL may do to these rows.
-- They are in a file of their own so that a test or a benchmark can build a database without them. They use no clock.
-- A refusal undoes its statement, so most guards run after it: a trigger before an update would lock every row once more, even
-- where it finds nothing to refuse.

-- Pools and totals --------------------------------------------------------------------------------------------------------------

ALTER TABLE pools
    ADD CONSTRAINT pool_never_negative CHECK (capacity >= 0 AND held >= 0 AND sold >= 0),
    ADD CONSTRAINT pool_never_oversold CHECK (held + sold <= capacity);

ALTER TABLE buyer_totals
    ADD CONSTRAINT total_never_negative CHECK (units >= 0);

-- A pool with units held or sold, and a total above zero, are neither renamed nor removed.
CREATE FUNCTION earmark_keep_pool() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'earmark: pool % of % has units held or sold, and stays', OLD.id, OLD.event_id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'pool_in_use_stays';
END $$;

CREATE TRIGGER pool_in_use_keeps_its_name BEFORE UPDATE OF event_id, id ON pools
    FOR EACH ROW WHEN ((OLD.event_id, OLD.id) IS DISTINCT FROM (NEW.event_id, NEW.id) AND OLD.held + OLD.sold > 0)
    EXECUTE FUNCTION earmark_keep_pool();

CREATE TRIGGER pool_in_use_stays BEFORE DELETE ON pools
    FOR EACH ROW WHEN (OLD.held + OLD.sold > 0) EXECUTE FUNCTION earmark_keep_pool();

CREATE FUNCTION earmark_keep_total() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    erasing boolean;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        EXECUTE pg_catalog.format('SELECT %I.earmark_is_erasing($1, $2)', TG_TABLE_SCHEMA) INTO erasing USING TG_RELID, NEW.buyer;
        IF erasing AND (OLD.event_id, OLD.units) = (NEW.event_id, NEW.units) THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION 'earmark: the total of % at % is above zero, and stays', OLD.buyer, OLD.event_id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'total_in_use_stays';
END $$;

CREATE TRIGGER total_in_use_keeps_its_name BEFORE UPDATE OF event_id, buyer ON buyer_totals
    FOR EACH ROW WHEN ((OLD.event_id, OLD.buyer) IS DISTINCT FROM (NEW.event_id, NEW.buyer) AND OLD.units > 0)
    EXECUTE FUNCTION earmark_keep_total();

CREATE TRIGGER total_in_use_stays BEFORE DELETE ON buyer_totals
    FOR EACH ROW WHEN (OLD.units > 0) EXECUTE FUNCTION earmark_keep_total();

-- A buyer's total belongs to an event, and grows only up to its limit. Checked once for all rows of a statement. An erasure may
-- rename a total that exceeds a limit which was lowered after the sale.
CREATE FUNCTION earmark_keep_limit() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    beyond  record;
    erasing boolean;
BEGIN
    IF TG_OP = 'INSERT' THEN
        SELECT t.event_id, t.buyer, t.units, e.per_buyer_max INTO beyond
          FROM totals_after t LEFT JOIN events e ON e.id = t.event_id
         WHERE e.id IS NULL OR t.units > e.per_buyer_max LIMIT 1;
    ELSE
        SELECT t.event_id, t.buyer, t.units, e.per_buyer_max INTO beyond
          FROM totals_after t JOIN events e ON e.id = t.event_id
         WHERE t.units > e.per_buyer_max
           AND NOT EXISTS (SELECT 1 FROM totals_before o
                            WHERE o.event_id = t.event_id AND o.buyer = t.buyer AND o.units >= t.units) LIMIT 1;
        IF FOUND THEN
            EXECUTE pg_catalog.format('SELECT %I.earmark_is_erasing($1, $2)', TG_TABLE_SCHEMA)
               INTO erasing USING TG_RELID, beyond.buyer;
            IF erasing THEN
                RETURN NULL;
            END IF;
        END IF;
    END IF;
    IF FOUND AND beyond.per_buyer_max IS NULL THEN
        RAISE EXCEPTION 'earmark: there is no event %', beyond.event_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'total_of_an_event';
    ELSIF FOUND THEN
        RAISE EXCEPTION 'earmark: buyer % may have % of %, not %',
            beyond.buyer, beyond.per_buyer_max, beyond.event_id, beyond.units
            USING ERRCODE = 'check_violation', CONSTRAINT = 'buyer_stays_within_limit';
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER buyer_stays_within_limit AFTER INSERT ON buyer_totals
    REFERENCING NEW TABLE AS totals_after
    FOR EACH STATEMENT EXECUTE FUNCTION earmark_keep_limit();

CREATE TRIGGER buyer_grows_within_limit AFTER UPDATE ON buyer_totals
    REFERENCING OLD TABLE AS totals_before NEW TABLE AS totals_after
    FOR EACH STATEMENT EXECUTE FUNCTION earmark_keep_limit();

-- Bookings ----------------------------------------------------------------------------------------------------------------------

ALTER TABLE bookings
    ADD CONSTRAINT booking_state_known
        CHECK (state IN ('held', 'paying', 'confirmed', 'released', 'expired', 'failed', 'cancelled')),
    ADD CONSTRAINT booking_total_not_negative CHECK (total >= 0);

-- A booking begins as held and moves only along an edge of the table of moves (`domain/`).
CREATE FUNCTION earmark_refuse_move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        RAISE EXCEPTION 'earmark: a booking begins as held, not as %', NEW.state
            USING ERRCODE = 'check_violation', CONSTRAINT = 'booking_begins_held';
    END IF;
    RAISE EXCEPTION 'earmark: booking % cannot move from % to %', OLD.id, OLD.state, NEW.state
        USING ERRCODE = 'check_violation', CONSTRAINT = 'booking_moves_along_an_edge';
END $$;

CREATE TRIGGER booking_begins_held BEFORE INSERT ON bookings
    FOR EACH ROW WHEN (NEW.state <> 'held') EXECUTE FUNCTION earmark_refuse_move();

CREATE TRIGGER booking_moves_along_an_edge AFTER UPDATE OF state ON bookings
    FOR EACH ROW WHEN (OLD.state <> NEW.state AND (OLD.state, NEW.state) NOT IN (
        ('held', 'paying'), ('held', 'confirmed'), ('held', 'released'), ('held', 'expired'),
        ('paying', 'confirmed'), ('paying', 'held'), ('paying', 'expired'), ('paying', 'failed'),
        ('confirmed', 'cancelled'),
        ('expired', 'confirmed')
    )) EXECUTE FUNCTION earmark_refuse_move();

-- A booking stays the same claim of the same buyer, and an active one is not removed. An erasure may replace the buyer's name.
CREATE FUNCTION earmark_keep_booking() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    erasing boolean;
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'earmark: booking % is % and stays', OLD.id, OLD.state
            USING ERRCODE = 'check_violation', CONSTRAINT = 'active_booking_stays';
    END IF;
    EXECUTE pg_catalog.format('SELECT %I.earmark_is_erasing($1, $2)', TG_TABLE_SCHEMA) INTO erasing USING TG_RELID, NEW.buyer;
    IF erasing AND (OLD.id, OLD.event_id, OLD.mode, OLD.currency, OLD.created_at)
                   IS NOT DISTINCT FROM (NEW.id, NEW.event_id, NEW.mode, NEW.currency, NEW.created_at) THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'earmark: booking % keeps its id, event, buyer, currency and beginning', OLD.id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'booking_keeps_its_identity';
END $$;

CREATE TRIGGER booking_keeps_its_identity AFTER UPDATE OF id, event_id, buyer, mode, currency, created_at ON bookings
    FOR EACH ROW WHEN (
        (OLD.id, OLD.event_id, OLD.buyer, OLD.mode, OLD.currency, OLD.created_at)
        IS DISTINCT FROM
        (NEW.id, NEW.event_id, NEW.buyer, NEW.mode, NEW.currency, NEW.created_at)
    ) EXECUTE FUNCTION earmark_keep_booking();

CREATE TRIGGER active_booking_stays BEFORE DELETE ON bookings
    FOR EACH ROW WHEN (OLD.state IN ('held', 'paying', 'confirmed')) EXECUTE FUNCTION earmark_keep_booking();

-- The hold settled what a booking claims. A sale may be cancelled in part: then lines go, and no line is added or changed.
CREATE FUNCTION earmark_units(lines jsonb) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(jsonb_array_length(lines -> 'seats'), 0)
           + coalesce((SELECT sum((line ->> 'units')::integer) FROM jsonb_array_elements(lines -> 'pools') line), 0)
$$;

CREATE FUNCTION earmark_keep_lines() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT line -> 'id', line -> 'price' FROM jsonb_array_elements(NEW.lines -> 'seats') line
        EXCEPT ALL
        SELECT line -> 'id', line -> 'price' FROM jsonb_array_elements(OLD.lines -> 'seats') line
    ) OR EXISTS (
        SELECT 1
          FROM (SELECT line -> 'id' AS id, line -> 'price' AS price,
                       sum((line ->> 'units')::integer) AS units, min((line ->> 'units')::integer) AS units_min
                  FROM jsonb_array_elements(NEW.lines -> 'pools') line GROUP BY 1, 2) AS kept
         WHERE (kept.units_min > 0 AND kept.units <= (
                SELECT sum((line ->> 'units')::integer) FROM jsonb_array_elements(OLD.lines -> 'pools') line
                 WHERE line -> 'id' = kept.id AND line -> 'price' = kept.price)) IS NOT TRUE
    ) OR (
        (OLD.state <> 'confirmed' OR NEW.state <> 'confirmed') AND earmark_units(NEW.lines) <> earmark_units(OLD.lines)
    ) THEN
        RAISE EXCEPTION 'earmark: the lines of booking % only shrink, and only while it is confirmed', OLD.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'booking_lines_only_shrink';
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER booking_lines_only_shrink AFTER UPDATE OF lines ON bookings
    FOR EACH ROW WHEN (NEW.lines IS DISTINCT FROM OLD.lines) EXECUTE FUNCTION earmark_keep_lines();

-- A booking that lists a seat does not own it yet: it may be paid for or sold only when the seat points back.
-- Checked once for all rows of a statement, which is far cheaper than once per row. Without sequential scans, because PostgreSQL
-- keeps the plan, and may have made it when the table was small.
CREATE FUNCTION earmark_own_seats() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    missing record;
BEGIN
    SELECT b.id, b.seats INTO missing
      FROM (SELECT id, event_id, lines -> 'seats' AS seats FROM bookings_after WHERE state IN ('paying', 'confirmed')) AS b
     WHERE jsonb_array_length(b.seats) <> (
           SELECT count(*) FROM seats s
            WHERE s.event_id = b.event_id AND s.booking_id = b.id
              AND s.id = ANY (ARRAY (SELECT line ->> 'id' FROM jsonb_array_elements(b.seats) line)))
     LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'earmark: booking % lists seats of which not all point to it: %', missing.id, missing.seats
            USING ERRCODE = 'check_violation', CONSTRAINT = 'booking_owns_every_seat';
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER booking_owns_every_seat AFTER UPDATE ON bookings
    REFERENCING NEW TABLE AS bookings_after
    FOR EACH STATEMENT EXECUTE FUNCTION earmark_own_seats();

-- Late money may confirm an expired booking, but only with all of its seats. Locking the seats and raising their fence makes a
-- hold that read them as free look again.
CREATE FUNCTION earmark_reclaim_seats() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    claimed integer := jsonb_array_length(NEW.lines -> 'seats');
    owned   integer;
BEGIN
    WITH locked AS (
        SELECT s.event_id, s.id FROM seats s
         WHERE s.event_id = NEW.event_id AND s.booking_id = NEW.id AND NOT s.blocked
           AND s.id IN (SELECT line ->> 'id' FROM jsonb_array_elements(NEW.lines -> 'seats') line)
         ORDER BY s.event_id, s.id FOR NO KEY UPDATE
    ), raised AS (
        UPDATE seats s SET fence = s.fence + 1 FROM locked l
         WHERE s.event_id = l.event_id AND s.id = l.id AND s.booking_id = NEW.id
        RETURNING 1
    )
    SELECT count(*) INTO owned FROM raised;
    IF owned <> claimed THEN
        RAISE EXCEPTION 'earmark: booking % owns % of its % seats and cannot be confirmed again', NEW.id, owned, claimed
            USING ERRCODE = 'check_violation', CONSTRAINT = 'booking_reclaims_every_seat';
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER booking_reclaims_every_seat AFTER UPDATE OF state ON bookings
    FOR EACH ROW WHEN (OLD.state = 'expired' AND NEW.state = 'confirmed') EXECUTE FUNCTION earmark_reclaim_seats();

-- Seats -------------------------------------------------------------------------------------------------------------------------

-- A seat begins without a booking, and then points only to a booking of its event that lists it.
CREATE FUNCTION earmark_refuse_owner() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'earmark: seat % of % begins without a booking', NEW.id, NEW.event_id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'seat_begins_free';
END $$;

CREATE TRIGGER seat_begins_free BEFORE INSERT ON seats
    FOR EACH ROW WHEN (NEW.booking_id IS NOT NULL) EXECUTE FUNCTION earmark_refuse_owner();

CREATE FUNCTION earmark_point_to_lister() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    stray record;
BEGIN
    SELECT p.event_id, p.booking_id, p.seats INTO stray
      FROM (SELECT event_id, booking_id, jsonb_agg(jsonb_build_object('id', id)) AS seats
              FROM seats_after WHERE booking_id IS NOT NULL GROUP BY event_id, booking_id) AS p
     WHERE NOT EXISTS (SELECT 1 FROM bookings b
                        WHERE b.id = p.booking_id AND b.event_id = p.event_id AND b.lines -> 'seats' @> p.seats OFFSET 0)
     LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'earmark: booking % does not list all of % of %', stray.booking_id, stray.seats, stray.event_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'seat_points_to_its_booking';
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER seat_points_to_its_booking AFTER UPDATE ON seats
    REFERENCING NEW TABLE AS seats_after
    FOR EACH STATEMENT EXECUTE FUNCTION earmark_point_to_lister();

-- A seat leaves its booking, or is blocked, only when that booking has ended or no longer lists it.
CREATE FUNCTION earmark_keep_active_owners() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    kept record;
BEGIN
    SELECT o.event_id, o.id, o.booking_id INTO kept
      FROM seats_before o
     -- Row by row, by key: a plan that was made while the table was small must not read it whole later.
     CROSS JOIN LATERAL (SELECT b.state, b.lines FROM bookings b WHERE b.id = o.booking_id OFFSET 0) AS owner
     WHERE o.booking_id IS NOT NULL AND owner.state IN ('held', 'paying', 'confirmed')
       AND owner.lines -> 'seats' @> jsonb_build_array(jsonb_build_object('id', o.id))
       AND NOT EXISTS (SELECT 1 FROM seats s WHERE s.event_id = o.event_id AND s.id = o.id
                        AND s.booking_id = o.booking_id AND (o.blocked OR NOT s.blocked) OFFSET 0)
     LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'earmark: seat % of % belongs to the active booking %', kept.id, kept.event_id, kept.booking_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'seat_keeps_its_active_owner';
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER seat_keeps_its_active_owner AFTER UPDATE ON seats
    REFERENCING OLD TABLE AS seats_before
    FOR EACH STATEMENT EXECUTE FUNCTION earmark_keep_active_owners();

CREATE TRIGGER seat_with_an_active_owner_stays AFTER DELETE ON seats
    REFERENCING OLD TABLE AS seats_before
    FOR EACH STATEMENT EXECUTE FUNCTION earmark_keep_active_owners();

-- A blocked seat is not taken.
CREATE FUNCTION earmark_refuse_blocked() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'earmark: seat % of % is blocked', NEW.id, NEW.event_id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'blocked_seat_is_not_taken';
END $$;

CREATE TRIGGER blocked_seat_is_not_taken AFTER UPDATE OF booking_id ON seats
    FOR EACH ROW WHEN (NEW.blocked AND NEW.booking_id IS NOT NULL AND NEW.booking_id IS DISTINCT FROM OLD.booking_id)
    EXECUTE FUNCTION earmark_refuse_blocked();

-- Payments taken elsewhere ------------------------------------------------------------------------------------------------------

-- A reference that confirmed a booking is neither removed nor given to another booking. An erasure may replace a name in it.
CREATE FUNCTION earmark_keep_payment() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    erasing boolean;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        EXECUTE pg_catalog.format('SELECT %I.earmark_is_erasing($1, NULL)', TG_TABLE_SCHEMA) INTO erasing USING TG_RELID;
        IF erasing AND to_jsonb(OLD) - 'payment_id' = to_jsonb(NEW) - 'payment_id' THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION 'earmark: payment % is the one of booking % for good', OLD.payment_id, OLD.booking_id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'outside_payment_stays';
END $$;

CREATE TRIGGER outside_payment_stays BEFORE UPDATE OR DELETE ON outside_payments
    FOR EACH ROW EXECUTE FUNCTION earmark_keep_payment();

-- It has the mode of its booking.
CREATE FUNCTION earmark_refuse_mode() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM bookings b WHERE b.id = NEW.booking_id AND b.mode = NEW.mode) THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'earmark: payment % is not of the mode of booking %', NEW.payment_id, NEW.booking_id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'outside_payment_agrees_with_booking';
END $$;

CREATE TRIGGER outside_payment_agrees_with_booking BEFORE INSERT ON outside_payments
    FOR EACH ROW EXECUTE FUNCTION earmark_refuse_mode();

-- Journal -----------------------------------------------------------------------------------------------------------------------

-- The journal is append-only. A published entry gets its number, once. A key that stays keeps its answer; a key whose time is over
-- loses all that it recorded. An erasure changes only what may name a buyer: never what happened, when, in which order, to which
-- booking.
CREATE FUNCTION earmark_keep_journal() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    erasing boolean;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        EXECUTE pg_catalog.format('SELECT %I.earmark_is_erasing($1, NULL)', TG_TABLE_SCHEMA) INTO erasing USING TG_RELID;
        IF erasing AND to_jsonb(OLD) - '{actor,reason,facts,caller,key,answer_body}'::text[]
                       = to_jsonb(NEW) - '{actor,reason,facts,caller,key,answer_body}'::text[] THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION 'earmark: the journal is append-only'
        USING ERRCODE = 'check_violation', CONSTRAINT = 'journal_is_append_only';
END $$;

CREATE TRIGGER journal_is_append_only BEFORE DELETE ON journal
    FOR EACH ROW EXECUTE FUNCTION earmark_keep_journal();

CREATE TRIGGER journal_keeps_its_story BEFORE UPDATE ON journal
    FOR EACH ROW WHEN (
        (OLD.id, OLD.event_id, OLD.booking_id, OLD.version, OLD.verb, OLD.before, OLD.after, OLD.actor, OLD.reason, OLD.at, OLD.facts)
        IS DISTINCT FROM
        (NEW.id, NEW.event_id, NEW.booking_id, NEW.version, NEW.verb, NEW.before, NEW.after, NEW.actor, NEW.reason, NEW.at, NEW.facts)
        OR (OLD.sequence IS NOT NULL AND NEW.sequence IS DISTINCT FROM OLD.sequence)
        OR (NEW.key IS NOT NULL AND (OLD.caller, OLD.key, OLD.request_hash, OLD.answer_status, OLD.answer_body)
            IS DISTINCT FROM (NEW.caller, NEW.key, NEW.request_hash, NEW.answer_status, NEW.answer_body))
    ) EXECUTE FUNCTION earmark_keep_journal();

CREATE TRIGGER journal_forgets_whole BEFORE UPDATE OF caller, key, request_hash, answer_status, answer_body ON journal
    FOR EACH ROW WHEN (
        NEW.key IS NULL
        AND (OLD.caller, OLD.key, OLD.request_hash, OLD.answer_status, OLD.answer_body)
            IS DISTINCT FROM (NEW.caller, NEW.key, NEW.request_hash, NEW.answer_status, NEW.answer_body)
        AND num_nonnulls(NEW.caller, NEW.request_hash, NEW.answer_status, NEW.answer_body) > 0
    ) EXECUTE FUNCTION earmark_keep_journal();

-- Payments ----------------------------------------------------------------------------------------------------------------------
-- None of these guards stands on bookings or seats: a sale without a payment costs nothing more for them.

ALTER TABLE payments
    ADD CONSTRAINT payment_amounts_in_order
        CHECK (0 < amount AND 0 <= refunded AND refunded <= refunding AND refunding <= captured AND captured <= amount),
    -- What went back at the gateway's own page and what Earmark gave back are together no more than was captured.
    ADD CONSTRAINT payment_refunded_elsewhere_in_order
        CHECK (0 <= refunded_elsewhere AND refunded + refunded_elsewhere <= captured);

-- A payment begins before the gateway is called, and moves only along an edge of the table of moves. Only an operator settles a
-- payment that needs attention; a refund of it that is refused later makes it need attention again.
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
        ('needs_attention', 'failed'), ('needs_attention', 'settled'),
        ('settled', 'needs_attention')
    )) EXECUTE FUNCTION earmark_refuse_payment_move();

-- A payment belongs to an existing booking, of the same event, mode and currency.
CREATE FUNCTION earmark_refuse_strange_payment() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM bookings b
                    WHERE b.id = NEW.booking_id AND b.event_id = NEW.event_id AND b.mode = NEW.mode
                      AND b.currency = NEW.currency) THEN
        RAISE EXCEPTION 'earmark: payment % and booking % do not agree in event, mode and currency', NEW.id, NEW.booking_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'payment_of_its_booking';
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER payment_of_its_booking AFTER INSERT ON payments
    FOR EACH ROW EXECUTE FUNCTION earmark_refuse_strange_payment();

-- A payment stays the same request to the same gateway, and is never removed. An erasure may replace a name in it.
CREATE FUNCTION earmark_keep_gateway_payment() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    erasing boolean;
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'earmark: payment % stays', OLD.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'payment_stays';
    END IF;
    EXECUTE pg_catalog.format('SELECT %I.earmark_is_erasing($1, NULL)', TG_TABLE_SCHEMA) INTO erasing USING TG_RELID;
    IF erasing AND to_jsonb(OLD) - '{method,code,message,action,return_url}'::text[]
                   = to_jsonb(NEW) - '{method,code,message,action,return_url}'::text[] THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'earmark: payment % keeps its id, booking, gateway, amount and beginning', OLD.id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'payment_keeps_its_identity';
END $$;

CREATE TRIGGER payment_stays BEFORE DELETE ON payments
    FOR EACH ROW EXECUTE FUNCTION earmark_keep_gateway_payment();

CREATE TRIGGER payment_keeps_its_identity
    AFTER UPDATE OF id, booking_id, event_id, mode, gateway, method, amount, currency, automatic, created_at ON payments
    FOR EACH ROW WHEN (
        (OLD.id, OLD.booking_id, OLD.event_id, OLD.mode, OLD.gateway, OLD.method, OLD.amount, OLD.currency, OLD.automatic,
         OLD.created_at)
        IS DISTINCT FROM
        (NEW.id, NEW.booking_id, NEW.event_id, NEW.mode, NEW.gateway, NEW.method, NEW.amount, NEW.currency, NEW.automatic,
         NEW.created_at)
    ) EXECUTE FUNCTION earmark_keep_gateway_payment();

-- The captured amount is set once, and what is owed or given back never shrinks. One exception: a refund that was made can fail
-- weeks later, when the buyer's bank account is closed; then the payment needs attention in the same transaction.
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
        OR NEW.refunding < OLD.refunding
        OR (NEW.refunded < OLD.refunded AND NEW.state <> 'needs_attention')
    ) EXECUTE FUNCTION earmark_keep_amounts();

-- When an operator gives money back at the gateway's own page, the payment needs attention in the same write.
CREATE FUNCTION earmark_refuse_unnoticed_refund() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'earmark: money of payment % went back elsewhere, and the payment does not need attention', OLD.id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'refund_elsewhere_needs_attention';
END $$;

CREATE TRIGGER refund_elsewhere_needs_attention AFTER UPDATE OF refunded_elsewhere ON payments
    FOR EACH ROW WHEN (NEW.refunded_elsewhere > OLD.refunded_elsewhere AND NEW.state <> 'needs_attention')
    EXECUTE FUNCTION earmark_refuse_unnoticed_refund();

-- Refunds and callbacks ---------------------------------------------------------------------------------------------------------

ALTER TABLE refunds
    ADD CONSTRAINT refund_gives_something_back CHECK (amount > 0);

-- A refund begins before its gateway is called, and is decided once; one that was made can still be refused later. Checked after
-- the insert: an insert that becomes an update of an existing refund is allowed.
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
        ('pending', 'done'), ('pending', 'refused'), ('done', 'refused')
    )) EXECUTE FUNCTION earmark_refuse_refund_move();

-- A refund that was made and then failed makes its payment need attention. The payment is written first, so this reads its new
-- state.
CREATE FUNCTION earmark_refuse_unnoticed_failure() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM payments WHERE id = NEW.payment_id AND state = 'needs_attention') THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'earmark: refund % was made and failed, and its payment does not need attention', OLD.id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'failed_refund_needs_attention';
END $$;

CREATE TRIGGER failed_refund_needs_attention AFTER UPDATE OF state ON refunds
    FOR EACH ROW WHEN (OLD.state = 'done' AND NEW.state = 'refused') EXECUTE FUNCTION earmark_refuse_unnoticed_failure();

-- A refund belongs to a payment of its booking, and all refunds together are no more than that payment owes. The payment is locked
-- first: of two transactions that add refunds at once, each must count the other's.
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

-- The id of a callback is kept forever.
CREATE FUNCTION earmark_keep_callback() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'earmark: callback % of % stays as it is', OLD.id, OLD.gateway
        USING ERRCODE = 'check_violation', CONSTRAINT = 'callback_stays';
END $$;

CREATE TRIGGER callback_stays BEFORE UPDATE OR DELETE ON callbacks
    FOR EACH ROW EXECUTE FUNCTION earmark_keep_callback();

-- TRUNCATE ----------------------------------------------------------------------------------------------------------------------

-- TRUNCATE runs no trigger of rows.
CREATE FUNCTION earmark_refuse_truncate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'earmark: % is not truncated', TG_TABLE_NAME
        USING ERRCODE = 'check_violation', CONSTRAINT = 'nothing_is_truncated';
END $$;

CREATE TRIGGER nothing_is_truncated BEFORE TRUNCATE ON bookings
    FOR EACH STATEMENT EXECUTE FUNCTION earmark_refuse_truncate();
CREATE TRIGGER nothing_is_truncated BEFORE TRUNCATE ON seats
    FOR EACH STATEMENT EXECUTE FUNCTION earmark_refuse_truncate();
CREATE TRIGGER nothing_is_truncated BEFORE TRUNCATE ON pools
    FOR EACH STATEMENT EXECUTE FUNCTION earmark_refuse_truncate();
CREATE TRIGGER nothing_is_truncated BEFORE TRUNCATE ON buyer_totals
    FOR EACH STATEMENT EXECUTE FUNCTION earmark_refuse_truncate();
CREATE TRIGGER nothing_is_truncated BEFORE TRUNCATE ON outside_payments
    FOR EACH STATEMENT EXECUTE FUNCTION earmark_refuse_truncate();
CREATE TRIGGER nothing_is_truncated BEFORE TRUNCATE ON journal
    FOR EACH STATEMENT EXECUTE FUNCTION earmark_refuse_truncate();
CREATE TRIGGER nothing_is_truncated BEFORE TRUNCATE ON payments
    FOR EACH STATEMENT EXECUTE FUNCTION earmark_refuse_truncate();
CREATE TRIGGER nothing_is_truncated BEFORE TRUNCATE ON refunds
    FOR EACH STATEMENT EXECUTE FUNCTION earmark_refuse_truncate();
CREATE TRIGGER nothing_is_truncated BEFORE TRUNCATE ON callbacks
    FOR EACH STATEMENT EXECUTE FUNCTION earmark_refuse_truncate();

-- The exception for erasures ----------------------------------------------------------------------------------------------------

-- Whether a guard makes its exception: an erasure is open in this very transaction, by this pseudonym if one is given, and the
-- session's role owns the guarded table. Ownership is required by itself: a role that was granted too much still cannot use the
-- exception. Guards call this only where a statement breaks their rule, so a booking pays nothing for it, and by the schema of
-- their own table, which a session's path cannot change. The path is fixed and the table is named with its schema: a temporary
-- table of the same name is not read.
CREATE FUNCTION earmark_is_erasing(guarded oid, the_alias text) RETURNS boolean LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kept_in name;
    owned   boolean;
    erasing boolean;
BEGIN
    SELECT n.nspname, pg_catalog.pg_has_role(current_user, c.relowner, 'MEMBER') INTO kept_in, owned
      FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = guarded;
    IF owned IS NOT TRUE THEN
        RETURN false;
    END IF;
    EXECUTE format('SELECT EXISTS (SELECT FROM %I.erasures e
                                    WHERE e.transaction = pg_current_xact_id_if_assigned()
                                      AND ($1 IS NULL OR e.pseudonym = $1))', kept_in)
       INTO erasing USING the_alias;
    RETURN erasing;
END $$;
