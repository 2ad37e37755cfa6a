-- expand
-- When the gateway's decision was recorded: of a payment that it took, set aside, let go or declined; of a refund that it
-- made or refused. Null where it has not decided, and of what was decided before this column was there.
ALTER TABLE payments ADD COLUMN processed_at integer;
ALTER TABLE refunds ADD COLUMN processed_at integer;
