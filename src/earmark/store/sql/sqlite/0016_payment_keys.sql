-- expand
-- Which payment an idempotency key opened, and by which request: written with the payment, so that another request with the
-- same key is refused from that moment on, by any process. What the key is answered is only known when the payment ends.
CREATE TABLE payment_keys (
    caller       text    NOT NULL,
    key          text    NOT NULL,
    request_hash blob    NOT NULL,
    payment_id   text    NOT NULL,
    opened_at    integer NOT NULL,
    PRIMARY KEY (caller, key)
) WITHOUT ROWID;
