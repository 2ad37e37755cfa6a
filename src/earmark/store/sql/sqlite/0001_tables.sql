-- expand
-- The tables, by subject, and the rules that stand with their table in every database. The rules that a test or a benchmark can
-- leave out are in `0002_guards.sql`.
--
-- Moments are whole microseconds since 1970 in UTC, so that they compare as numbers. Ids are UUIDs in lower-case text, which sort
-- as their bytes do: by age. True and false are 1 and 0. A table WITHOUT ROWID has one key, hence one way to a row.

-- What is sold ------------------------------------------------------------------------------------------------------------------

-- An event: what is sold into, with its currency, its sale window, its limits, and its rules for declines and refunds.
CREATE TABLE events (
    id                   text    NOT NULL PRIMARY KEY,
    name                 text    NOT NULL,
    currency             text    NOT NULL,
    mode                 text    NOT NULL CONSTRAINT event_mode_known CHECK (mode IN ('test', 'live')),
    created_at           integer NOT NULL,
    starts_at            integer,
    sale_opens_at        integer,
    sale_closes_at       integer,
    hold_ttl_seconds     integer,
    per_buyer_max        integer,
    version              integer NOT NULL DEFAULT 1,
    -- What becomes of a hold whose payment is declined: `keep` or `release`.
    on_decline           text    NOT NULL DEFAULT 'keep',
    -- What a cancelled sale gives back: until how long before the start, and less which fee.
    refund_until_seconds integer
        CONSTRAINT refund_window_not_negative
        CHECK (refund_until_seconds IS NULL OR (typeof(refund_until_seconds) = 'integer' AND refund_until_seconds >= 0)),
    refund_fee_percent   integer NOT NULL DEFAULT 0
        CONSTRAINT refund_fee_is_a_percentage
        CHECK (typeof(refund_fee_percent) = 'integer' AND refund_fee_percent BETWEEN 0 AND 100),
    refund_fee_fixed     integer NOT NULL DEFAULT 0
        CONSTRAINT refund_fee_not_negative
        CHECK (typeof(refund_fee_fixed) = 'integer' AND refund_fee_fixed >= 0)
) WITHOUT ROWID;

-- A named unit of an event. It points to a booking, and is taken while that booking is active.
CREATE TABLE seats (
    event_id   text    NOT NULL REFERENCES events,
    id         text    NOT NULL,
    price      integer NOT NULL,
    blocked    integer NOT NULL DEFAULT 0,
    booking_id text    REFERENCES bookings,
    fence      integer NOT NULL DEFAULT 0,
    position   integer NOT NULL,
    row_name   text,
    number     integer,
    section    text,
    category   text,
    x          real,
    y          real,
    PRIMARY KEY (event_id, id)
) WITHOUT ROWID;

-- A counted unit of an event: general admission, or a product in stock.
CREATE TABLE pools (
    event_id text    NOT NULL REFERENCES events,
    id       text    NOT NULL,
    capacity integer NOT NULL,
    held     integer NOT NULL DEFAULT 0,
    sold     integer NOT NULL DEFAULT 0,
    price    integer NOT NULL,
    position integer NOT NULL,
    PRIMARY KEY (event_id, id)
) WITHOUT ROWID;

-- Bookings ----------------------------------------------------------------------------------------------------------------------

-- One buyer's claim on seats and units of one event. Its state decides whether its seats are taken.
CREATE TABLE bookings (
    id             text    NOT NULL PRIMARY KEY,
    event_id       text    NOT NULL REFERENCES events,
    buyer          text    NOT NULL,
    mode           text    NOT NULL CONSTRAINT booking_mode_known CHECK (mode IN ('test', 'live')),
    state          text    NOT NULL,
    lines          text    NOT NULL,
    total          integer NOT NULL,
    currency       text    NOT NULL,
    created_at     integer NOT NULL,
    expires_at     integer NOT NULL,
    paying_until   integer,
    confirmed_at   integer,
    ended_at       integer,
    payment_id     text,
    payment_method text,
    version        integer NOT NULL DEFAULT 1
) WITHOUT ROWID;

-- For the sweeper: the holds whose time is over.
CREATE INDEX bookings_due ON bookings (expires_at) WHERE state = 'held';
-- For the two lists that the API offers: a buyer's bookings, and an event's.
CREATE INDEX bookings_by_buyer ON bookings (buyer, id);
CREATE INDEX bookings_by_event ON bookings (event_id, id);

