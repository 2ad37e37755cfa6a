-- The law, in the schema: what no program and no hand-written SQL may do, whatever it believes.
-- These guards know no clock. They stand in a file of their own so that a laboratory can build a database without them.

ALTER TABLE pools
    ADD CONSTRAINT pool_never_negative CHECK (capacity >= 0 AND held >= 0 AND sold >= 0),
    ADD CONSTRAINT pool_never_oversold CHECK (held + sold <= capacity);

ALTER TABLE buyer_totals
    ADD CONSTRAINT total_never_negative CHECK (units >= 0);

ALTER TABLE bookings
    ADD CONSTRAINT booking_state_known
        CHECK (state IN ('held', 'paying', 'confirmed', 'released', 'expired', 'failed', 'cancelled')),
    ADD CONSTRAINT booking_total_not_negative CHECK (total >= 0);

-- A booking moves only along an edge of the table of moves.
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

CREATE TRIGGER booking_moves_along_an_edge BEFORE UPDATE OF state ON bookings
    FOR EACH ROW WHEN (OLD.state <> NEW.state AND (OLD.state, NEW.state) NOT IN (
        ('held', 'paying'), ('held', 'confirmed'), ('held', 'released'), ('held', 'expired'),
        ('paying', 'confirmed'), ('paying', 'held'), ('paying', 'expired'), ('paying', 'failed'),
        ('confirmed', 'cancelled'),
        ('expired', 'confirmed')
    )) EXECUTE FUNCTION earmark_refuse_move();

-- Ended is not final: late money may bring an expired booking back, but only with every one of its seats.
-- Locking them and raising their fence makes a hold that saw them free look again.
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

CREATE TRIGGER booking_reclaims_every_seat BEFORE UPDATE OF state ON bookings
    FOR EACH ROW WHEN (OLD.state = 'expired' AND NEW.state = 'confirmed') EXECUTE FUNCTION earmark_reclaim_seats();

-- A seat leaves its booking only when that booking has ended or no longer lists it.
CREATE FUNCTION earmark_keep_owner() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM bookings b
         WHERE b.id = OLD.booking_id AND b.state IN ('held', 'paying', 'confirmed')
           AND b.lines -> 'seats' @> jsonb_build_array(jsonb_build_object('id', OLD.id))
    ) THEN
        RAISE EXCEPTION 'earmark: seat % of % belongs to the live booking %', OLD.id, OLD.event_id, OLD.booking_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'seat_keeps_its_live_owner';
    END IF;
    RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END $$;

CREATE TRIGGER seat_keeps_its_live_owner BEFORE UPDATE ON seats
    FOR EACH ROW WHEN (OLD.booking_id IS NOT NULL
        AND (NEW.booking_id IS DISTINCT FROM OLD.booking_id
             OR NEW.event_id <> OLD.event_id OR NEW.id <> OLD.id
             OR (NEW.blocked AND NOT OLD.blocked)))
    EXECUTE FUNCTION earmark_keep_owner();

CREATE TRIGGER seat_with_a_live_owner_stays BEFORE DELETE ON seats
    FOR EACH ROW WHEN (OLD.booking_id IS NOT NULL) EXECUTE FUNCTION earmark_keep_owner();

-- A blocked seat is nobody's.
CREATE FUNCTION earmark_refuse_blocked() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'earmark: seat % of % is blocked', NEW.id, NEW.event_id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'blocked_seat_is_not_taken';
END $$;

CREATE TRIGGER blocked_seat_is_not_taken BEFORE UPDATE OF booking_id ON seats
    FOR EACH ROW WHEN (NEW.blocked AND NEW.booking_id IS NOT NULL AND NEW.booking_id IS DISTINCT FROM OLD.booking_id)
    EXECUTE FUNCTION earmark_refuse_blocked();

-- A buyer's total grows only up to the event's limit.
CREATE FUNCTION earmark_keep_limit() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    limit_of_event integer;
BEGIN
    SELECT per_buyer_max INTO limit_of_event FROM events WHERE id = NEW.event_id;
    IF NEW.units > limit_of_event AND (TG_OP = 'INSERT' OR NEW.units > OLD.units) THEN
        RAISE EXCEPTION 'earmark: buyer % may have % of %, not %', NEW.buyer, limit_of_event, NEW.event_id, NEW.units
            USING ERRCODE = 'check_violation', CONSTRAINT = 'buyer_stays_within_limit';
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER buyer_stays_within_limit BEFORE INSERT OR UPDATE OF units ON buyer_totals
    FOR EACH ROW WHEN (NEW.units > 0) EXECUTE FUNCTION earmark_keep_limit();

-- The journal is only ever added to; a published entry gets its number, and the time of a key may be over.
CREATE FUNCTION earmark_keep_journal() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
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
