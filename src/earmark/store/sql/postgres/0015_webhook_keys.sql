-- expand
-- What a request about webhooks did, by its idempotency key: which webhook it made or changed. Its answer has a secret in it
-- and is not kept: it is worded anew from the webhook. No foreign key: that a webhook was removed does not undo that it was made.
CREATE TABLE webhook_keys (
    caller       text COLLATE "C" NOT NULL,
    key          text COLLATE "C" NOT NULL,
    request_hash bytea       NOT NULL,
    webhook_id   uuid        NOT NULL,
    status       integer     NOT NULL,
    done_at      timestamptz NOT NULL,
    PRIMARY KEY (caller, key)
);

-- The janitor's way to what is old.
CREATE INDEX webhook_keys_done ON webhook_keys (done_at);
