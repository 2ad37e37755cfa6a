-- Each query names a promise and a rule, and returns the rows that break it. No row is right.

-- name: seat_of_one_active_booking
-- P1: no two active bookings list the same seat
SELECT printf('seat %s of %s: bookings %s', seat, event_id, group_concat(id, ', ')) AS row
  FROM (SELECT b.event_id, b.id, json_extract(line.value, '$.id') AS seat
          FROM bookings b, json_each(b.lines, '$.seats') AS line
         WHERE b.state IN ('held', 'paying', 'confirmed') ORDER BY b.id) AS claims
 GROUP BY event_id, seat HAVING count(*) > 1 LIMIT ?1;

-- name: active_booking_owns_its_seats
-- P1: every seat of an active booking points to it
SELECT printf('booking %s is %s and lists seat %s, which points to %s', b.id, b.state,
              json_extract(line.value, '$.id'), coalesce(s.booking_id, 'no booking')) AS row
  FROM bookings b CROSS JOIN json_each(b.lines, '$.seats') AS line
  LEFT JOIN seats s ON s.event_id = b.event_id AND s.id = json_extract(line.value, '$.id')
 WHERE b.state IN ('held', 'paying', 'confirmed') AND s.booking_id IS NOT b.id LIMIT ?1;

-- name: owner_lists_its_seats
-- P1: a seat points only to a booking of its event that lists it
SELECT printf('seat %s of %s points to booking %s, which does not list it', s.id, s.event_id, s.booking_id) AS row
  FROM seats s JOIN bookings b ON b.id = s.booking_id
 WHERE b.state IN ('held', 'paying', 'confirmed')
   AND (b.event_id <> s.event_id
        OR NOT EXISTS (SELECT 1 FROM json_each(b.lines, '$.seats') AS line WHERE json_extract(line.value, '$.id') = s.id))
 LIMIT ?1;

-- name: blocked_seat_is_nobodys
-- P1: a blocked seat has no active owner
SELECT printf('seat %s of %s is blocked and belongs to booking %s', s.id, s.event_id, s.booking_id) AS row
  FROM seats s JOIN bookings b ON b.id = s.booking_id
 WHERE s.blocked AND b.state IN ('held', 'paying', 'confirmed') LIMIT ?1;

-- name: pool_within_capacity
-- P1: a pool never sells more than it has
SELECT printf('pool %s of %s: capacity %d, held %d, sold %d', id, event_id, capacity, held, sold) AS row
  FROM pools WHERE held < 0 OR sold < 0 OR held + sold > capacity LIMIT ?1;

-- name: pool_counts_its_bookings
-- P1: a pool's counts are the sum of its active bookings
SELECT printf('pool %s of %s: held %d and sold %d, but its bookings say %d and %d', p.id, p.event_id, p.held, p.sold,
              coalesce(c.held, 0), coalesce(c.sold, 0)) AS row
  FROM pools p
  LEFT JOIN (SELECT b.event_id, json_extract(line.value, '$.id') AS id,
                    sum(json_extract(line.value, '$.units')) FILTER (WHERE b.state IN ('held', 'paying')) AS held,
                    sum(json_extract(line.value, '$.units')) FILTER (WHERE b.state = 'confirmed') AS sold
               FROM bookings b, json_each(b.lines, '$.pools') AS line
              WHERE b.state IN ('held', 'paying', 'confirmed') GROUP BY 1, 2) AS c
    ON c.event_id = p.event_id AND c.id = p.id
 WHERE (p.held, p.sold) IS NOT (coalesce(c.held, 0), coalesce(c.sold, 0)) LIMIT ?1;

-- name: total_counts_its_bookings
-- P1: a buyer's total is the sum of the buyer's active bookings
SELECT printf('buyer %s at %s: total %d, but the bookings say %d', buyer, event_id, sum(counted), sum(claimed)) AS row
  FROM (SELECT event_id, buyer, units AS counted, 0 AS claimed FROM buyer_totals
         UNION ALL
        SELECT b.event_id, b.buyer, 0,
               json_array_length(b.lines, '$.seats')
               + coalesce((SELECT sum(json_extract(line.value, '$.units')) FROM json_each(b.lines, '$.pools') AS line), 0)
          FROM bookings b WHERE b.state IN ('held', 'paying', 'confirmed')) AS both
 GROUP BY event_id, buyer HAVING sum(counted) <> sum(claimed) LIMIT ?1;

-- name: journal_has_no_gap
-- P2: a booking's journal counts its versions without a gap
SELECT printf('booking %s is at version %d with %d entries up to %d', b.id, b.version, count(j.id),
              coalesce(max(j.version), 0)) AS row
  FROM bookings b LEFT JOIN journal j ON j.booking_id = b.id
 GROUP BY b.id HAVING count(j.id) <> b.version OR coalesce(max(j.version), 0) <> b.version LIMIT ?1;

