-- expand
-- The rules of selling and of money, in the schema: what no program and no hand-written SQL may do to these rows.
-- They are in a file of their own so that a test or a benchmark can build a database without them. They use no clock.
--
-- Each rule is a trigger, and its message ends with the rule's name. INSERT OR REPLACE removes a row without running the
-- triggers on DELETE, and a shell checks no foreign keys unless it is set to: both ways around a rule are closed here too.
-- An erasure drops a guard and makes it again in its one transaction (`store/sqlite/erase_buyer.py`); no other writer comes between.

-- Events ------------------------------------------------------------------------------------------------------------------------

-- An event that has seats, pools or bookings is not replaced. Checked afterwards: an insert that yields to the existing row is
-- right.
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
    SELECT RAISE(ABORT, 'earmark: there is an event of this name (event_is_not_replaced)');
END;

-- Pools and totals --------------------------------------------------------------------------------------------------------------

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

-- A pool with units held or sold, and a total above zero, are neither renamed nor removed.
CREATE TRIGGER pool_in_use_keeps_its_name BEFORE UPDATE OF event_id, id ON pools
WHEN (NEW.event_id <> OLD.event_id OR NEW.id <> OLD.id) AND OLD.held + OLD.sold > 0
BEGIN
    SELECT RAISE(ABORT, 'earmark: a pool with units held or sold stays (pool_in_use_stays)');
END;

CREATE TRIGGER pool_in_use_stays BEFORE DELETE ON pools
WHEN OLD.held + OLD.sold > 0
BEGIN
    SELECT RAISE(ABORT, 'earmark: a pool with units held or sold stays (pool_in_use_stays)');
END;

CREATE TRIGGER total_in_use_keeps_its_name BEFORE UPDATE OF event_id, buyer ON buyer_totals
WHEN (NEW.event_id <> OLD.event_id OR NEW.buyer <> OLD.buyer) AND OLD.units > 0
BEGIN
    SELECT RAISE(ABORT, 'earmark: a total above zero stays (total_in_use_stays)');
END;

CREATE TRIGGER total_in_use_stays BEFORE DELETE ON buyer_totals
WHEN OLD.units > 0
BEGIN
    SELECT RAISE(ABORT, 'earmark: a total above zero stays (total_in_use_stays)');
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

-- Bookings ----------------------------------------------------------------------------------------------------------------------

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

-- A booking begins as held and moves only along an edge of the table of moves (`domain/`).
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

-- A booking does not replace another, stays the same claim of the same buyer, and is not removed while it is active or while seats
-- point to it.
CREATE TRIGGER booking_is_not_replaced BEFORE INSERT ON bookings
WHEN EXISTS (SELECT 1 FROM bookings b WHERE b.id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'earmark: there is a booking with this id (booking_is_not_replaced)');
END;

CREATE TRIGGER booking_keeps_its_identity BEFORE UPDATE OF id, event_id, buyer, mode, currency, created_at ON bookings
WHEN (OLD.id, OLD.event_id, OLD.buyer, OLD.mode, OLD.currency, OLD.created_at)
     IS NOT
     (NEW.id, NEW.event_id, NEW.buyer, NEW.mode, NEW.currency, NEW.created_at)
BEGIN
    SELECT RAISE(ABORT, 'earmark: a booking keeps its id, event, buyer, currency and beginning (booking_keeps_its_identity)');
END;

CREATE TRIGGER active_booking_stays BEFORE DELETE ON bookings
WHEN OLD.state IN ('held', 'paying', 'confirmed')
BEGIN
    SELECT RAISE(ABORT, 'earmark: an active booking stays (active_booking_stays)');
END;

CREATE TRIGGER booking_with_seats_stays BEFORE DELETE ON bookings
WHEN EXISTS (
    SELECT 1 FROM json_each(OLD.lines, '$.seats') AS line
      JOIN seats s ON s.event_id = OLD.event_id AND s.id = json_extract(line.value, '$.id') AND s.booking_id = OLD.id)
BEGIN
    SELECT RAISE(ABORT, 'earmark: seats point to this booking (booking_with_seats_stays)');
END;

-- The hold settled what a booking claims. A sale may be cancelled in part: then lines go, and no line is added or changed.
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

-- A booking that lists a seat does not own it yet: it may be paid for or sold only when the seat points back.
CREATE TRIGGER booking_owns_every_seat BEFORE UPDATE OF state ON bookings
WHEN OLD.state = 'held' AND NEW.state IN ('paying', 'confirmed') AND EXISTS (
    SELECT 1 FROM json_each(NEW.lines, '$.seats') AS line
     WHERE NOT EXISTS (
        SELECT 1 FROM seats s
         WHERE s.event_id = NEW.event_id AND s.id = json_extract(line.value, '$.id') AND s.booking_id = NEW.id))
BEGIN
    SELECT RAISE(ABORT, 'earmark: the booking lists a seat that does not point to it (booking_owns_every_seat)');
END;

-- Late money may confirm an expired booking, but only with all of its seats. Raising their fence makes a hold that read them as
-- free look again.
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

