-- Each query names a promise and a rule, and returns the rows that break it. No row is right.

-- name: seat_of_one_active_booking
-- P1: no two active bookings list the same seat
SELECT format('seat %s of %s: bookings %s', seat, event_id, string_agg(id::text, ', ' ORDER BY id)) AS row
  FROM (SELECT b.event_id, b.id, line ->> 'id' AS seat
          FROM bookings b, jsonb_array_elements(b.lines -> 'seats') line
         WHERE b.state IN ('held', 'paying', 'confirmed')) AS claims
 GROUP BY event_id, seat HAVING count(*) > 1 LIMIT $1;

-- name: active_booking_owns_its_seats
-- P1: every seat of an active booking points to it
SELECT format('booking %s is %s and lists seat %s, which points to %s', b.id, b.state, line ->> 'id',
              coalesce(s.booking_id::text, 'no booking')) AS row
  FROM bookings b CROSS JOIN jsonb_array_elements(b.lines -> 'seats') line
  LEFT JOIN seats s ON s.event_id = b.event_id AND s.id = line ->> 'id'
 WHERE b.state IN ('held', 'paying', 'confirmed') AND s.booking_id IS DISTINCT FROM b.id LIMIT $1;

-- name: owner_lists_its_seats
-- P1: a seat points only to a booking of its event that lists it
SELECT format('seat %s of %s points to booking %s, which does not list it', s.id, s.event_id, s.booking_id) AS row
  FROM seats s JOIN bookings b ON b.id = s.booking_id
 WHERE b.state IN ('held', 'paying', 'confirmed')
   AND (b.event_id <> s.event_id OR NOT b.lines -> 'seats' @> jsonb_build_array(jsonb_build_object('id', s.id)))
 LIMIT $1;

-- name: blocked_seat_is_nobodys
-- P1: a blocked seat has no active owner
SELECT format('seat %s of %s is blocked and belongs to booking %s', s.id, s.event_id, s.booking_id) AS row
  FROM seats s JOIN bookings b ON b.id = s.booking_id
 WHERE s.blocked AND b.state IN ('held', 'paying', 'confirmed') LIMIT $1;

-- name: pool_within_capacity
-- P1: a pool never sells more than it has
SELECT format('pool %s of %s: capacity %s, held %s, sold %s', id, event_id, capacity, held, sold) AS row
  FROM pools WHERE held < 0 OR sold < 0 OR held + sold > capacity LIMIT $1;

-- name: pool_counts_its_bookings
-- P1: a pool's counts are the sum of its active bookings
SELECT format('pool %s of %s: held %s and sold %s, but its bookings say %s and %s', p.id, p.event_id, p.held, p.sold,
              coalesce(c.held, 0), coalesce(c.sold, 0)) AS row
  FROM pools p
  LEFT JOIN (SELECT b.event_id, line ->> 'id' AS id,
                    sum((line ->> 'units')::integer) FILTER (WHERE b.state IN ('held', 'paying')) AS held,
                    sum((line ->> 'units')::integer) FILTER (WHERE b.state = 'confirmed') AS sold
               FROM bookings b, jsonb_array_elements(b.lines -> 'pools') line
              WHERE b.state IN ('held', 'paying', 'confirmed') GROUP BY 1, 2) AS c
    ON c.event_id = p.event_id AND c.id = p.id
 WHERE (p.held, p.sold) IS DISTINCT FROM (coalesce(c.held, 0), coalesce(c.sold, 0)) LIMIT $1;

-- name: total_counts_its_bookings
-- P1: a buyer's total is the sum of the buyer's active bookings
SELECT format('buyer %s at %s: total %s, but the bookings say %s', coalesce(t.buyer, c.buyer),
              coalesce(t.event_id, c.event_id), coalesce(t.units, 0), coalesce(c.units, 0)) AS row
  FROM buyer_totals t
  FULL JOIN (SELECT b.event_id, b.buyer,
                    sum(jsonb_array_length(b.lines -> 'seats')
                        + coalesce((SELECT sum((line ->> 'units')::integer)
                                      FROM jsonb_array_elements(b.lines -> 'pools') line), 0))::integer AS units
               FROM bookings b WHERE b.state IN ('held', 'paying', 'confirmed') GROUP BY 1, 2) AS c
    ON c.event_id = t.event_id AND c.buyer = t.buyer
 WHERE coalesce(t.units, 0) <> coalesce(c.units, 0) LIMIT $1;

-- name: journal_has_no_gap
-- P2: a booking's journal counts its versions without a gap
SELECT format('booking %s is at version %s with %s entries up to %s', b.id, b.version, count(j.id),
              coalesce(max(j.version), 0)) AS row
  FROM bookings b LEFT JOIN journal j ON j.booking_id = b.id
 GROUP BY b.id HAVING count(j.id) <> b.version OR coalesce(max(j.version), 0) <> b.version LIMIT $1;

