-- What the weighing of a server asks the database.

-- name: count_holds
-- Every hold that was ever made, whatever became of it since.
SELECT count(*) FROM journal WHERE verb = 'hold';

-- name: count_retired
-- The events whose sale is over.
SELECT count(*) FROM events WHERE sale_closes_at <= statement_timestamp();