-- How many units of an event one buyer has: a row that every verb changes, because a count over bookings would be a race.
CREATE TABLE buyer_totals (
    event_id text    NOT NULL REFERENCES events,
    buyer    text    NOT NULL,
    units    integer NOT NULL,
    PRIMARY KEY (event_id, buyer)
) WITHOUT ROWID;

-- Which booking a payment confirmed that the shop took elsewhere: one reference confirms one booking of its mode.
CREATE TABLE outside_payments (
    payment_id text NOT NULL,
    booking_id text NOT NULL REFERENCES bookings,
    mode       text    NOT NULL CONSTRAINT outside_payment_mode_known CHECK (mode IN ('test', 'live')),
    PRIMARY KEY (payment_id, mode)
) WITHOUT ROWID;

-- One row per change: audit entry, outbox row (unpublished while it has no sequence) and idempotency record.
CREATE TABLE journal (
    id              text    NOT NULL PRIMARY KEY,
    event_id        text    NOT NULL,
    booking_id      text,
    version         integer NOT NULL,
    verb            text    NOT NULL,
    before          text,
    after           text,
    actor           text    NOT NULL,
    reason          text,
    at              integer NOT NULL,
    facts           text    NOT NULL,
    caller          text,
    key             text,
    request_hash    blob,
    answer_status   integer,
    answer_body     blob,
    sequence        integer
) WITHOUT ROWID;

CREATE UNIQUE INDEX journal_by_booking ON journal (booking_id, version) WHERE booking_id IS NOT NULL;
CREATE UNIQUE INDEX journal_by_key ON journal (caller, key) WHERE key IS NOT NULL;
-- The unpublished entries, for the relay and for a look at one event.
CREATE INDEX journal_unsent ON journal (event_id) WHERE sequence IS NULL;
-- An event's newest number, and its entries from any number on. A number is given once.
CREATE UNIQUE INDEX journal_by_number ON journal (event_id, sequence) WHERE sequence IS NOT NULL;
-- For the erasure of a buyer, for which sales wait: the entries about repeated requests.
CREATE INDEX journal_without_booking ON journal (event_id) WHERE booking_id IS NULL;

-- Payments ----------------------------------------------------------------------------------------------------------------------

-- One attempt to take money for a booking at a gateway. Written before the gateway is called, so that a process that dies in
-- between leaves a row from which a worker continues.
CREATE TABLE payments (
    id         text    NOT NULL PRIMARY KEY,
    booking_id text    NOT NULL REFERENCES bookings,
    event_id   text    NOT NULL,
    mode       text    NOT NULL CONSTRAINT payment_mode_known CHECK (mode IN ('test', 'live')),
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
    version    integer NOT NULL DEFAULT 1,
    -- What an operator gave back at the gateway's own page, as the gateway lists it. Earmark owes nothing for it.
    refunded_elsewhere integer NOT NULL DEFAULT 0,
    -- When the gateway's decision was recorded: captured, authorised, voided or declined. NULL while it has not decided.
    processed_at integer
) WITHOUT ROWID;

CREATE INDEX payments_by_booking ON payments (booking_id, id);
-- For the reconciler: the payments that it has to look up.
CREATE INDEX payments_due ON payments (due_at) WHERE due_at IS NOT NULL;
-- For the operator: the payments that need a decision.
CREATE INDEX payments_needing_attention ON payments (created_at) WHERE state = 'needs_attention';

-- Money that goes back of a payment, one row per refund, written before the gateway is called.
CREATE TABLE refunds (
    id         text    NOT NULL PRIMARY KEY,
    payment_id text    NOT NULL REFERENCES payments,
    booking_id text    NOT NULL REFERENCES bookings,
    amount     integer NOT NULL,
    created_at integer NOT NULL,
    reason     text,
    state      text    NOT NULL,
    gateway_id text,
    code       text,
    -- When the gateway's decision was recorded: made or refused. NULL while it has not decided.
    processed_at integer
) WITHOUT ROWID;

CREATE INDEX refunds_by_payment ON refunds (payment_id, created_at, id);

-- The ids of a gateway's callbacks. Kept forever, because a gateway may send the same event again after years.
CREATE TABLE callbacks (
    gateway    text    NOT NULL,
    id         text    NOT NULL,
    payment_id text    NOT NULL REFERENCES payments,
    at         integer NOT NULL,
    PRIMARY KEY (gateway, id)
) WITHOUT ROWID;