-- name: journal_ends_where_the_booking_stands
-- P2: the last entry of a booking says the state it is in
SELECT printf('booking %s is %s, but its journal ends with %s', b.id, b.state, j.after) AS row
  FROM bookings b JOIN journal j ON j.booking_id = b.id AND j.version = b.version
 WHERE j.after IS NOT b.state LIMIT ?1;

-- name: booking_resolves_once
-- P2: a booking resolves at most once, but for expired bookings that late money brought back
SELECT printf('booking %s resolved as %s', booking_id, story) AS row
  FROM (SELECT r.booking_id,
               (SELECT group_concat(after, ', then ')
                  FROM (SELECT j.after FROM journal j
                         WHERE j.booking_id = r.booking_id AND j.before IS NOT j.after
                           AND j.after IN ('confirmed', 'released', 'expired', 'failed')
                         ORDER BY j.version)) AS story
          FROM journal r
         WHERE r.booking_id IS NOT NULL AND r.before IS NOT r.after
           AND r.after IN ('confirmed', 'released', 'expired', 'failed')
         GROUP BY r.booking_id HAVING count(*) > 1) AS resolved
 WHERE story <> 'expired, then confirmed' LIMIT ?1;

-- name: journal_follows_the_moves
-- P2: every entry begins in the state in which the one before it ended
SELECT printf('booking %s: version %d ended %s, version %d began %s', j.booking_id, p.version, p.after, j.version, j.before)
       AS row
  FROM journal j JOIN journal p ON p.booking_id = j.booking_id AND p.version = j.version - 1
 WHERE j.before IS NOT p.after LIMIT ?1;

-- name: booking_of_an_event
-- P1: a booking belongs to an event
SELECT printf('booking %s belongs to %s, which is not there', b.id, b.event_id) AS row
  FROM bookings b WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.id = b.event_id) LIMIT ?1;

-- name: payment_of_a_booking
-- P3: a payment that was taken elsewhere confirmed a booking that is there
SELECT printf('payment %s belongs to booking %s, which is not there', p.payment_id, p.booking_id) AS row
  FROM outside_payments p WHERE NOT EXISTS (SELECT 1 FROM bookings b WHERE b.id = p.booking_id) LIMIT ?1;

-- name: payment_of_its_mode
-- P3: a payment that was taken elsewhere is of the mode of the booking that it confirmed
SELECT printf('payment %s and booking %s are of different modes', p.payment_id, p.booking_id) AS row
  FROM outside_payments p JOIN bookings b ON b.id = p.booking_id
 WHERE p.mode IS NOT b.mode LIMIT ?1;

-- name: gateway_payment_of_its_booking
-- P3: a payment is of a booking that is there, in its event, mode and currency
SELECT printf('payment %s and booking %s do not agree', p.id, p.booking_id) AS row
  FROM payments p
 WHERE NOT EXISTS (SELECT 1 FROM bookings b
                    WHERE b.id = p.booking_id AND b.event_id = p.event_id AND b.mode = p.mode AND b.currency = p.currency)
 LIMIT ?1;

-- name: payment_amounts_in_order
-- P3: a payment takes no more than was asked, and gives back no more than it took
SELECT printf('payment %s: amount %d, captured %d, refunding %d, refunded %d', id, amount, captured, refunding, refunded) AS row
  FROM payments WHERE NOT (0 <= refunded AND refunded <= refunding AND refunding <= captured AND captured <= amount
                           AND 0 <= refunded_elsewhere AND refunded + refunded_elsewhere <= captured) LIMIT ?1;

-- name: captured_is_what_was_asked
-- P3: a payment that is captured took all that was asked, or an operator was told
SELECT printf('payment %s is %s: amount %d, captured %d', id, state, amount, captured) AS row
  FROM payments WHERE state IN ('captured', 'partially_refunded', 'refunded') AND captured <> amount LIMIT ?1;

-- name: captured_money_has_a_booking
-- P3: captured money has a booking that was sold for it, is on its way back, or an operator was told
SELECT printf('payment %s keeps %d, and its booking %s is %s and names payment %s', p.id, p.captured - p.refunding, b.id,
              b.state, coalesce(b.payment_id, 'none')) AS row
  FROM payments p JOIN bookings b ON b.id = p.booking_id
 WHERE p.captured > p.refunding AND p.state NOT IN ('needs_attention', 'settled')
   -- What a cancelled sale may keep is the next rule's.
   AND (b.state NOT IN ('confirmed', 'cancelled') OR b.payment_id IS NOT p.id) LIMIT ?1;

