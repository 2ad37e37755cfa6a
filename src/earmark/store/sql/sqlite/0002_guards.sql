-- expand
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

-- A column takes what it is given: text or a fraction would pass every comparison with a number.
CREATE TRIGGER pool_counts_are_integers BEFORE UPDATE ON pools
WHEN typeof(NEW.capacity) <> 'integer' OR typeof(NEW.held) <> 'integer' OR typeof(NEW.sold) <> 'integer'
     OR typeof(NEW.price) <> 'integer'
BEGIN
    SELECT RAISE(ABORT, 'earmark: a count is a whole number (counts_are_integers)');
END;

CREATE TRIGGER new_pool_counts_are_integers BEFORE INSERT ON pools
WHEN typeof(NEW.capacity) <> 'integer' OR typeof(NEW.held) <> 'integer' OR typeof(NEW.sold) <> 'integer'
     OR typeof(NEW.price) <> 'integer'
BEGIN
    SELECT RAISE(ABORT, 'earmark: a count is a whole number (counts_are_integers)');
END;

CREATE TRIGGER total_counts_are_integers BEFORE UPDATE ON buyer_totals
WHEN typeof(NEW.units) <> 'integer'
BEGIN
    SELECT RAISE(ABORT, 'earmark: a count is a whole number (counts_are_integers)');
END;

CREATE TRIGGER new_total_counts_are_integers BEFORE INSERT ON buyer_totals
WHEN typeof(NEW.units) <> 'integer'
BEGIN
    SELECT RAISE(ABORT, 'earmark: a count is a whole number (counts_are_integers)');
END;

CREATE TRIGGER booking_counts_are_integers BEFORE UPDATE OF total, version ON bookings
WHEN typeof(NEW.total) <> 'integer' OR typeof(NEW.version) <> 'integer'
BEGIN
    SELECT RAISE(ABORT, 'earmark: a count is a whole number (counts_are_integers)');
END;

CREATE TRIGGER new_booking_counts_are_integers BEFORE INSERT ON bookings
WHEN typeof(NEW.total) <> 'integer' OR typeof(NEW.version) <> 'integer'
BEGIN
    SELECT RAISE(ABORT, 'earmark: a count is a whole number (counts_are_integers)');
END;

CREATE TRIGGER seat_counts_are_integers BEFORE UPDATE OF price, fence, blocked ON seats
WHEN typeof(NEW.price) <> 'integer' OR typeof(NEW.fence) <> 'integer' OR typeof(NEW.blocked) <> 'integer'
BEGIN
    SELECT RAISE(ABORT, 'earmark: a count is a whole number (counts_are_integers)');
END;

CREATE TRIGGER new_seat_counts_are_integers BEFORE INSERT ON seats
WHEN typeof(NEW.price) <> 'integer' OR typeof(NEW.fence) <> 'integer' OR typeof(NEW.blocked) <> 'integer'
BEGIN
    SELECT RAISE(ABORT, 'earmark: a count is a whole number (counts_are_integers)');
END;

CREATE TRIGGER event_counts_are_integers BEFORE UPDATE OF version, per_buyer_max ON events
WHEN typeof(NEW.version) <> 'integer' OR typeof(NEW.per_buyer_max) NOT IN ('integer', 'null')
BEGIN
    SELECT RAISE(ABORT, 'earmark: a count is a whole number (counts_are_integers)');
END;

CREATE TRIGGER new_event_counts_are_integers BEFORE INSERT ON events
WHEN typeof(NEW.version) <> 'integer' OR typeof(NEW.per_buyer_max) NOT IN ('integer', 'null')
BEGIN
    SELECT RAISE(ABORT, 'earmark: a count is a whole number (counts_are_integers)');
END;

CREATE TRIGGER entry_counts_are_integers BEFORE INSERT ON journal
WHEN typeof(NEW.version) <> 'integer'
BEGIN
    SELECT RAISE(ABORT, 'earmark: a count is a whole number (counts_are_integers)');
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