-- Which payment an idempotency key opened, and by which request. Written with the payment, so that every process refuses another
-- request with the same key from then on; the key's answer is known only when the payment ends.
CREATE TABLE payment_keys (
    caller       text    NOT NULL,
    key          text    NOT NULL,
    request_hash blob    NOT NULL,
    payment_id   text    NOT NULL,
    opened_at    integer NOT NULL,
    PRIMARY KEY (caller, key)
) WITHOUT ROWID;

-- For the janitor: the keys whose time is over.
CREATE INDEX payment_keys_by_age ON payment_keys (opened_at);
-- For the erasure of a buyer: the keys that opened the buyer's payments.
CREATE INDEX payment_keys_by_payment ON payment_keys (payment_id);

-- Which payments a buyer opened lately, by id with the time, to count declines. The transaction that opens a payment writes the
-- row, so that payments which are opened at once count each other.
CREATE TABLE payers (
    mode     text    NOT NULL CONSTRAINT payer_mode_known CHECK (mode IN ('test', 'live')),
    buyer    text    NOT NULL,
    tries    text    NOT NULL,
    tried_at integer NOT NULL DEFAULT 0,
    PRIMARY KEY (mode, buyer)
) WITHOUT ROWID;

-- For the janitor: the payers whose time is over.
CREATE INDEX payers_by_age ON payers (tried_at);

-- Accounts ----------------------------------------------------------------------------------------------------------------------
-- Their rules stand here with their tables: no database has accounts without them. A REPLACE is refused too.

-- A buyer's credit with the shop, or a gift card. The account's figures are those of its last entry.
CREATE TABLE accounts (
    id         text    NOT NULL PRIMARY KEY,
    currency   text    NOT NULL,
    mode       text    NOT NULL CONSTRAINT account_mode_known CHECK (mode IN ('test', 'live')),
    created_at integer NOT NULL,
    -- That of its last entry.
    number     integer NOT NULL DEFAULT 0,
    balance    integer NOT NULL DEFAULT 0,
    set_aside  integer NOT NULL DEFAULT 0,
    -- The HMAC of the code that opens the account, in hexadecimal digits; the code itself is not stored.
    code_digest text   NOT NULL,
    CONSTRAINT counts_are_integers
        CHECK (typeof(number) = 'integer' AND typeof(balance) = 'integer' AND typeof(set_aside) = 'integer'),
    CONSTRAINT balance_never_negative CHECK (balance >= 0),
    CONSTRAINT set_aside_within_the_balance CHECK (0 <= set_aside AND set_aside <= balance),
    -- A transaction that changes an account has written the entry for it by its end.
    CONSTRAINT account_is_its_last_entry
        FOREIGN KEY (id, number, balance, set_aside) REFERENCES account_entries (account_id, number, balance, set_aside)
        DEFERRABLE INITIALLY DEFERRED
) WITHOUT ROWID;

CREATE UNIQUE INDEX code_opens_one_account ON accounts (code_digest);

-- One attempt to draw from an account, or from one that does not exist; `code` says why nothing was drawn.
CREATE TABLE account_payments (
    id         text    NOT NULL PRIMARY KEY,
    account_id text    NOT NULL,
    currency   text    NOT NULL,
    mode       text    NOT NULL CONSTRAINT draw_mode_known CHECK (mode IN ('test', 'live')),
    amount     integer NOT NULL,
    automatic  integer NOT NULL,
    created_at integer NOT NULL,
    code       text,
    CONSTRAINT draw_asks_for_something CHECK (amount > 0 AND typeof(amount) = 'integer')
) WITHOUT ROWID;

CREATE INDEX account_payments_by_age ON account_payments (created_at, id);

