-- expand
-- Which payment an idempotency key opened, and by which request: written with the payment, so that another request with the
-- same key is refused from that moment on, by any process. What the key is answered is only known when the payment ends.
-- No foreign key: payments are never deleted, and one would lock them while this is applied.
CREATE TABLE payment_keys (
    caller       text COLLATE "C" NOT NULL,
    key          text COLLATE "C" NOT NULL,
    request_hash bytea       NOT NULL,
    payment_id   uuid        NOT NULL,
    opened_at    timestamptz NOT NULL,
    PRIMARY KEY (caller, key)
);