-- Seats -------------------------------------------------------------------------------------------------------------------------

-- A seat begins without a booking, and then points only to a booking of its event that lists it.
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

-- A seat leaves its booking, or is blocked, only when that booking has ended or no longer lists it.
CREATE TRIGGER seat_keeps_its_active_owner BEFORE UPDATE ON seats
WHEN OLD.booking_id IS NOT NULL
     AND (NEW.booking_id IS NOT OLD.booking_id
          OR NEW.event_id <> OLD.event_id OR NEW.id <> OLD.id
          OR (NEW.blocked AND NOT OLD.blocked))
     AND EXISTS (
        SELECT 1 FROM bookings b, json_each(b.lines, '$.seats') AS line
         WHERE b.id = OLD.booking_id AND b.state IN ('held', 'paying', 'confirmed')
           AND json_extract(line.value, '$.id') = OLD.id)
BEGIN
    SELECT RAISE(ABORT, 'earmark: the seat belongs to an active booking (seat_keeps_its_active_owner)');
END;

CREATE TRIGGER seat_with_an_active_owner_stays BEFORE DELETE ON seats
WHEN OLD.booking_id IS NOT NULL AND EXISTS (
    SELECT 1 FROM bookings b, json_each(b.lines, '$.seats') AS line
     WHERE b.id = OLD.booking_id AND b.state IN ('held', 'paying', 'confirmed')
       AND json_extract(line.value, '$.id') = OLD.id)
BEGIN
    SELECT RAISE(ABORT, 'earmark: the seat belongs to an active booking (seat_keeps_its_active_owner)');
END;

-- A seat does not replace another.
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

-- A blocked seat is not taken.
CREATE TRIGGER blocked_seat_is_not_taken BEFORE UPDATE OF booking_id ON seats
WHEN NEW.blocked AND NEW.booking_id IS NOT NULL AND NEW.booking_id IS NOT OLD.booking_id
BEGIN
    SELECT RAISE(ABORT, 'earmark: the seat is blocked (blocked_seat_is_not_taken)');
END;

-- Payments taken elsewhere ------------------------------------------------------------------------------------------------------

-- A reference that confirmed a booking is neither removed nor given to another booking. A second insert is ignored, and its sender
-- finds that nothing was inserted: a trigger cannot know whether a statement would have replaced the first row or yielded to it.
CREATE TRIGGER outside_payment_stays BEFORE UPDATE ON outside_payments
BEGIN
    SELECT RAISE(ABORT, 'earmark: a payment is of one booking for good (outside_payment_stays)');
END;

CREATE TRIGGER outside_payment_is_not_removed BEFORE DELETE ON outside_payments
BEGIN
    SELECT RAISE(ABORT, 'earmark: a payment is of one booking for good (outside_payment_stays)');
END;

CREATE TRIGGER outside_payment_is_not_replaced BEFORE INSERT ON outside_payments
WHEN EXISTS (SELECT 1 FROM outside_payments o WHERE o.payment_id = NEW.payment_id AND o.mode = NEW.mode)
BEGIN
    SELECT RAISE(IGNORE);
END;

-- It has the mode of its booking.
CREATE TRIGGER outside_payment_agrees_with_booking BEFORE INSERT ON outside_payments
WHEN NEW.mode IS NOT (SELECT b.mode FROM bookings b WHERE b.id = NEW.booking_id)
BEGIN
    SELECT RAISE(ABORT, 'earmark: a payment is of the mode of its booking (outside_payment_agrees_with_booking)');
END;

-- Journal -----------------------------------------------------------------------------------------------------------------------

-- The journal is append-only. A published entry gets its number, once. A key that stays keeps its answer; a key whose time is over
-- loses all that it recorded.
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

CREATE TRIGGER journal_forgets_whole BEFORE UPDATE OF caller, key, request_hash, answer_status, answer_body ON journal
WHEN NEW.key IS NULL
     AND (OLD.caller, OLD.key, OLD.request_hash, OLD.answer_status, OLD.answer_body)
         IS NOT (NEW.caller, NEW.key, NEW.request_hash, NEW.answer_status, NEW.answer_body)
     AND coalesce(NEW.caller, NEW.request_hash, NEW.answer_status, NEW.answer_body) IS NOT NULL
BEGIN
    SELECT RAISE(ABORT, 'earmark: a key forgets all that it remembers, or nothing (journal_is_append_only)');
END;

-- Payments ----------------------------------------------------------------------------------------------------------------------
-- None of these guards stands on bookings or seats: a sale without a payment costs nothing more for them.

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

-- What went back at the gateway's own page and what Earmark gave back are together no more than was captured. When it grows, the
-- payment needs attention in the same write.
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

CREATE TRIGGER refund_elsewhere_needs_attention BEFORE UPDATE OF refunded_elsewhere ON payments
WHEN NEW.refunded_elsewhere > OLD.refunded_elsewhere AND NEW.state <> 'needs_attention'
BEGIN
    SELECT RAISE(ABORT, 'earmark: money went back elsewhere without attention (refund_elsewhere_needs_attention)');