-- What happened to an account. Each entry continues from the one before it and states the balance and the amount set aside since,
-- so the sum of the entries is the balance. An entry is written once and stays.
CREATE TABLE account_entries (
    account_id text    NOT NULL REFERENCES accounts,
    number     integer NOT NULL,
    kind       text    NOT NULL,
    id         text    NOT NULL,
    amount     integer NOT NULL,
    aside      integer NOT NULL,
    balance    integer NOT NULL,
    set_aside  integer NOT NULL,
    at         integer NOT NULL,
    payment_id text    REFERENCES account_payments,
    reason     text,
    PRIMARY KEY (account_id, number),
    -- A repeated request, at the same account or another, has its effect once.
    CONSTRAINT effect_is_there_once UNIQUE (kind, id),
    -- What the foreign key of an account refers to.
    UNIQUE (account_id, number, balance, set_aside),
    CONSTRAINT counts_are_integers CHECK (typeof(amount) = 'integer' AND typeof(aside) = 'integer'),
    CONSTRAINT entry_does_what_it_says CHECK (CASE kind
        WHEN 'opened'     THEN number = 0 AND amount = 0 AND aside = 0 AND balance = 0 AND set_aside = 0
        WHEN 'credited'   THEN amount > 0 AND aside = 0
        WHEN 'set_aside'  THEN amount = 0 AND aside > 0
        WHEN 'let_go'     THEN amount = 0 AND aside < 0
        WHEN 'taken'      THEN amount < 0 AND aside IN (0, amount)
        WHEN 'given_back' THEN amount > 0 AND aside = 0
        ELSE 0 END),
    CONSTRAINT entry_is_of_a_payment CHECK (CASE
        WHEN kind IN ('opened', 'credited') THEN payment_id IS NULL
        WHEN kind = 'given_back' THEN payment_id IS NOT NULL
        ELSE payment_id IS NOT NULL AND id = payment_id END)
) WITHOUT ROWID;

CREATE INDEX account_entries_by_payment ON account_entries (payment_id) WHERE payment_id IS NOT NULL;

CREATE TRIGGER account_begins_empty BEFORE INSERT ON accounts
WHEN NEW.number <> 0 OR NEW.balance <> 0 OR NEW.set_aside <> 0
BEGIN
    SELECT RAISE(ABORT, 'earmark: an account begins with nothing in it (account_begins_empty)');
END;

-- A second insert of the same account is ignored, as the program's own insert is.
CREATE TRIGGER account_is_not_replaced BEFORE INSERT ON accounts
WHEN EXISTS (SELECT 1 FROM accounts a WHERE a.id = NEW.id)
BEGIN
    SELECT RAISE(IGNORE);
END;

-- A REPLACE would remove the account that this code opens: it is ignored too.
CREATE TRIGGER account_code_is_not_replaced BEFORE INSERT ON accounts
WHEN EXISTS (SELECT 1 FROM accounts a WHERE a.code_digest = NEW.code_digest)
BEGIN
    SELECT RAISE(IGNORE);
END;

-- An account moves on by one entry or not at all, and stays the same account.
CREATE TRIGGER account_moves_by_an_entry BEFORE UPDATE ON accounts
WHEN (OLD.id, OLD.currency, OLD.mode, OLD.created_at) IS NOT (NEW.id, NEW.currency, NEW.mode, NEW.created_at)
     OR (NEW.number <> OLD.number + 1
         AND (OLD.number, OLD.balance, OLD.set_aside) IS NOT (NEW.number, NEW.balance, NEW.set_aside))
BEGIN
    SELECT RAISE(ABORT, 'earmark: an account moves on by one entry (account_moves_by_an_entry)');
END;

-- Another code would be another buyer's money.
CREATE TRIGGER account_keeps_its_code BEFORE UPDATE OF code_digest ON accounts
WHEN OLD.code_digest IS NOT NEW.code_digest
BEGIN
    SELECT RAISE(ABORT, 'earmark: an account keeps its code (account_keeps_its_code)');
END;

CREATE TRIGGER account_stays BEFORE DELETE ON accounts
BEGIN
    SELECT RAISE(ABORT, 'earmark: an account stays (account_stays)');
END;

CREATE TRIGGER account_entry_stays BEFORE UPDATE ON account_entries
BEGIN
    SELECT RAISE(ABORT, 'earmark: an entry stays as it is (account_entry_stays)');
END;

CREATE TRIGGER account_entry_is_not_removed BEFORE DELETE ON account_entries
BEGIN
    SELECT RAISE(ABORT, 'earmark: an entry stays as it is (account_entry_stays)');
END;

CREATE TRIGGER account_entry_is_not_replaced BEFORE INSERT ON account_entries
WHEN EXISTS (SELECT 1 FROM account_entries e WHERE e.account_id = NEW.account_id AND e.number = NEW.number)
     OR EXISTS (SELECT 1 FROM account_entries e WHERE e.kind = NEW.kind AND e.id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'earmark: there is such an entry (effect_is_there_once)');
END;

CREATE TRIGGER account_payment_stays BEFORE UPDATE ON account_payments
BEGIN
    SELECT RAISE(ABORT, 'earmark: what was asked stays as it is (account_payment_stays)');
END;

