-- Erasing a buyer, in one transaction: the name becomes the pseudonym in every row. `unname`, `unname_json` and `unname_bytes`
-- are the rule of `store/both_databases/replace_buyer_name_in_texts.py`. `:buyer` is the name, `:alias` the pseudonym, `:callers` whom its tokens spoke for.

-- name: read_guards
-- The guards that refuse to rename a buyer, as their migrations made them.
SELECT name, sql FROM sqlite_master
 WHERE type = 'trigger'
   AND name IN ('booking_keeps_its_identity', 'total_in_use_keeps_its_name', 'journal_keeps_its_story',
                'payment_keeps_its_identity', 'outside_payment_stays');

-- name: find_obstacles
-- Why the buyer is not erased yet, booking by booking. An event is over when it has begun or, where no start is known, when its
-- sale is closed.
SELECT b.id AS booking_id, b.event_id, b.mode, 'it is ' || b.state AS why, 1 AS rank
  FROM bookings b WHERE b.buyer = :buyer AND b.state IN ('held', 'paying')
 UNION ALL
SELECT b.id, b.event_id, b.mode, 'its payment ' || p.id || ' is ' || p.state, 2
  FROM bookings b JOIN payments p ON p.booking_id = b.id
 WHERE b.buyer = :buyer AND p.state IN ('pending', 'requires_action', 'unknown', 'authorised', 'voiding', 'needs_attention')
 UNION ALL
SELECT b.id, b.event_id, b.mode, 'its refund ' || r.id || ' is pending', 3
  FROM bookings b JOIN payments p ON p.booking_id = b.id JOIN refunds r ON r.payment_id = p.id
 WHERE b.buyer = :buyer AND r.state = 'pending'
 UNION ALL
SELECT b.id, b.event_id, b.mode,
       CASE WHEN e.starts_at IS NOT NULL
            THEN 'its event starts at ' || strftime('%Y-%m-%d %H:%M UTC', e.starts_at / 1000000, 'unixepoch')
            WHEN e.sale_closes_at IS NOT NULL
            THEN 'the sale of its event closes at ' || strftime('%Y-%m-%d %H:%M UTC', e.sale_closes_at / 1000000, 'unixepoch')
            ELSE 'its event has neither starts_at nor sale_closes_at' END, 4
  FROM bookings b LEFT JOIN events e ON e.id = b.event_id
 WHERE b.buyer = :buyer
   AND (coalesce(e.starts_at, e.sale_closes_at) IS NULL OR coalesce(e.starts_at, e.sale_closes_at) > :now)
 ORDER BY 1, 5;

-- name: find_bookings
-- Also those of an erasure before, by the same pseudonym.
SELECT id, event_id FROM bookings WHERE buyer IN (:buyer, :alias);

-- name: find_payments
-- All of these bookings.
SELECT id FROM payments WHERE booking_id IN (SELECT value FROM json_each(:bookings));

-- name: find_entries
-- An entry about a repeated request has no booking in its column; those of an event have an index of their own.
SELECT id FROM journal WHERE booking_id IN (SELECT value FROM json_each(:bookings))
 UNION
SELECT id FROM journal WHERE key IS NOT NULL AND caller IN (SELECT value FROM json_each(:callers))
 UNION
SELECT id FROM journal
 WHERE event_id IN (SELECT value FROM json_each(:events)) AND booking_id IS NULL
   AND json_extract(facts, '$.booking_id') IN (SELECT value FROM json_each(:bookings));

-- name: erase_outside_payments
-- Before the bookings, which name them.
UPDATE outside_payments SET payment_id = unname(payment_id, 'payment_id')
 WHERE (payment_id, booking_id) IN (SELECT b.payment_id, b.id FROM bookings b
                                     WHERE b.id IN (SELECT value FROM json_each(:bookings)) AND b.payment_id IS NOT NULL)
   AND payment_id <> unname(payment_id, 'payment_id');