-- name: journal_ends_where_the_booking_stands
-- P2: the last entry of a booking says the state it is in
SELECT format('booking %s is %s, but its journal ends with %s', b.id, b.state, j.after) AS row
  FROM bookings b JOIN journal j ON j.booking_id = b.id AND j.version = b.version
 WHERE j.after IS DISTINCT FROM b.state LIMIT $1;

-- name: booking_resolves_once
-- P2: a booking resolves at most once, but for expired bookings that late money brought back
SELECT format('booking %s resolved as %s', booking_id, string_agg(after, ', then ' ORDER BY version, id)) AS row
  FROM journal
 WHERE booking_id IS NOT NULL AND before IS DISTINCT FROM after
   AND after IN ('confirmed', 'released', 'expired', 'failed')
 GROUP BY booking_id
HAVING count(*) > 1 AND string_agg(after, ', then ' ORDER BY version, id) <> 'expired, then confirmed' LIMIT $1;

-- name: journal_follows_the_moves
-- P2: every entry begins in the state in which the one before it ended
SELECT format('booking %s: version %s ended %s, version %s began %s', j.booking_id, p.version, p.after, j.version, j.before) AS row
  FROM journal j JOIN journal p ON p.booking_id = j.booking_id AND p.version = j.version - 1
 WHERE j.before IS DISTINCT FROM p.after LIMIT $1;

-- name: booking_of_an_event
-- P1: a booking belongs to an event
SELECT format('booking %s belongs to %s, which is not there', b.id, b.event_id) AS row
  FROM bookings b WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.id = b.event_id) LIMIT $1;

-- name: payment_of_a_booking
-- P3: a payment that was taken elsewhere confirmed a booking that is there
SELECT format('payment %s belongs to booking %s, which is not there', p.payment_id, p.booking_id) AS row
  FROM outside_payments p WHERE NOT EXISTS (SELECT 1 FROM bookings b WHERE b.id = p.booking_id) LIMIT $1;

-- name: payment_of_its_mode
-- P3: a payment that was taken elsewhere is of the mode of the booking that it confirmed
SELECT format('payment %s and booking %s are of different modes', p.payment_id, p.booking_id) AS row
  FROM outside_payments p JOIN bookings b ON b.id = p.booking_id
 WHERE p.mode IS DISTINCT FROM b.mode LIMIT $1;

-- name: gateway_payment_of_its_booking
-- P3: a payment is of a booking that is there, in its event, mode and currency
SELECT format('payment %s and booking %s do not agree', p.id, p.booking_id) AS row
  FROM payments p
 WHERE NOT EXISTS (SELECT 1 FROM bookings b
                    WHERE b.id = p.booking_id AND b.event_id = p.event_id AND b.mode = p.mode AND b.currency = p.currency)
 LIMIT $1;

-- name: payment_amounts_in_order
-- P3: a payment takes no more than was asked, and gives back no more than it took
SELECT format('payment %s: amount %s, captured %s, refunding %s, refunded %s', id, amount, captured, refunding, refunded) AS row
  FROM payments WHERE NOT (0 <= refunded AND refunded <= refunding AND refunding <= captured AND captured <= amount
                           AND 0 <= refunded_elsewhere AND refunded + refunded_elsewhere <= captured) LIMIT $1;

-- name: captured_is_what_was_asked
-- P3: a payment that is captured took all that was asked, or an operator was told
SELECT format('payment %s is %s: amount %s, captured %s', id, state, amount, captured) AS row
  FROM payments WHERE state IN ('captured', 'partially_refunded', 'refunded') AND captured <> amount LIMIT $1;

-- name: captured_money_has_a_booking
-- P3: captured money has a booking that was sold for it, is on its way back, or an operator was told
SELECT format('payment %s keeps %s, and its booking %s is %s and names payment %s', p.id, p.captured - p.refunding, b.id,
              b.state, coalesce(b.payment_id, 'none')) AS row
  FROM payments p JOIN bookings b ON b.id = p.booking_id
 WHERE p.captured > p.refunding AND p.state NOT IN ('needs_attention', 'settled')
   -- What a cancelled sale may keep is the next rule's.
   AND (b.state NOT IN ('confirmed', 'cancelled') OR b.payment_id IS DISTINCT FROM p.id::text) LIMIT $1;

