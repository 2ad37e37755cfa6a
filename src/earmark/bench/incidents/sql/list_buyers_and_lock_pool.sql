-- What the incidents need of the database.

-- name: list_buyers
-- Every request has a buyer of its own, so a row says that this request took effect. All rows: each is compared.
SELECT buyer FROM bookings WHERE event_id = ANY ($1::text[]);

-- name: lock_pool
-- As a long report or a stuck session does: it locks the row that every hold of this event must write.
SELECT capacity FROM pools WHERE event_id = $1 FOR UPDATE;
