-- The law, in the schema: what no program and no hand-written SQL may do, whatever it believes.
-- These guards know no clock. They stand in a file of their own so that a laboratory can build a database without them.
--
-- A table that exists cannot be given a CHECK, so each rule is a trigger, and its message ends with the rule's name.
-- INSERT OR REPLACE removes a row without asking the triggers on DELETE, and a shell keeps no foreign keys unless told
-- to: both ways round a rule are closed here too.

CREATE TRIGGER pool_never_negative BEFORE UPDATE ON pools
WHEN NEW.capacity < 0 OR NEW.held < 0 OR NEW.sold < 0
BEGIN
    SELECT RAISE(ABORT, 'earmark: a pool counts nothing below zero (pool_never_negative)');
END;

CREATE TRIGGER new_pool_never_negative BEFORE INSERT ON pools
WHEN NEW.capacity < 0 OR NEW.held < 0 OR NEW.sold < 0
BEGIN
    SELECT RAISE(ABORT, 'earmark: a pool counts nothing below zero (pool_never_negative)');
END;

CREATE TRIGGER pool_never_oversold BEFORE UPDATE ON pools
WHEN NEW.held + NEW.sold > NEW.capacity
BEGIN
    SELECT RAISE(ABORT, 'earmark: a pool never sells more than it has (pool_never_oversold)');
END;

CREATE TRIGGER new_pool_never_oversold BEFORE INSERT ON pools
WHEN NEW.held + NEW.sold > NEW.capacity
BEGIN
    SELECT RAISE(ABORT, 'earmark: a pool never sells more than it has (pool_never_oversold)');
END;

CREATE TRIGGER total_never_negative BEFORE UPDATE ON buyer_totals
WHEN NEW.units < 0
BEGIN
    SELECT RAISE(ABORT, 'earmark: a buyer has nothing below zero (total_never_negative)');
END;

CREATE TRIGGER new_total_never_negative BEFORE INSERT ON buyer_totals
WHEN NEW.units < 0
BEGIN
    SELECT RAISE(ABORT, 'earmark: a buyer has nothing below zero (total_never_negative)');
END;

CREATE TRIGGER booking_total_not_negative BEFORE UPDATE OF total ON bookings
WHEN NEW.total < 0
BEGIN
    SELECT RAISE(ABORT, 'earmark: a booking costs nothing below zero (booking_total_not_negative)');
END;

CREATE TRIGGER new_booking_total_not_negative BEFORE INSERT ON bookings
WHEN NEW.total < 0
BEGIN
    SELECT RAISE(ABORT, 'earmark: a booking costs nothing below zero (booking_total_not_negative)');
END;

-- A booking moves only along an edge of the table of moves.
CREATE TRIGGER booking_begins_held BEFORE INSERT ON bookings
WHEN NEW.state <> 'held'
BEGIN
    SELECT RAISE(ABORT, 'earmark: a booking begins as held (booking_begins_held)');
END;

CREATE TRIGGER booking_moves_along_an_edge BEFORE UPDATE OF state ON bookings
WHEN OLD.state <> NEW.state AND (OLD.state, NEW.state) NOT IN (VALUES
    ('held', 'paying'), ('held', 'confirmed'), ('held', 'released'), ('held', 'expired'),
    ('paying', 'confirmed'), ('paying', 'held'), ('paying', 'expired'), ('paying', 'failed'),
    ('confirmed', 'cancelled'),
    ('expired', 'confirmed')
)
BEGIN
    SELECT RAISE(ABORT, 'earmark: a booking cannot move this way (booking_moves_along_an_edge)');
END;

-- Ended is not final: late money may bring an expired booking back, but only with every one of its seats.
-- Raising their fence makes a hold that saw them free look again.
CREATE TRIGGER booking_reclaims_every_seat BEFORE UPDATE OF state ON bookings
WHEN OLD.state = 'expired' AND NEW.state = 'confirmed'
BEGIN
    SELECT RAISE(ABORT, 'earmark: a booking is confirmed again only with all its seats (booking_reclaims_every_seat)')
     WHERE EXISTS (
        SELECT 1 FROM json_each(NEW.lines, '$.seats') AS line
         WHERE NOT EXISTS (
            SELECT 1 FROM seats s
             WHERE s.event_id = NEW.event_id AND s.id = json_extract(line.value, '$.id')
               AND s.booking_id = NEW.id AND NOT s.blocked));
    UPDATE seats SET fence = fence + 1
     WHERE event_id = NEW.event_id AND booking_id = NEW.id
       AND id IN (SELECT json_extract(line.value, '$.id') FROM json_each(NEW.lines, '$.seats') AS line);
END;

-- A booking is not put in the place of another, and one that seats point to stays where they find it.
CREATE TRIGGER booking_is_not_replaced BEFORE INSERT ON bookings
WHEN EXISTS (SELECT 1 FROM bookings b WHERE b.id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'earmark: there is a booking with this id (booking_is_not_replaced)');
END;

CREATE TRIGGER booking_keeps_its_id BEFORE UPDATE OF id ON bookings
WHEN NEW.id <> OLD.id
BEGIN
    SELECT RAISE(ABORT, 'earmark: a booking has one id for good (booking_keeps_its_id)');
END;

CREATE TRIGGER booking_with_seats_stays BEFORE DELETE ON bookings
WHEN EXISTS (
    SELECT 1 FROM json_each(OLD.lines, '$.seats') AS line
      JOIN seats s ON s.event_id = OLD.event_id AND s.id = json_extract(line.value, '$.id') AND s.booking_id = OLD.id)