-- What a booking claims was settled by its hold. A sale may be undone in part: then lines go, and none comes or changes.
CREATE TRIGGER booking_lines_only_shrink BEFORE UPDATE OF lines ON bookings
WHEN NEW.lines IS NOT OLD.lines
BEGIN
    SELECT RAISE(ABORT, 'earmark: lines only shrink, and only while a booking is confirmed (booking_lines_only_shrink)')
     WHERE EXISTS (
        SELECT 1
          FROM (SELECT json_extract(line.value, '$.id') AS id, json_extract(line.value, '$.price') AS price, count(*) AS seats
                  FROM json_each(NEW.lines, '$.seats') AS line GROUP BY 1, 2) AS kept
         WHERE kept.seats > (
                SELECT count(*) FROM json_each(OLD.lines, '$.seats') AS line
                 WHERE json_extract(line.value, '$.id') IS kept.id AND json_extract(line.value, '$.price') IS kept.price)
     ) OR EXISTS (
        SELECT 1
          FROM (SELECT json_extract(line.value, '$.id') AS id, json_extract(line.value, '$.price') AS price,
                       sum(json_extract(line.value, '$.units')) AS units, min(json_extract(line.value, '$.units')) AS units_min,
                       max(json_type(line.value, '$.units') IS NOT 'integer') AS odd
                  FROM json_each(NEW.lines, '$.pools') AS line GROUP BY 1, 2) AS kept
         WHERE kept.odd OR (kept.units_min > 0 AND kept.units <= (
                SELECT sum(json_extract(line.value, '$.units')) FROM json_each(OLD.lines, '$.pools') AS line
                 WHERE json_extract(line.value, '$.id') IS kept.id AND json_extract(line.value, '$.price') IS kept.price))
               IS NOT 1
     ) OR (
        (OLD.state <> 'confirmed' OR NEW.state <> 'confirmed')
        AND coalesce(json_array_length(NEW.lines, '$.seats'), 0) + coalesce((
                SELECT sum(json_extract(line.value, '$.units')) FROM json_each(NEW.lines, '$.pools') AS line), 0)
            IS NOT
            coalesce(json_array_length(OLD.lines, '$.seats'), 0) + coalesce((
                SELECT sum(json_extract(line.value, '$.units')) FROM json_each(OLD.lines, '$.pools') AS line), 0)
     );
END;

-- A booking that lists a seat has not got it yet: only when the seat points back may it be paid for or sold.
CREATE TRIGGER booking_owns_every_seat BEFORE UPDATE OF state ON bookings
WHEN OLD.state = 'held' AND NEW.state IN ('paying', 'confirmed') AND EXISTS (
    SELECT 1 FROM json_each(NEW.lines, '$.seats') AS line
     WHERE NOT EXISTS (
        SELECT 1 FROM seats s
         WHERE s.event_id = NEW.event_id AND s.id = json_extract(line.value, '$.id') AND s.booking_id = NEW.id))
BEGIN
    SELECT RAISE(ABORT, 'earmark: the booking lists a seat that does not point to it (booking_owns_every_seat)');
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

-- A booking is not put in the place of another, stays the same claim of the same buyer, and is not removed while it lives
-- or while seats point to it.
CREATE TRIGGER booking_is_not_replaced BEFORE INSERT ON bookings
WHEN EXISTS (SELECT 1 FROM bookings b WHERE b.id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'earmark: there is a booking with this id (booking_is_not_replaced)');
END;

CREATE TRIGGER booking_keeps_its_identity BEFORE UPDATE OF id, event_id, buyer, live, currency, created_at ON bookings
WHEN (OLD.id, OLD.event_id, OLD.buyer, OLD.live, OLD.currency, OLD.created_at)
     IS NOT
     (NEW.id, NEW.event_id, NEW.buyer, NEW.live, NEW.currency, NEW.created_at)
BEGIN
    SELECT RAISE(ABORT, 'earmark: a booking keeps its id, event, buyer, currency and beginning (booking_keeps_its_identity)');
END;

CREATE TRIGGER live_booking_stays BEFORE DELETE ON bookings
WHEN OLD.state IN ('held', 'paying', 'confirmed')
BEGIN
    SELECT RAISE(ABORT, 'earmark: a live booking stays (live_booking_stays)');
END;

CREATE TRIGGER booking_with_seats_stays BEFORE DELETE ON bookings
WHEN EXISTS (
    SELECT 1 FROM json_each(OLD.lines, '$.seats') AS line
      JOIN seats s ON s.event_id = OLD.event_id AND s.id = json_extract(line.value, '$.id') AND s.booking_id = OLD.id)
BEGIN
    SELECT RAISE(ABORT, 'earmark: seats point to this booking (booking_with_seats_stays)');
END;

-- A seat begins as nobody's, and then points only to a booking of its event that lists it.
CREATE TRIGGER seat_begins_free BEFORE INSERT ON seats
WHEN NEW.booking_id IS NOT NULL
BEGIN
    SELECT RAISE(ABORT, 'earmark: a seat begins without a booking (seat_begins_free)');
END;

CREATE TRIGGER seat_points_to_its_booking AFTER UPDATE OF event_id, id, booking_id ON seats
WHEN NEW.booking_id IS NOT NULL
     AND (NEW.booking_id IS NOT OLD.booking_id OR NEW.event_id <> OLD.event_id OR NEW.id <> OLD.id)
     AND NOT EXISTS (
        SELECT 1 FROM bookings b, json_each(b.lines, '$.seats') AS line
         WHERE b.id = NEW.booking_id AND b.event_id = NEW.event_id AND json_extract(line.value, '$.id') = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'earmark: the booking does not list this seat (seat_points_to_its_booking)');
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

