-- expand
-- The law, in the schema: what no program and no hand-written SQL may do, whatever it believes.
-- A refusal undoes its statement, so most guards look after the fact: a trigger before an update would lock every row
-- once more, even where it has nothing to say.
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

CREATE TRIGGER booking_moves_along_an_edge AFTER UPDATE OF state ON bookings
    FOR EACH ROW WHEN (OLD.state <> NEW.state AND (OLD.state, NEW.state) NOT IN (
        ('held', 'paying'), ('held', 'confirmed'), ('held', 'released'), ('held', 'expired'),
        ('paying', 'confirmed'), ('paying', 'held'), ('paying', 'expired'), ('paying', 'failed'),
        ('confirmed', 'cancelled'),
        ('expired', 'confirmed')
    )) EXECUTE FUNCTION earmark_refuse_move();

-- A booking stays the same claim of the same buyer, and one that lives is not removed.
CREATE FUNCTION earmark_keep_booking() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'earmark: booking % is % and stays', OLD.id, OLD.state
            USING ERRCODE = 'check_violation', CONSTRAINT = 'live_booking_stays';
    END IF;
    RAISE EXCEPTION 'earmark: booking % keeps its id, event, buyer, currency and beginning', OLD.id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'booking_keeps_its_identity';
END $$;

CREATE TRIGGER booking_keeps_its_identity AFTER UPDATE OF id, event_id, buyer, live, currency, created_at ON bookings
    FOR EACH ROW WHEN (
        (OLD.id, OLD.event_id, OLD.buyer, OLD.live, OLD.currency, OLD.created_at)
        IS DISTINCT FROM
        (NEW.id, NEW.event_id, NEW.buyer, NEW.live, NEW.currency, NEW.created_at)
    ) EXECUTE FUNCTION earmark_keep_booking();

CREATE TRIGGER live_booking_stays BEFORE DELETE ON bookings
    FOR EACH ROW WHEN (OLD.state IN ('held', 'paying', 'confirmed')) EXECUTE FUNCTION earmark_keep_booking();

-- What a booking claims was settled by its hold. A sale may be undone in part: then lines go, and none comes or changes.
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

-- A booking that lists a seat has not got it yet: only when the seat points back may it be paid for or sold.
-- Once for all rows of a statement, which is far cheaper than once for each. Without sequential scans, because the plan is
-- kept, and may have been made when the table was small.
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

CREATE TRIGGER booking_reclaims_every_seat AFTER UPDATE OF state ON bookings
    FOR EACH ROW WHEN (OLD.state = 'expired' AND NEW.state = 'confirmed') EXECUTE FUNCTION earmark_reclaim_seats();

-- A seat begins as nobody's, and then points only to a booking of its event that lists it.
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

-- A seat leaves its booking, or goes off sale, only when that booking has ended or no longer lists it.
CREATE FUNCTION earmark_keep_owners() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off AS $$
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
        RAISE EXCEPTION 'earmark: seat % of % belongs to the live booking %', kept.id, kept.event_id, kept.booking_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'seat_keeps_its_live_owner';
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER seat_keeps_its_live_owner AFTER UPDATE ON seats
    REFERENCING OLD TABLE AS seats_before
    FOR EACH STATEMENT EXECUTE FUNCTION earmark_keep_owners();
CREATE TRIGGER seat_with_a_live_owner_stays AFTER DELETE ON seats
    REFERENCING OLD TABLE AS seats_before
    FOR EACH STATEMENT EXECUTE FUNCTION earmark_keep_owners();

-- A blocked seat is nobody's.
CREATE FUNCTION earmark_refuse_blocked() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'earmark: seat % of % is blocked', NEW.id, NEW.event_id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'blocked_seat_is_not_taken';
END $$;

CREATE TRIGGER blocked_seat_is_not_taken AFTER UPDATE OF booking_id ON seats
    FOR EACH ROW WHEN (NEW.blocked AND NEW.booking_id IS NOT NULL AND NEW.booking_id IS DISTINCT FROM OLD.booking_id)
    EXECUTE FUNCTION earmark_refuse_blocked();

-- A buyer's total belongs to an event, and grows only up to its limit. Once for all rows of a statement.
CREATE FUNCTION earmark_keep_limit() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    beyond record;
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

-- What confirmed a booking is not taken back, nor given to another.
CREATE FUNCTION earmark_keep_payment() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'earmark: payment % is the one of booking % for good', OLD.payment_id, OLD.booking_id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'outside_payment_stays';
END $$;

CREATE TRIGGER outside_payment_stays BEFORE UPDATE OR DELETE ON outside_payments
    FOR EACH ROW EXECUTE FUNCTION earmark_keep_payment();

-- What is held, sold or counted for somebody is neither renamed nor removed.
CREATE FUNCTION earmark_keep_pool() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'earmark: pool % of % counts what somebody has, and stays', OLD.id, OLD.event_id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'pool_in_use_stays';
END $$;

CREATE TRIGGER pool_in_use_keeps_its_name BEFORE UPDATE OF event_id, id ON pools
    FOR EACH ROW WHEN ((OLD.event_id, OLD.id) IS DISTINCT FROM (NEW.event_id, NEW.id) AND OLD.held + OLD.sold > 0)
    EXECUTE FUNCTION earmark_keep_pool();
CREATE TRIGGER pool_in_use_stays BEFORE DELETE ON pools
    FOR EACH ROW WHEN (OLD.held + OLD.sold > 0) EXECUTE FUNCTION earmark_keep_pool();

CREATE FUNCTION earmark_keep_total() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'earmark: the total of % at % counts what they have, and stays', OLD.buyer, OLD.event_id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'total_in_use_stays';
END $$;

CREATE TRIGGER total_in_use_keeps_its_name BEFORE UPDATE OF event_id, buyer ON buyer_totals
    FOR EACH ROW WHEN ((OLD.event_id, OLD.buyer) IS DISTINCT FROM (NEW.event_id, NEW.buyer) AND OLD.units > 0)
    EXECUTE FUNCTION earmark_keep_total();
CREATE TRIGGER total_in_use_stays BEFORE DELETE ON buyer_totals
    FOR EACH ROW WHEN (OLD.units > 0) EXECUTE FUNCTION earmark_keep_total();

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

-- TRUNCATE asks no guard of rows.
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
