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

-- Which payments a buyer opened lately, by id with the time: how often a buyer is declined is counted among these. The row is
-- locked by the transaction that opens a payment, so that payments which are opened at once count each other.
CREATE TABLE payers (
    live  integer NOT NULL,
    buyer text NOT NULL,
    tries text NOT NULL,
    PRIMARY KEY (live, buyer)
) WITHOUT ROWID;
