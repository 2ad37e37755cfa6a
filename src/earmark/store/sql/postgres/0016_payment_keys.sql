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

-- Which payments a buyer opened lately, by id with the time: how often a buyer is declined is counted among these. The row is
-- locked by the transaction that opens a payment, so that payments which are opened at once count each other.
CREATE TABLE payers (
    live  boolean NOT NULL,
    buyer text COLLATE "C" NOT NULL,
    tries jsonb NOT NULL,
    PRIMARY KEY (live, buyer)
);
