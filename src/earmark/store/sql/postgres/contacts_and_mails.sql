-- Contacts of bookings, and the mails about them. A transaction that changes both locks the booking first.

-- name: read_contact
-- By key.
SELECT booking_id, name, email, language FROM booking_contacts WHERE booking_id = $1;

-- name: lock_booking_of_contact
-- A shared lock: the booking may neither end nor be erased before the contact is written, and contacts of other bookings do not
-- wait. After a wait the row is compared again: an erasure that came first has renamed its buyer.
SELECT id FROM bookings
 WHERE id = $1 AND buyer = $2 AND (state IN ('paying', 'confirmed') OR (state = 'held' AND expires_at > $3))
   FOR SHARE;

-- name: find_mailed
-- Whether a mail about the booking waits or was sent; or may have been, so long ago that it is not kept any more.
SELECT id FROM mails WHERE booking_id = $1 AND state IN ('pending', 'sent')
 UNION ALL
SELECT id FROM bookings WHERE id = $1 AND confirmed_at < $2::timestamptz
 LIMIT 1;

-- name: save_contact
-- No row changed means that it was the same.
INSERT INTO booking_contacts AS c (booking_id, name, email, language, created_at, changed_at)
VALUES ($1, $2, $3, $4, $5, $5)
ON CONFLICT (booking_id) DO UPDATE
   SET name = excluded.name, email = excluded.email, language = excluded.language, changed_at = excluded.changed_at
 WHERE (c.name, c.email, c.language) IS DISTINCT FROM (excluded.name, excluded.email, excluded.language);

-- name: find_confirmation
-- The entry by which the booking became a sale, the last one if it did so twice.
SELECT j.id FROM journal j JOIN bookings b ON b.id = j.booking_id AND b.state = 'confirmed'
 WHERE j.booking_id = $1 AND j.after = 'confirmed' AND j.before IS DISTINCT FROM 'confirmed'
 ORDER BY j.version DESC LIMIT 1;

-- name: queue_mails
-- For bookings that have a contact. What is there already stays as it is: an entry makes one mail.
INSERT INTO mails (id, booking_id, entry_id, kind, created_at, due_at)
SELECT q.id, q.booking_id, q.entry_id, q.kind, $2::timestamptz, $2::timestamptz
  FROM jsonb_to_recordset($1::text::jsonb) AS q (id uuid, booking_id uuid, entry_id uuid, kind text)
  JOIN booking_contacts c ON c.booking_id = q.booking_id
ON CONFLICT DO NOTHING;

-- name: send_mail_again
-- To an address that was corrected: as if it had just been queued.
UPDATE mails SET state = 'pending', due_at = $2, tries = 0, ended_at = NULL, error = NULL
 WHERE id = $1 AND (state IN ('failed', 'skipped') OR ($3::boolean AND state = 'sent'));

-- name: find_due_mail
-- Whether a claim would find anything.
SELECT id FROM mails WHERE state = 'pending' AND due_at <= $1 LIMIT 1;

-- name: claim_mails
-- The longest due first. Due again when the lease is over. Passes over what another mailer is claiming.
UPDATE mails m SET due_at = $2, tries = m.tries + 1, tried_at = $1
 WHERE m.id IN (SELECT d.id FROM mails d WHERE d.state = 'pending' AND d.due_at <= $1
                 ORDER BY d.due_at LIMIT $3 FOR UPDATE SKIP LOCKED)
RETURNING m.id, m.booking_id, m.entry_id, m.kind, m.tries;

-- name: find_recipients
-- Whom mails about these bookings go to, and whose bookings they are.
SELECT b.id AS booking_id, b.mode, b.buyer, c.email
  FROM bookings b JOIN booking_contacts c ON c.booking_id = b.id
 WHERE b.id IN (SELECT value::uuid FROM jsonb_array_elements_text($1::text::jsonb));

-- name: note_recipients
-- Of mails that this transaction has leased: no other changes them.
UPDATE mails m SET recipient_hash = q.recipient, buyer_hash = q.buyer
  FROM jsonb_to_recordset($1::text::jsonb) AS q (id uuid, recipient text, buyer text) WHERE m.id = q.id;

-- name: find_above_limits
-- Which of these leased mails are above a limit. Other mails since $2 count if they were tried; of those that are still being sent, the ones
-- that were leased before, or with a smaller id in the same lease. Each count ends at its limit.
SELECT m.id,
       CASE WHEN (SELECT count(*) FROM (
                   SELECT FROM mails o
                    WHERE o.recipient_hash = m.recipient_hash AND o.tried_at > $2 AND o.tries > 0 AND o.state <> 'skipped'
                      AND o.id <> m.id AND (o.state <> 'pending' OR (o.tried_at, o.id) < (m.tried_at, m.id))
                    LIMIT $3::bigint) AS few) >= $3 THEN 'recipient_limit'
            WHEN (SELECT count(*) FROM (
                   SELECT FROM mails o
                    WHERE o.buyer_hash = m.buyer_hash AND o.tried_at > $2 AND o.tries > 0 AND o.state <> 'skipped'
                      AND o.id <> m.id AND (o.state <> 'pending' OR (o.tried_at, o.id) < (m.tried_at, m.id))
                    LIMIT $4::bigint) AS few) >= $4 THEN 'buyer_limit' END AS why
  FROM mails m WHERE m.id IN (SELECT value::uuid FROM jsonb_array_elements_text($1::text::jsonb));

-- name: record_mail
-- A failure counts unless another mailer has claimed the mail since; a success always does. What was not tried is as before.
UPDATE mails
   SET state = $3, due_at = $4, ended_at = CASE WHEN $3 = 'pending' THEN NULL ELSE $5::timestamptz END,
       tries = tries - CASE WHEN $6::boolean THEN 0 ELSE 1 END, error = CASE WHEN $6 THEN $7 ELSE error END
 WHERE id = $1 AND state = 'pending' AND ($3 = 'sent' OR tries = $2);

-- name: count_mails
-- For metrics and `earmark doctor`, each counted up to a limit.
SELECT (SELECT count(*) FROM (SELECT FROM mails WHERE state = 'pending' LIMIT $1) AS few) AS pending,
       (SELECT min(w.created_at)
          FROM (SELECT created_at FROM mails WHERE state = 'pending' ORDER BY due_at LIMIT $1) AS w) AS oldest_at,
       (SELECT count(*) FROM (SELECT FROM mails WHERE state = 'failed' LIMIT $1) AS few) AS failed,
       (SELECT count(*)
          FROM (SELECT FROM mails WHERE state = 'skipped' AND error IN ('recipient_limit', 'buyer_limit') LIMIT $1) AS few
       ) AS above_limit;

-- name: prune_mails
-- What ended long ago, a bounded number at a time. What another janitor is removing is left for the next time.
DELETE FROM mails
 WHERE id IN (SELECT m.id FROM mails m WHERE m.ended_at < $1 ORDER BY m.ended_at LIMIT $2 FOR UPDATE SKIP LOCKED);
