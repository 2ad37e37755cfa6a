-- expand
-- Who wants to be called, and what waits to be delivered: one row for each entry and each webhook that wants to hear of it,
-- written in the transaction that gives the entry its number. When it is delivered or has failed, it is the log.

CREATE TABLE webhooks (
    id               text PRIMARY KEY,
    live             integer NOT NULL,
    url              text    NOT NULL,
    -- A JSON list. Nothing but these; empty is everything.
    types            text    NOT NULL,
    event_id         text,
    description      text,
    secret           text    NOT NULL,
    old_secret       text,
    old_secret_until integer,
    created_at       integer NOT NULL,
    disabled_at      integer,
    disabled_because text,
    failing_since    integer,
    resting_until    integer,
    version          integer NOT NULL DEFAULT 1
) WITHOUT ROWID;

CREATE TABLE deliveries (
    number     integer PRIMARY KEY AUTOINCREMENT,
    id         text    NOT NULL UNIQUE,
    webhook_id text    NOT NULL REFERENCES webhooks ON DELETE CASCADE,
    entry_id   text,
    type       text    NOT NULL,
    -- Kept, so that every try sends the same bytes.
    body       blob    NOT NULL,
    state      text    NOT NULL DEFAULT 'pending',
    created_at integer NOT NULL,
    due_at     integer NOT NULL,
    attempts   integer NOT NULL DEFAULT 0,
    first_at   integer,
    tried_at   integer,
    ended_at   integer,
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
