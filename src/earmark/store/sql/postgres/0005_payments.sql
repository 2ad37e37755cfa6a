-- expand
-- The money: what was asked of a gateway for a booking, what goes back, and what gateways called about.
-- A payment is written before its gateway is called, so that whoever dies in between leaves a row that says so.

ALTER TABLE events ADD COLUMN on_decline text NOT NULL DEFAULT 'keep';

CREATE TABLE payments (
    id         uuid        PRIMARY KEY,
    booking_id uuid        NOT NULL,
    event_id   text COLLATE "C" NOT NULL,
    live       boolean     NOT NULL,
    gateway    text        NOT NULL,
    method     text        NOT NULL,
    amount     bigint      NOT NULL,
    currency   text        NOT NULL,
    automatic  boolean     NOT NULL,
    created_at timestamptz NOT NULL,
    state      text        NOT NULL,
    gateway_id text,
    captured   bigint      NOT NULL DEFAULT 0,
    refunding  bigint      NOT NULL DEFAULT 0,
    refunded   bigint      NOT NULL DEFAULT 0,
    code       text,
    message    text,
    action     jsonb,
    return_url text,
    due_at     timestamptz,
    tries      integer     NOT NULL DEFAULT 0,
    version    integer     NOT NULL DEFAULT 1
);

CREATE INDEX payments_by_booking ON payments (booking_id, id);
-- The reconciler's way to what somebody has to look at.
CREATE INDEX payments_due ON payments (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX payments_needing_attention ON payments (created_at) WHERE state = 'needs_attention';

CREATE TABLE refunds (
    id         uuid        PRIMARY KEY,
    payment_id uuid        NOT NULL REFERENCES payments,
    booking_id uuid        NOT NULL,
    amount     bigint      NOT NULL,
    created_at timestamptz NOT NULL,
    reason     text,
    state      text        NOT NULL,
    gateway_id text,
    code       text
);

CREATE INDEX refunds_by_payment ON refunds (payment_id, created_at, id);

-- Remembered for good: the same event may be called about in three days, or three years.
CREATE TABLE callbacks (
    gateway    text COLLATE "C" NOT NULL,
    id         text COLLATE "C" NOT NULL,
    payment_id uuid        NOT NULL REFERENCES payments,
    at         timestamptz NOT NULL,
    PRIMARY KEY (gateway, id)
);
