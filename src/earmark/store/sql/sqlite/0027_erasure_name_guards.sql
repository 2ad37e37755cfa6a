-- expand
-- The functions that erase a buyer are PostgreSQL's. Here `store/sqlite/erasure.py` has the same rule, and one transaction, for
-- which sales wait: it finds the entries about repeated requests by this index, and does not read all entries of an event.
CREATE INDEX journal_without_booking ON journal (event_id) WHERE booking_id IS NULL;