-- Nor is a pool, or what a buyer has.
CREATE TRIGGER pool_is_not_replaced BEFORE INSERT ON pools
WHEN EXISTS (SELECT 1 FROM pools o WHERE o.event_id = NEW.event_id AND o.id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'earmark: there is a pool of this name (pool_is_not_replaced)');
END;

CREATE TRIGGER pool_does_not_replace_another BEFORE UPDATE OF event_id, id ON pools
WHEN (NEW.event_id <> OLD.event_id OR NEW.id <> OLD.id)
     AND EXISTS (SELECT 1 FROM pools o WHERE o.event_id = NEW.event_id AND o.id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'earmark: there is a pool of this name (pool_is_not_replaced)');
END;

CREATE TRIGGER total_is_not_replaced BEFORE INSERT ON buyer_totals
WHEN EXISTS (SELECT 1 FROM buyer_totals o WHERE o.event_id = NEW.event_id AND o.buyer = NEW.buyer)
BEGIN
    SELECT RAISE(ABORT, 'earmark: there is a total of this name (total_is_not_replaced)');
END;

CREATE TRIGGER total_does_not_replace_another BEFORE UPDATE OF event_id, buyer ON buyer_totals
WHEN (NEW.event_id <> OLD.event_id OR NEW.buyer <> OLD.buyer)
     AND EXISTS (SELECT 1 FROM buyer_totals o WHERE o.event_id = NEW.event_id AND o.buyer = NEW.buyer)
BEGIN
    SELECT RAISE(ABORT, 'earmark: there is a total of this name (total_is_not_replaced)');
END;

-- Nor is an event in which something is sold. Judged afterwards: an insert that gives way to the one that is there is right.
CREATE TRIGGER event_is_not_replaced AFTER INSERT ON events
WHEN EXISTS (SELECT 1 FROM seats s WHERE s.event_id = NEW.id)
     OR EXISTS (SELECT 1 FROM pools p WHERE p.event_id = NEW.id)
     OR EXISTS (SELECT 1 FROM bookings b WHERE b.event_id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'earmark: there is an event of this name (event_is_not_replaced)');
END;

CREATE TRIGGER event_does_not_replace_another BEFORE UPDATE OF id ON events
WHEN NEW.id <> OLD.id
     AND EXISTS (SELECT 1 FROM events o WHERE o.id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'earmark: there is a event of this name (event_is_not_replaced)');
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

-- What confirmed a booking is not taken back, nor given to another. Who comes second gives way in silence, and finds that
-- nothing was inserted: nobody can tell here whether a statement would have replaced the first or yielded to it.
CREATE TRIGGER outside_payment_stays BEFORE UPDATE ON outside_payments
BEGIN
    SELECT RAISE(ABORT, 'earmark: a payment is of one booking for good (outside_payment_stays)');
END;

CREATE TRIGGER outside_payment_is_not_removed BEFORE DELETE ON outside_payments
BEGIN
    SELECT RAISE(ABORT, 'earmark: a payment is of one booking for good (outside_payment_stays)');
END;

CREATE TRIGGER outside_payment_is_not_replaced BEFORE INSERT ON outside_payments
WHEN EXISTS (SELECT 1 FROM outside_payments o WHERE o.payment_id = NEW.payment_id)
BEGIN
    SELECT RAISE(IGNORE);
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

-- What is held, sold or counted for somebody is neither renamed nor removed.
CREATE TRIGGER pool_in_use_keeps_its_name BEFORE UPDATE OF event_id, id ON pools
WHEN (NEW.event_id <> OLD.event_id OR NEW.id <> OLD.id) AND OLD.held + OLD.sold > 0
BEGIN
    SELECT RAISE(ABORT, 'earmark: a pool counts what somebody has, and stays (pool_in_use_stays)');
END;

CREATE TRIGGER pool_in_use_stays BEFORE DELETE ON pools
WHEN OLD.held + OLD.sold > 0
BEGIN
    SELECT RAISE(ABORT, 'earmark: a pool counts what somebody has, and stays (pool_in_use_stays)');
END;

CREATE TRIGGER total_in_use_keeps_its_name BEFORE UPDATE OF event_id, buyer ON buyer_totals
WHEN (NEW.event_id <> OLD.event_id OR NEW.buyer <> OLD.buyer) AND OLD.units > 0
BEGIN
    SELECT RAISE(ABORT, 'earmark: a total counts what somebody has, and stays (total_in_use_stays)');
END;

CREATE TRIGGER total_in_use_stays BEFORE DELETE ON buyer_totals
WHEN OLD.units > 0
BEGIN
    SELECT RAISE(ABORT, 'earmark: a total counts what somebody has, and stays (total_in_use_stays)');
END;
