-- What pgbench needs beside the statements of the strategy.

-- name: made_id
-- It has no UUIDs of its own: the database makes one, in a part of the statement called `made`, and this refers to it.
(SELECT made.booking_id FROM made);