CREATE TRIGGER account_payment_is_not_removed BEFORE DELETE ON account_payments
BEGIN
    SELECT RAISE(ABORT, 'earmark: what was asked stays as it is (account_payment_stays)');
END;

CREATE TRIGGER account_payment_is_not_replaced BEFORE INSERT ON account_payments
WHEN EXISTS (SELECT 1 FROM account_payments p WHERE p.id = NEW.id)
BEGIN
    SELECT RAISE(IGNORE);
END;

-- An entry is what its account has just become, and continues from the entry before it.
CREATE TRIGGER account_is_its_last_entry BEFORE INSERT ON account_entries
WHEN NOT EXISTS (
    SELECT 1 FROM accounts a
     WHERE a.id = NEW.account_id AND (a.number, a.balance, a.set_aside) IS (NEW.number, NEW.balance, NEW.set_aside))
BEGIN
    SELECT RAISE(ABORT, 'earmark: an account is as its last entry says (account_is_its_last_entry)');
END;

CREATE TRIGGER entries_add_up BEFORE INSERT ON account_entries
WHEN NEW.number <> 0 AND NOT EXISTS (
    SELECT 1 FROM account_entries e
     WHERE e.account_id = NEW.account_id AND e.number = NEW.number - 1
       AND (e.balance + NEW.amount, e.set_aside + NEW.aside) IS (NEW.balance, NEW.set_aside))
BEGIN
    SELECT RAISE(ABORT, 'earmark: an entry carries on from the one before it (entries_add_up)');
END;

-- A payment that was accepted is set aside once, then taken or let go, and no more goes back than was taken.
CREATE TRIGGER entry_of_its_payment BEFORE INSERT ON account_entries
WHEN NEW.payment_id IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM account_payments p
     WHERE p.id = NEW.payment_id AND p.account_id = NEW.account_id AND p.code IS NULL
       AND (NEW.kind = 'given_back'
            OR (max(-NEW.amount, abs(NEW.aside)) = p.amount AND (NEW.aside = 0) = p.automatic)))
BEGIN
    SELECT RAISE(ABORT, 'earmark: this is not what the payment asked of this account (entry_of_its_payment)');
END;

CREATE TRIGGER draw_gives_back_what_it_took AFTER INSERT ON account_entries
WHEN NEW.payment_id IS NOT NULL AND (
    SELECT sum(e.amount) > 0 OR sum(e.aside) < 0 FROM account_entries e WHERE e.payment_id = NEW.payment_id)
BEGIN
    SELECT RAISE(ABORT, 'earmark: no more comes back of a payment than was drawn (draw_gives_back_what_it_took)');
END;

-- A payment that was accepted has the mode and currency of an account that exists.
CREATE TRIGGER draw_of_its_account BEFORE INSERT ON account_payments
WHEN NEW.code IS NULL AND NOT EXISTS (
    SELECT 1 FROM accounts a WHERE a.id = NEW.account_id AND a.currency = NEW.currency AND a.mode = NEW.mode)
BEGIN
    SELECT RAISE(ABORT, 'earmark: a payment is in the mode and currency of its account (draw_of_its_account)');
END;

-- API keys ----------------------------------------------------------------------------------------------------------------------

-- What a client shows to act for the shop. Of a secret only its SHA-256 is stored. A key has at most two valid secrets, so that a
-- rotation has no moment without one. A key is never deleted: the journal names it. These rules, too, stand with their table in
-- every database.
CREATE TABLE api_keys (
    id         text    NOT NULL PRIMARY KEY,
    name       text    NOT NULL,
    mode       text    NOT NULL CONSTRAINT key_mode_known CHECK (mode IN ('test', 'live')),
    scopes     text    NOT NULL,
    hash       blob    NOT NULL,
    created_at integer NOT NULL,
    expires_at integer,
    rotated_at integer,
    old_hash   blob,
    old_until  integer,
    revoked_at integer,
    CONSTRAINT scopes_are_known
        CHECK (scopes <> '' AND trim(replace(replace(replace(scopes, 'sell', ''), 'manage', ''), 'ops', '')) = ''),
    -- As long as a hash; no secret has that length.
    CONSTRAINT only_hashes_are_kept CHECK (
        typeof(hash) = 'blob' AND length(hash) = 32
        AND (old_hash IS NULL OR (typeof(old_hash) = 'blob' AND length(old_hash) = 32))),
    CONSTRAINT old_secret_has_an_end CHECK ((old_hash IS NULL) = (old_until IS NULL)),
    CONSTRAINT secrets_differ CHECK (hash IS NOT old_hash)
) WITHOUT ROWID;

