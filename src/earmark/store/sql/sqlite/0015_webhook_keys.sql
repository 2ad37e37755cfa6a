-- expand
-- What a request about webhooks did, by its idempotency key: which webhook it made or changed. Its answer has a secret in it
-- and is not kept: it is worded anew from the webhook. No foreign key: that a webhook was removed does not undo that it was made.
CREATE TABLE webhook_keys (
    caller       text    NOT NULL,
    key          text    NOT NULL,
    request_hash blob    NOT NULL,
    webhook_id   text    NOT NULL,
    status       integer NOT NULL,
    done_at      integer NOT NULL,
    PRIMARY KEY (caller, key)
) WITHOUT ROWID;

-- The janitor's way to what is old.
CREATE INDEX webhook_keys_done ON webhook_keys (done_at);
