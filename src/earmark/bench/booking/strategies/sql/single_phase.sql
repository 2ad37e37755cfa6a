-- Sold at once, with the locks of `for_update_in_two_statements`.

-- name: mark_sold
-- The schema knows no booking that begins as a sale, so that this one is held for the length of its own transaction.
UPDATE bookings SET state = 'confirmed', confirmed_at = $2 WHERE id = $1;

-- name: attach_payment
-- The payment of a sale.
UPDATE bookings SET payment_id = $2, version = $3 WHERE id = $1;

-- name: lock_sold
-- No other transaction attaches a payment meanwhile.
SELECT statement_timestamp() AS now, b.* FROM bookings b WHERE b.id = $1 AND b.state = 'confirmed' FOR UPDATE;