CREATE UNIQUE INDEX api_keys_by_hash ON api_keys (hash);
CREATE UNIQUE INDEX api_keys_by_old_hash ON api_keys (old_hash) WHERE old_hash IS NOT NULL;

CREATE TRIGGER key_stays_what_it_is BEFORE UPDATE ON api_keys
WHEN NEW.id IS NOT OLD.id OR NEW.mode IS NOT OLD.mode OR NEW.scopes IS NOT OLD.scopes
     OR NEW.created_at IS NOT OLD.created_at OR NEW.expires_at IS NOT OLD.expires_at OR OLD.revoked_at IS NOT NULL
BEGIN
    SELECT RAISE(ABORT, 'earmark: a key keeps its id, kind, scopes and end, and stays revoked (key_stays_what_it_is)');
END;

CREATE TRIGGER key_is_never_deleted BEFORE DELETE ON api_keys
BEGIN
    SELECT RAISE(ABORT, 'earmark: a key is never deleted (key_is_never_deleted)');
END;

-- A REPLACE would delete without running the trigger on DELETE.
CREATE TRIGGER key_is_never_replaced BEFORE INSERT ON api_keys
WHEN EXISTS (SELECT 1 FROM api_keys WHERE id = NEW.id OR hash = NEW.hash OR old_hash = NEW.hash)
BEGIN
    SELECT RAISE(IGNORE);
END;

-- Webhooks ----------------------------------------------------------------------------------------------------------------------

-- A subscriber's address, and which entries it wants.
CREATE TABLE webhooks (
    id               text PRIMARY KEY,
    mode             text    NOT NULL CONSTRAINT webhook_mode_known CHECK (mode IN ('test', 'live')),
    url              text    NOT NULL,
    -- A JSON list. Only these types; an empty list means all.
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

-- One message for each entry and each webhook that wants it, written in the transaction that numbers the entry. A message that was
-- delivered or has failed is the log.
CREATE TABLE deliveries (
    number     integer PRIMARY KEY AUTOINCREMENT,
    id         text    NOT NULL UNIQUE,
    webhook_id text    NOT NULL REFERENCES webhooks ON DELETE CASCADE,
    entry_id   text,
    type       text    NOT NULL,
    -- Stored, so that every try sends the same bytes.
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

-- For the dispatcher: which webhooks have something due, and which of their messages comes first.
CREATE INDEX deliveries_due ON deliveries (webhook_id, due_at) WHERE state = 'pending';
CREATE INDEX deliveries_in_line ON deliveries (webhook_id, number) WHERE state = 'pending';
-- The log, newest first; and, for the janitor, what of it is old.
CREATE INDEX deliveries_log ON deliveries (webhook_id, number);
CREATE INDEX deliveries_ended ON deliveries (ended_at) WHERE ended_at IS NOT NULL;

-- Which webhook a request made or changed, by its idempotency key. The answer contains a secret and is not stored: it is made again
-- from the webhook. No foreign key: a webhook that was removed was made all the same.
CREATE TABLE webhook_keys (
    caller       text    NOT NULL,
    key          text    NOT NULL,
    request_hash blob    NOT NULL,
    webhook_id   text    NOT NULL,
    status       integer NOT NULL,
    done_at      integer NOT NULL,
    PRIMARY KEY (caller, key)
) WITHOUT ROWID;

-- For the janitor: the keys whose time is over.
CREATE INDEX webhook_keys_done ON webhook_keys (done_at);

-- Workers -----------------------------------------------------------------------------------------------------------------------

-- One row per process and role, updated every few seconds.
CREATE TABLE beats (
    process_id text    NOT NULL,
    role       text    NOT NULL,
    host       text    NOT NULL,
    version    text    NOT NULL,
    started_at integer NOT NULL,
    beat_at    integer NOT NULL,
    outcome    text    NOT NULL,
    rounds     integer NOT NULL,
    PRIMARY KEY (process_id, role)
) WITHOUT ROWID;

-- How far a worker has read the journal. Ids of entries sort by age, so it goes on along the primary key without another index.
CREATE TABLE marks (
    name  text NOT NULL PRIMARY KEY,
    place text NOT NULL
) WITHOUT ROWID;
INSERT INTO marks (name, place) VALUES ('keys', '00000000-0000-0000-0000-000000000000');
