-- expand
-- Who wants to be called, and what waits to be delivered: one row for each entry and each webhook that wants to hear of it,
-- written in the transaction that gives the entry its number. When it is delivered or has failed, it is the log.

CREATE TABLE webhooks (
    id               uuid        PRIMARY KEY,
    live             boolean     NOT NULL,
    url              text        NOT NULL,
    -- Nothing but these; empty is everything.
    types            text[]      NOT NULL,
    event_id         text COLLATE "C",
    description      text,
    secret           text        NOT NULL,
    old_secret       text,
    old_secret_until timestamptz,
    created_at       timestamptz NOT NULL,
    disabled_at      timestamptz,
    disabled_because text,
    failing_since    timestamptz,
    resting_until    timestamptz,
    version          integer     NOT NULL DEFAULT 1
);

CREATE TABLE deliveries (
    id         uuid        PRIMARY KEY,
    number     bigint      GENERATED ALWAYS AS IDENTITY,
    webhook_id uuid        NOT NULL REFERENCES webhooks ON DELETE CASCADE,
    entry_id   uuid,
    type       text        NOT NULL,
    -- Kept, so that every try sends the same bytes.
    body       bytea       NOT NULL,
    state      text        NOT NULL DEFAULT 'pending',
    created_at timestamptz NOT NULL,
    due_at     timestamptz NOT NULL,
    attempts   integer     NOT NULL DEFAULT 0,
    first_at   timestamptz,
    tried_at   timestamptz,
    ended_at   timestamptz,
    status     integer,
    error      text,
    took_ms    integer,
    CONSTRAINT delivery_state_is_known CHECK (state IN ('pending', 'delivered', 'failed')),
    CONSTRAINT delivery_ends_when_it_does CHECK ((state = 'pending') = (ended_at IS NULL)),
    -- An entry is queued once for each webhook.
    CONSTRAINT entry_is_queued_once UNIQUE (webhook_id, entry_id)
);

-- The courier's two ways to what waits: who has something due, and what of theirs comes first.
CREATE INDEX deliveries_due ON deliveries (webhook_id, due_at) WHERE state = 'pending';
CREATE INDEX deliveries_in_line ON deliveries (webhook_id, number) WHERE state = 'pending';
-- The log, newest first, and what of it is old.
CREATE INDEX deliveries_log ON deliveries (webhook_id, number);
CREATE INDEX deliveries_ended ON deliveries (ended_at) WHERE ended_at IS NOT NULL;