END;

-- A payment begins before the gateway is called, and moves only along an edge of the table of moves. Only an operator settles a
-- payment that needs attention; a refund of it that is refused later makes it need attention again.
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
    ('needs_attention', 'failed'), ('needs_attention', 'settled'),
    ('settled', 'needs_attention')
)
BEGIN
    SELECT RAISE(ABORT, 'earmark: a payment cannot move this way (payment_moves_along_an_edge)');
END;

-- A payment belongs to an existing booking, of the same event, mode and currency.
CREATE TRIGGER payment_of_its_booking BEFORE INSERT ON payments
WHEN NOT EXISTS (
    SELECT 1 FROM bookings b
     WHERE b.id = NEW.booking_id AND b.event_id = NEW.event_id AND b.mode = NEW.mode AND b.currency = NEW.currency)
BEGIN
    SELECT RAISE(ABORT, 'earmark: a payment is of a booking of its event, mode and currency (payment_of_its_booking)');
END;

-- A payment stays the same request to the same gateway, and is neither removed nor replaced.
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
BEFORE UPDATE OF id, booking_id, event_id, mode, gateway, method, amount, currency, automatic, created_at ON payments
WHEN (OLD.id, OLD.booking_id, OLD.event_id, OLD.mode, OLD.gateway, OLD.method, OLD.amount, OLD.currency, OLD.automatic,
      OLD.created_at)
     IS NOT
     (NEW.id, NEW.booking_id, NEW.event_id, NEW.mode, NEW.gateway, NEW.method, NEW.amount, NEW.currency, NEW.automatic,
      NEW.created_at)
BEGIN
    SELECT RAISE(ABORT, 'earmark: a payment keeps its id, booking, gateway, amount and beginning (payment_keeps_its_identity)');
END;

-- The captured amount is set once, and what is owed or given back never shrinks. One exception: a refund that was made can fail
-- weeks later, when the buyer's bank account is closed; then the payment needs attention in the same transaction.
CREATE TRIGGER captured_is_a_fact BEFORE UPDATE OF captured ON payments
WHEN OLD.captured <> 0 AND NEW.captured <> OLD.captured
BEGIN
    SELECT RAISE(ABORT, 'earmark: what was captured stays captured (captured_is_a_fact)');
END;

CREATE TRIGGER refunds_never_shrink BEFORE UPDATE OF refunding, refunded ON payments
WHEN NEW.refunding < OLD.refunding OR (NEW.refunded < OLD.refunded AND NEW.state <> 'needs_attention')
BEGIN
    SELECT RAISE(ABORT, 'earmark: what a payment gives back never shrinks (refunds_never_shrink)');
END;

-- Refunds and callbacks ---------------------------------------------------------------------------------------------------------

CREATE TRIGGER refund_gives_something_back BEFORE INSERT ON refunds
WHEN NEW.amount <= 0
BEGIN
    SELECT RAISE(ABORT, 'earmark: a refund gives something back (refund_gives_something_back)');
END;

-- A refund begins before its gateway is called, and is decided once; one that was made can still be refused later. A trigger cannot
-- know whether an insert over an existing refund would update or replace it: the insert may do no more than an update may.
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
            OR (r.state <> NEW.state AND (r.state, NEW.state) NOT IN (VALUES
                ('pending', 'done'), ('pending', 'refused'), ('done', 'refused')))
            OR (r.state = 'done' AND NEW.state = 'refused'
                AND NOT EXISTS (SELECT 1 FROM payments p WHERE p.id = r.payment_id AND p.state = 'needs_attention'))))
BEGIN
    SELECT RAISE(ABORT, 'earmark: there is a refund with this id (refund_stays)');
END;

CREATE TRIGGER refund_moves_along_an_edge BEFORE UPDATE OF state ON refunds
WHEN OLD.state <> NEW.state AND (OLD.state, NEW.state) NOT IN (VALUES
    ('pending', 'done'), ('pending', 'refused'), ('done', 'refused')
)
BEGIN
    SELECT RAISE(ABORT, 'earmark: a refund cannot move this way (refund_moves_along_an_edge)');
END;

-- A refund that was made and then failed makes its payment need attention. The payment is written first, so this reads its new
-- state.
CREATE TRIGGER failed_refund_needs_attention BEFORE UPDATE OF state ON refunds
WHEN OLD.state = 'done' AND NEW.state = 'refused'
     AND NOT EXISTS (SELECT 1 FROM payments p WHERE p.id = NEW.payment_id AND p.state = 'needs_attention')
BEGIN
    SELECT RAISE(ABORT, 'earmark: a refund that was made failed without attention (failed_refund_needs_attention)');
END;

-- A refund belongs to a payment of its booking, and all refunds together are no more than that payment owes.
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

-- The id of a callback is kept forever. A second insert is ignored, as the program's own insert is.
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

-- Counts are whole numbers ------------------------------------------------------------------------------------------------------

-- A column of SQLite takes any value: text or a fraction would pass every comparison with a number. These triggers come last,
-- because SQLite runs the newest trigger of a table first.
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