-- name: erase_bookings
-- With what the shop wrote about the money.
UPDATE bookings
   SET buyer = :alias, payment_id = unname(payment_id, 'payment_id'),
       payment_method = nullif(unname(payment_method, 'payment_method'), '')
 WHERE id IN (SELECT value FROM json_each(:bookings)) AND buyer = :buyer;

-- name: erase_payments
-- Only those that name the buyer. What a refund is asked for by stays: of an account, the payment's reference to it; of every
-- payment, the gateway's code.
UPDATE payments
   SET method = CASE gateway WHEN 'balance' THEN method ELSE unname(method, 'method') END,
       message = nullif(unname(message, 'message'), ''), action = unname_json(action),
       return_url = nullif(unname(return_url, 'return_url'), '')
 WHERE id IN (SELECT value FROM json_each(:payments))
   AND (method, message, action, return_url)
       IS NOT
       (CASE gateway WHEN 'balance' THEN method ELSE unname(method, 'method') END, nullif(unname(message, 'message'), ''),
        unname_json(action), nullif(unname(return_url, 'return_url'), ''));

-- name: erase_refunds
-- With what the shop wrote about the refund.
UPDATE refunds SET reason = nullif(unname(reason, 'reason'), '')
 WHERE payment_id IN (SELECT value FROM json_each(:payments))
   AND reason IS NOT nullif(unname(reason, 'reason'), '');

-- name: erase_payment_keys
-- By whom the key was chosen, and what it opened.
UPDATE payment_keys SET caller = unname(caller, 'caller'), key = unname(key, 'key')
 WHERE (caller IN (SELECT value FROM json_each(:callers)) OR payment_id IN (SELECT value FROM json_each(:payments)))
   AND (caller, key) IS NOT (unname(caller, 'caller'), unname(key, 'key'));

-- name: erase_payers
-- Of both modes.
UPDATE payers SET buyer = :alias WHERE mode IN ('test', 'live') AND buyer = :buyer;

-- name: erase_totals
-- A total counts the bookings of one name.
UPDATE buyer_totals SET buyer = :alias WHERE event_id IN (SELECT value FROM json_each(:events)) AND buyer = :buyer;

-- name: count_answers
-- How many of the entries remember an answer that names the buyer.
SELECT count(*) FROM journal
 WHERE id IN (SELECT value FROM json_each(:entries)) AND answer_body IS NOT unname_bytes(answer_body);

-- name: erase_journal
-- What happened stays; who the buyer was does not.
UPDATE journal
   SET actor = unname(actor, 'actor'), reason = nullif(unname(reason, 'reason'), ''), facts = unname_json(facts),
       caller = unname(caller, 'caller'), key = unname(key, 'key'), answer_body = unname_bytes(answer_body)
 WHERE id IN (SELECT value FROM json_each(:entries))
   AND (actor, reason, facts, caller, key, answer_body)
       IS NOT
       (unname(actor, 'actor'), nullif(unname(reason, 'reason'), ''), unname_json(facts), unname(caller, 'caller'),
        unname(key, 'key'), unname_bytes(answer_body));

-- name: erase_deliveries
-- What waits is sent with the pseudonym, and what was sent is the log.
UPDATE deliveries SET body = unname_bytes(body), error = nullif(unname(error, 'error'), '')
 WHERE entry_id IN (SELECT value FROM json_each(:entries))
   AND (body, error) IS NOT (unname_bytes(body), nullif(unname(error, 'error'), ''));

-- name: erase_contacts
-- A name and an address have no pseudonym: they go.
DELETE FROM booking_contacts WHERE booking_id IN (SELECT value FROM json_each(:bookings));

-- name: erase_mails
-- What is not sent yet. A mail that was sent names no buyer.
DELETE FROM mails WHERE booking_id IN (SELECT value FROM json_each(:bookings)) AND state = 'pending';

-- name: erase_mail_hashes
-- Of those that were sent: a hash of a name that is known can be found.
UPDATE mails SET recipient_hash = NULL, buyer_hash = NULL WHERE booking_id IN (SELECT value FROM json_each(:bookings));
