-- name: describe_session
-- Whether the session's role owns the tables, and what it is called.
SELECT current_user AS role, pg_has_role(current_user, c.relowner, 'MEMBER') AS is_owner, pg_get_userbyid(c.relowner) AS owner
  FROM pg_class c WHERE c.oid = to_regclass('bookings');

-- name: erase_buyer
-- The one function that the guards make an exception for.
SELECT what, changed FROM earmark_erase_buyer($1, $2, statement_timestamp() + $3::interval, $4::text[]);

-- name: find_obstacles
-- Why it changed nothing.
SELECT booking_id, event_id, mode, why FROM earmark_erasure_obstacles($1, statement_timestamp() + $2::interval) LIMIT 1000;

-- name: has_bookings
-- Whether a request that ran meanwhile has made a booking of this buyer.
SELECT EXISTS (SELECT FROM bookings WHERE buyer = $1);

-- name: renew_statistics
-- The planner's samples hold frequent names.
ANALYZE bookings, buyer_totals, journal, payers, payments, payment_keys, deliveries, booking_contacts;

-- name: erase_contacts
-- After the function, in its transaction: it has locked the bookings, so no contact of theirs is being written, and they have the
-- pseudonym. A name and an address have none: they go, and what is not sent yet. A mail that was sent names no buyer,
-- and its hashes go: a hash of a name that is known can be found.
WITH own AS MATERIALIZED (
    SELECT id FROM bookings WHERE buyer = $1
), contacts AS (
    DELETE FROM booking_contacts c USING own WHERE c.booking_id = own.id RETURNING c.booking_id
), unsent AS (
    DELETE FROM mails m USING own WHERE m.booking_id = own.id AND m.state = 'pending' RETURNING m.id
), hashes AS (
    UPDATE mails m SET recipient_hash = NULL, buyer_hash = NULL FROM own WHERE m.booking_id = own.id AND m.state <> 'pending'
)
SELECT 'contacts' AS what, count(*) AS changed FROM contacts UNION ALL SELECT 'unsent mails', count(*) FROM unsent;
