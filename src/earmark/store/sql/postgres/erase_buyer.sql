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
ANALYZE bookings, buyer_totals, journal, payers, payments, payment_keys, deliveries;
