-- expand
-- The money: what was asked of a gateway for a booking, what goes back, and what gateways called about.
-- A payment is written before its gateway is called, so that whoever dies in between leaves a row that says so.

ALTER TABLE events ADD COLUMN on_decline text NOT NULL DEFAULT 'keep';

CREATE TABLE payments (
    id         text    NOT NULL PRIMARY KEY,
    booking_id text    NOT NULL REFERENCES bookings,
    event_id   text    NOT NULL,
    live       integer NOT NULL,
    gateway    text    NOT NULL,
    method     text    NOT NULL,
    amount     integer NOT NULL,
    currency   text    NOT NULL,
    automatic  integer NOT NULL,
    created_at integer NOT NULL,
    state      text    NOT NULL,
    gateway_id text,
    captured   integer NOT NULL DEFAULT 0,
    refunding  integer NOT NULL DEFAULT 0,
    refunded   integer NOT NULL DEFAULT 0,
    code       text,
    message    text,
    action     text,
    return_url text,
    due_at     integer,
    tries      integer NOT NULL DEFAULT 0,
    version    integer NOT NULL DEFAULT 1
) WITHOUT ROWID;

CREATE INDEX payments_by_booking ON payments (booking_id, id);
-- The reconciler's way to what somebody has to look at.
CREATE INDEX payments_due ON payments (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX payments_needing_attention ON payments (created_at) WHERE state = 'needs_attention';

CREATE TABLE refunds (
    id         text    NOT NULL PRIMARY KEY,
    payment_id text    NOT NULL REFERENCES payments,
    booking_id text    NOT NULL REFERENCES bookings,
    amount     integer NOT NULL,
    created_at integer NOT NULL,
    reason     text,
    state      text    NOT NULL,
    gateway_id text,
    code       text
) WITHOUT ROWID;

CREATE INDEX refunds_by_payment ON refunds (payment_id, created_at, id);

-- Remembered for good: the same event may be called about in three days, or three years.
CREATE TABLE callbacks (
    gateway    text    NOT NULL,
    id         text    NOT NULL,
    payment_id text    NOT NULL REFERENCES payments,
    at         integer NOT NULL,
    PRIMARY KEY (gateway, id)
) WITHOUT ROWID;