-- name: kept_money_is_a_price_or_a_fee
-- P3: what is kept of a payment is the price of what is still sold, and what its cancellations say they kept
SELECT printf('payment %s keeps %d, and its booking %s is %s for %d with %d of fees', id, kept, booking_id, state, total,
              fees) AS row
  FROM (SELECT p.id, p.captured - p.refunding AS kept, p.booking_id, b.state, b.total,
               (SELECT coalesce(sum(json_extract(j.facts, '$.payment.fee')), 0)
                  FROM journal j WHERE j.booking_id = b.id AND j.verb = 'cancel') AS fees
          FROM payments p JOIN bookings b ON b.id = p.booking_id
         WHERE p.captured > p.refunding AND p.state NOT IN ('needs_attention', 'settled') AND b.payment_id = p.id
           AND b.state IN ('confirmed', 'cancelled')) AS money
   -- Less may be kept: a shop may give back what it likes.
 WHERE kept > CASE WHEN state = 'confirmed' THEN total ELSE 0 END + fees LIMIT ?1;

-- name: sale_has_its_money
-- P3: a confirmed booking that names one of our payments has its money
SELECT printf('booking %s is confirmed, and its payment %s is %s', b.id, p.id, p.state) AS row
  FROM bookings b JOIN payments p ON p.id = b.payment_id
 WHERE b.state = 'confirmed'
   AND (p.booking_id <> b.id
        OR NOT (p.state = 'authorised'
                OR (p.captured > 0
                    AND p.state IN ('captured', 'partially_refunded', 'refunded', 'needs_attention', 'settled')))) LIMIT ?1;

-- name: paying_waits_for_one_payment
-- P3: a paying booking waits for one payment, the one that it names
SELECT printf('booking %s is paying and names payment %s; undecided: %s', b.id, coalesce(b.payment_id, 'none'),
              coalesce(group_concat(p.id, ', '), 'none')) AS row
  FROM bookings b
  LEFT JOIN payments p ON p.booking_id = b.id
        AND (p.state IN ('pending', 'requires_action', 'unknown')
             OR (p.state = 'needs_attention' AND (p.captured = 0 OR p.id = b.payment_id)))
 WHERE b.state = 'paying'
 GROUP BY b.id HAVING count(p.id) <> 1 OR min(p.id) IS NOT b.payment_id LIMIT ?1;

-- name: refunds_add_up
-- P3: a payment's refunds add up to what it owes, and those that were made to what it gave back
SELECT printf('payment %s: refunding %d and refunded %d, but its refunds say %d and %d', p.id, p.refunding, p.refunded,
              coalesce(r.owed, 0), coalesce(r.made, 0)) AS row
  FROM payments p
  LEFT JOIN (SELECT payment_id, sum(amount) AS owed, sum(amount) FILTER (WHERE state = 'done') AS made
               FROM refunds GROUP BY payment_id) AS r ON r.payment_id = p.id
 WHERE (p.refunding, p.refunded) IS NOT (coalesce(r.owed, 0), coalesce(r.made, 0)) LIMIT ?1;

-- name: one_payment_keeps_its_money
-- P3: a booking is paid for once: at most one of its payments has money that is not going back
SELECT printf('booking %s: payments %s', booking_id, group_concat(id, ', ')) AS row
  FROM (SELECT booking_id, id FROM payments
         WHERE (captured > refunding + refunded_elsewhere AND (state, code) IS NOT ('settled', 'refunded_by_hand')) OR state = 'authorised'
         ORDER BY id) AS kept
 GROUP BY booking_id HAVING count(*) > 1 LIMIT ?1;

-- name: payment_with_work_is_due
-- P3: a payment whose story goes on by itself is looked at again
SELECT printf('payment %s is %s, owes %d, and no worker will look at it', id, state, refunding - refunded) AS row
  FROM payments
 WHERE due_at IS NULL
   AND (state IN ('pending', 'requires_action', 'unknown', 'authorised', 'voiding')
        OR (state = 'needs_attention' AND captured = 0)
        OR (state NOT IN ('needs_attention', 'settled') AND refunding > refunded)) LIMIT ?1;

-- name: payment_and_draw_name_one_account
-- P3: money that was drawn from an account came from the one that its payment refers to
SELECT printf('payment %s refers to account %s, and was drawn from %s', p.id, substr(p.method, 1, 36), d.account_id) AS row
  FROM payments p JOIN account_payments d ON d.id = p.id
 WHERE p.gateway = 'balance' AND p.method LIKE '________-____-____-____-____________/…%' AND d.code IS NULL
   AND d.account_id <> substr(p.method, 1, 36) LIMIT ?1;

-- name: ticket_admits_once
-- P1: a ticket has at most one admission that is not undone
SELECT 'ticket ' || t.id || ' of booking ' || t.booking_id || ' has ' || count(*) || ' admissions' AS row
  FROM ticket_scans s JOIN tickets t ON t.id = s.ticket_id
 WHERE s.admitted AND s.reason IS NULL AND s.undone_at IS NULL
 GROUP BY t.id, t.booking_id HAVING count(*) > 1 LIMIT ?1;
