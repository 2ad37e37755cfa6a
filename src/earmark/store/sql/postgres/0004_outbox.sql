-- expand
-- The journal as an outbox: which entries nobody has numbered yet, and which numbers were given.

-- What is unsent, for the relay and for a look at one event. By event alone: equal keys are folded into one index
-- entry, so it costs a booking least (a twentieth to a tenth of writing the entry) and stays a page or two while a relay
-- keeps up.
CREATE INDEX journal_unsent ON journal (event_id) WHERE sequence IS NULL;

-- An event's newest number, and its story from any number on. Bookings do not pay for it: their entries are unsent.
-- A number is given once.
CREATE UNIQUE INDEX journal_by_number ON journal (event_id, sequence) WHERE sequence IS NOT NULL;
