-- expand
-- What a look at a seat brings, with the names that the event's plan gives it: a booking names its seats by them.
-- A type of its own, for older servers go on to use the one without them.
CREATE TYPE earmark_seat_named AS (
    n integer, price bigint, blocked boolean, booking_id uuid, fence integer,
    owner_state text, owner_expires_at timestamptz, owner_buyer text,
    row_name text, number integer, section text, category text
);

-- When the gateway's decision was recorded: of a payment that it took, set aside, let go or declined; of a refund that it
-- made or refused. Null where it has not decided, and of what was decided before this column was there.
ALTER TABLE payments ADD COLUMN processed_at timestamptz;
ALTER TABLE refunds ADD COLUMN processed_at timestamptz;