-- name: kept_money_is_a_price_or_a_fee
-- P3: what is kept of a payment is the price of what is still sold, and what its cancellations say they kept
SELECT format('payment %s keeps %s, and its booking %s is %s for %s with %s of fees', p.id, p.captured - p.refunding, b.id,
              b.state, b.total, f.fees) AS row
  FROM payments p JOIN bookings b ON b.id = p.booking_id
 CROSS JOIN LATERAL (SELECT coalesce(sum((j.facts -> 'payment' ->> 'fee')::bigint), 0) AS fees
                       FROM journal j WHERE j.booking_id = b.id AND j.verb = 'cancel') AS f
 WHERE p.captured > p.refunding AND p.state NOT IN ('needs_attention', 'settled') AND b.payment_id = p.id::text
   -- Less may be kept: a shop may give back what it likes.
   AND p.captured - p.refunding > CASE WHEN b.state = 'confirmed' THEN b.total ELSE 0 END + f.fees
   AND b.state IN ('confirmed', 'cancelled') LIMIT $1;

-- name: sale_has_its_money
-- P3: a confirmed booking that names one of our payments has its money
SELECT format('booking %s is confirmed, and its payment %s is %s', b.id, p.id, p.state) AS row
  FROM bookings b JOIN payments p ON p.id::text = b.payment_id
 WHERE b.state = 'confirmed'
   AND (p.booking_id <> b.id
        OR NOT (p.state = 'authorised'
                OR (p.captured > 0
                    AND p.state IN ('captured', 'partially_refunded', 'refunded', 'needs_attention', 'settled')))) LIMIT $1;

-- name: paying_waits_for_one_payment
-- P3: a paying booking waits for one payment, the one that it names
SELECT format('booking %s is paying and names payment %s; undecided: %s', b.id, coalesce(b.payment_id, 'none'),
              coalesce(string_agg(p.id::text, ', ' ORDER BY p.id), 'none')) AS row
  FROM bookings b
  LEFT JOIN payments p ON p.booking_id = b.id
        AND (p.state IN ('pending', 'requires_action', 'unknown')
             OR (p.state = 'needs_attention' AND (p.captured = 0 OR p.id::text = b.payment_id)))
 WHERE b.state = 'paying'
 GROUP BY b.id HAVING count(p.id) <> 1 OR min(p.id::text) IS DISTINCT FROM b.payment_id LIMIT $1;

-- name: refunds_add_up
-- P3: a payment's refunds add up to what it owes, and those that were made to what it gave back
SELECT format('payment %s: refunding %s and refunded %s, but its refunds say %s and %s', p.id, p.refunding, p.refunded,
              coalesce(r.owed, 0), coalesce(r.made, 0)) AS row
  FROM payments p
  LEFT JOIN (SELECT payment_id, sum(amount) AS owed, sum(amount) FILTER (WHERE state = 'done') AS made
               FROM refunds GROUP BY payment_id) AS r ON r.payment_id = p.id
 WHERE (p.refunding, p.refunded) IS DISTINCT FROM (coalesce(r.owed, 0), coalesce(r.made, 0)) LIMIT $1;

-- name: one_payment_keeps_its_money
-- P3: a booking is paid for once: at most one of its payments has money that is not going back
SELECT format('booking %s: payments %s', booking_id, string_agg(id::text, ', ' ORDER BY id)) AS row
  FROM payments
 WHERE (captured > refunding + refunded_elsewhere AND (state, code) IS DISTINCT FROM ('settled', 'refunded_by_hand')) OR state = 'authorised'
 GROUP BY booking_id HAVING count(*) > 1 LIMIT $1;

-- name: payment_with_work_is_due
-- P3: a payment whose story goes on by itself is looked at again
SELECT format('payment %s is %s, owes %s, and no worker will look at it', id, state, refunding - refunded) AS row
  FROM payments
 WHERE due_at IS NULL
   AND (state IN ('pending', 'requires_action', 'unknown', 'authorised', 'voiding')
        OR (state = 'needs_attention' AND captured = 0)
        OR (state NOT IN ('needs_attention', 'settled') AND refunding > refunded)) LIMIT $1;

-- name: payment_and_draw_name_one_account
-- P3: money that was drawn from an account came from the one that its payment refers to
SELECT format('payment %s refers to account %s, and was drawn from %s', p.id, left(p.method, 36), d.account_id) AS row
  FROM payments p JOIN account_payments d ON d.id = p.id
 WHERE p.gateway = 'balance' AND p.method LIKE '________-____-____-____-____________/…%' AND d.code IS NULL
   AND d.account_id <> left(p.method, 36) LIMIT $1;

-- name: ticket_admits_once
-- P1: a ticket has at most one admission that is not undone
SELECT format('ticket %s of booking %s has %s admissions', t.id, t.booking_id, count(*)) AS row
  FROM ticket_scans s JOIN tickets t ON t.id = s.ticket_id
 WHERE s.admitted AND s.reason IS NULL AND s.undone_at IS NULL
 GROUP BY t.id, t.booking_id HAVING count(*) > 1 LIMIT $1;