BEGIN
    SELECT RAISE(ABORT, 'earmark: seats point to this booking (booking_with_seats_stays)');
END;

-- A seat leaves its booking only when that booking has ended or no longer lists it.
CREATE TRIGGER seat_keeps_its_live_owner BEFORE UPDATE ON seats
WHEN OLD.booking_id IS NOT NULL
     AND (NEW.booking_id IS NOT OLD.booking_id
          OR NEW.event_id <> OLD.event_id OR NEW.id <> OLD.id
          OR (NEW.blocked AND NOT OLD.blocked))
     AND EXISTS (
        SELECT 1 FROM bookings b, json_each(b.lines, '$.seats') AS line
         WHERE b.id = OLD.booking_id AND b.state IN ('held', 'paying', 'confirmed')
           AND json_extract(line.value, '$.id') = OLD.id)
BEGIN
    SELECT RAISE(ABORT, 'earmark: the seat belongs to a live booking (seat_keeps_its_live_owner)');
END;

CREATE TRIGGER seat_with_a_live_owner_stays BEFORE DELETE ON seats
WHEN OLD.booking_id IS NOT NULL AND EXISTS (
    SELECT 1 FROM bookings b, json_each(b.lines, '$.seats') AS line
     WHERE b.id = OLD.booking_id AND b.state IN ('held', 'paying', 'confirmed')
       AND json_extract(line.value, '$.id') = OLD.id)
BEGIN
    SELECT RAISE(ABORT, 'earmark: the seat belongs to a live booking (seat_keeps_its_live_owner)');
END;

-- Nor is a seat put in the place of another.
CREATE TRIGGER seat_is_not_replaced BEFORE INSERT ON seats
WHEN EXISTS (SELECT 1 FROM seats s WHERE s.event_id = NEW.event_id AND s.id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'earmark: there is a seat with this name (seat_is_not_replaced)');
END;

CREATE TRIGGER seat_does_not_replace_another BEFORE UPDATE OF event_id, id ON seats
WHEN (NEW.event_id <> OLD.event_id OR NEW.id <> OLD.id)
     AND EXISTS (SELECT 1 FROM seats s WHERE s.event_id = NEW.event_id AND s.id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'earmark: there is a seat with this name (seat_is_not_replaced)');
END;

-- A blocked seat is nobody's.
CREATE TRIGGER blocked_seat_is_not_taken BEFORE UPDATE OF booking_id ON seats
WHEN NEW.blocked AND NEW.booking_id IS NOT NULL AND NEW.booking_id IS NOT OLD.booking_id
BEGIN
    SELECT RAISE(ABORT, 'earmark: the seat is blocked (blocked_seat_is_not_taken)');
END;

-- A buyer's total grows only up to the event's limit.
CREATE TRIGGER buyer_stays_within_limit BEFORE UPDATE OF units ON buyer_totals
WHEN NEW.units > OLD.units
BEGIN
    SELECT RAISE(ABORT, 'earmark: the buyer would have more than one buyer may (buyer_stays_within_limit)')
      FROM events e WHERE e.id = NEW.event_id AND NEW.units > e.per_buyer_max;
END;

CREATE TRIGGER new_buyer_stays_within_limit BEFORE INSERT ON buyer_totals
WHEN NEW.units > 0
BEGIN
    SELECT RAISE(ABORT, 'earmark: the buyer would have more than one buyer may (buyer_stays_within_limit)')
      FROM events e WHERE e.id = NEW.event_id AND NEW.units > e.per_buyer_max;
END;

-- The journal is only ever added to; a published entry gets its number, and the time of a key may be over.
CREATE TRIGGER journal_is_append_only BEFORE DELETE ON journal
BEGIN
    SELECT RAISE(ABORT, 'earmark: the journal is append-only (journal_is_append_only)');
END;

CREATE TRIGGER journal_is_not_replaced BEFORE INSERT ON journal
WHEN EXISTS (SELECT 1 FROM journal j WHERE j.id = NEW.id)
     OR EXISTS (SELECT 1 FROM journal j WHERE j.booking_id = NEW.booking_id AND j.version = NEW.version)
     OR EXISTS (SELECT 1 FROM journal j WHERE j.caller = NEW.caller AND j.key = NEW.key)
BEGIN
    SELECT RAISE(ABORT, 'earmark: the journal has this entry, version or key (journal_is_append_only)');
END;

CREATE TRIGGER journal_keeps_its_story BEFORE UPDATE ON journal
WHEN (OLD.id, OLD.event_id, OLD.booking_id, OLD.version, OLD.verb, OLD.before, OLD.after, OLD.actor, OLD.reason, OLD.at, OLD.facts)
     IS NOT
     (NEW.id, NEW.event_id, NEW.booking_id, NEW.version, NEW.verb, NEW.before, NEW.after, NEW.actor, NEW.reason, NEW.at, NEW.facts)
     OR (OLD.sequence IS NOT NULL AND NEW.sequence IS NOT OLD.sequence)
     OR (NEW.key IS NOT NULL AND (OLD.caller, OLD.key, OLD.request_hash, OLD.answer_status, OLD.answer_body)
         IS NOT (NEW.caller, NEW.key, NEW.request_hash, NEW.answer_status, NEW.answer_body))
BEGIN
    SELECT RAISE(ABORT, 'earmark: the journal is append-only (journal_is_append_only)');
END;
