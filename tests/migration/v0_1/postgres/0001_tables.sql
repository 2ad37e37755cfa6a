-- expand
-- The tables, by subject, and the rules that stand with their table in every database. The rules that a test or a benchmark can
-- leave out are in `0002_guards.sql`; the functions of the optimistic write and of erasures are in `0003_functions_in_postgresql_only.sql`.
--
-- No foreign key is checked when a booking is written: each would cost one look-up per row, and a lock on the event's row, which
-- all its buyers share. The guards check the same once per statement, and `earmark verify` checks it again.
-- Ids and names sort by their bytes (COLLATE "C"): that is faster, and the same in every database and in every program that
-- sorts rows before it locks them.

-- What is sold ------------------------------------------------------------------------------------------------------------------

-- An event: what is sold into, with its currency, its sale window, its limits, and its rules for declines and refunds.
CREATE TABLE events (
    id                   text COLLATE "C" PRIMARY KEY,
    name                 text        NOT NULL,
    currency             text        NOT NULL,
    mode                 text COLLATE "C" NOT NULL CONSTRAINT event_mode_known CHECK (mode IN ('test', 'live')),
    created_at           timestamptz NOT NULL,
    starts_at            timestamptz,
    sale_opens_at        timestamptz,
    sale_closes_at       timestamptz,
    hold_ttl_seconds     integer,
    per_buyer_max        integer,
    version              integer     NOT NULL DEFAULT 1,
    -- What becomes of a hold whose payment is declined: `keep` or `release`.
    on_decline           text        NOT NULL DEFAULT 'keep',
    -- What a cancelled sale gives back: until how long before the start, and less which fee.
    refund_until_seconds integer
        CONSTRAINT refund_window_not_negative CHECK (refund_until_seconds >= 0),
    refund_fee_percent   integer     NOT NULL DEFAULT 0
        CONSTRAINT refund_fee_is_a_percentage CHECK (refund_fee_percent BETWEEN 0 AND 100),
    refund_fee_fixed     bigint      NOT NULL DEFAULT 0
        CONSTRAINT refund_fee_not_negative CHECK (refund_fee_fixed >= 0)
);

-- A named unit of an event. It points to a booking, and is taken while that booking is active. No index but the key, so that
-- taking a seat is a heap-only update.
CREATE TABLE seats (
    event_id   text COLLATE "C" NOT NULL REFERENCES events,
    id         text COLLATE "C" NOT NULL,
    price      bigint  NOT NULL,
    blocked    boolean NOT NULL DEFAULT false,
    booking_id uuid,
    fence      integer NOT NULL DEFAULT 0,
    position   integer NOT NULL,
    row_name   text,
    number     integer,
    section    text,
    category   text,
    x          double precision,
    y          double precision,
    PRIMARY KEY (event_id, id)
) WITH (fillfactor = 60);

-- A counted unit of an event: general admission, or a product in stock.
CREATE TABLE pools (
    event_id text COLLATE "C" NOT NULL REFERENCES events,
    id       text COLLATE "C" NOT NULL,
    capacity integer NOT NULL,
    held     integer NOT NULL DEFAULT 0,
    sold     integer NOT NULL DEFAULT 0,
    price    bigint  NOT NULL,
    position integer NOT NULL,
    PRIMARY KEY (event_id, id)
) WITH (fillfactor = 50);

-- Bookings ----------------------------------------------------------------------------------------------------------------------

-- One buyer's claim on seats and units of one event. Its state decides whether its seats are taken.
CREATE TABLE bookings (
    id             uuid        PRIMARY KEY,
    event_id       text COLLATE "C" NOT NULL,
    buyer          text COLLATE "C" NOT NULL,
    mode           text COLLATE "C" NOT NULL CONSTRAINT booking_mode_known CHECK (mode IN ('test', 'live')),
    state          text        NOT NULL,
    lines          jsonb       NOT NULL,
    total          bigint      NOT NULL,
    currency       text        NOT NULL,
    created_at     timestamptz NOT NULL,
    expires_at     timestamptz NOT NULL,
    paying_until   timestamptz,
    confirmed_at   timestamptz,
    ended_at       timestamptz,
    payment_id     text,
    payment_method text,
    version        integer     NOT NULL DEFAULT 1
) WITH (fillfactor = 80);

-- For the sweeper: the holds whose time is over.
CREATE INDEX bookings_due ON bookings (expires_at) WHERE state = 'held';
-- For the two lists that the API offers: a buyer's bookings, and an event's.
CREATE INDEX bookings_by_buyer ON bookings (buyer, id);
CREATE INDEX bookings_by_event ON bookings (event_id, id);

-- How many units of an event one buyer has: a row that every verb changes, because a count over bookings would be a race.
CREATE TABLE buyer_totals (
    event_id text COLLATE "C" NOT NULL,
    buyer    text COLLATE "C" NOT NULL,
    units    integer NOT NULL,
    PRIMARY KEY (event_id, buyer)
) WITH (fillfactor = 80);

-- Which booking a payment confirmed that the shop took elsewhere: one reference confirms one booking of its mode.
CREATE TABLE outside_payments (
    payment_id text COLLATE "C" NOT NULL,
    booking_id uuid    NOT NULL,
    mode       text COLLATE "C" NOT NULL CONSTRAINT outside_payment_mode_known CHECK (mode IN ('test', 'live')),
    PRIMARY KEY (payment_id, mode)
);

-- One row per change: audit entry, outbox row (unpublished while it has no sequence) and idempotency record.
CREATE TABLE journal (
    id              uuid        PRIMARY KEY,
    event_id        text COLLATE "C" NOT NULL,
    booking_id      uuid,
    version         integer     NOT NULL,
    verb            text        NOT NULL,
    before          text,
    after           text,
    actor           text        NOT NULL,
    reason          text,
    at              timestamptz NOT NULL,
    facts           jsonb       NOT NULL,
    caller          text COLLATE "C",
    key             text COLLATE "C",
    request_hash    bytea,
    answer_status   integer,
    answer_body     bytea,
    sequence        bigint
);

CREATE UNIQUE INDEX journal_by_booking ON journal (booking_id, version) WHERE booking_id IS NOT NULL;
CREATE UNIQUE INDEX journal_by_key ON journal (caller, key) WHERE key IS NOT NULL;
-- The unpublished entries, for the relay and for a look at one event. By event alone: PostgreSQL folds equal keys into one index
-- entry, so this adds least to a booking (a twentieth to a tenth of writing the entry), and stays a page or two while a relay keeps
-- up.
CREATE INDEX journal_unsent ON journal (event_id) WHERE sequence IS NULL;
-- An event's newest number, and its entries from any number on. A booking does not pay for it: its entries are unpublished.
CREATE UNIQUE INDEX journal_by_number ON journal (event_id, sequence) WHERE sequence IS NOT NULL;

-- Payments ----------------------------------------------------------------------------------------------------------------------

-- One attempt to take money for a booking at a gateway. Written before the gateway is called, so that a process that dies in
-- between leaves a row from which a worker continues.
CREATE TABLE payments (
    id                 uuid        PRIMARY KEY,
    booking_id         uuid        NOT NULL,
    event_id           text COLLATE "C" NOT NULL,
    mode               text COLLATE "C" NOT NULL CONSTRAINT payment_mode_known CHECK (mode IN ('test', 'live')),
    gateway            text        NOT NULL,
    method             text        NOT NULL,
    amount             bigint      NOT NULL,
    currency           text        NOT NULL,
    automatic          boolean     NOT NULL,
    created_at         timestamptz NOT NULL,
    state              text        NOT NULL,
    gateway_id         text,
    captured           bigint      NOT NULL DEFAULT 0,
    refunding          bigint      NOT NULL DEFAULT 0,
    refunded           bigint      NOT NULL DEFAULT 0,
    code               text,
    message            text,
    action             jsonb,
    return_url         text,
    due_at             timestamptz,
    tries              integer     NOT NULL DEFAULT 0,
    version            integer     NOT NULL DEFAULT 1,
    -- What an operator gave back at the gateway's own page, as the gateway lists it. Earmark owes nothing for it.
    refunded_elsewhere bigint      NOT NULL DEFAULT 0,
    -- When the gateway's decision was recorded: captured, authorised, voided or declined. NULL while it has not decided.
    processed_at       timestamptz
);

CREATE INDEX payments_by_booking ON payments (booking_id, id);
-- For the reconciler: the payments that it has to look up.
CREATE INDEX payments_due ON payments (due_at) WHERE due_at IS NOT NULL;
-- For the operator: the payments that need a decision.
CREATE INDEX payments_needing_attention ON payments (created_at) WHERE state = 'needs_attention';

-- Money that goes back of a payment, one row per refund, written before the gateway is called.
CREATE TABLE refunds (
    id           uuid        PRIMARY KEY,
    payment_id   uuid        NOT NULL REFERENCES payments,
    booking_id   uuid        NOT NULL,
    amount       bigint      NOT NULL,
    created_at   timestamptz NOT NULL,
    reason       text,
    state        text        NOT NULL,
    gateway_id   text,
    code         text,
    -- When the gateway's decision was recorded: made or refused. NULL while it has not decided.
    processed_at timestamptz
);

CREATE INDEX refunds_by_payment ON refunds (payment_id, created_at, id);

-- The ids of a gateway's callbacks. Kept forever, because a gateway may send the same event again after years.
CREATE TABLE callbacks (
    gateway    text COLLATE "C" NOT NULL,
    id         text COLLATE "C" NOT NULL,
    payment_id uuid        NOT NULL REFERENCES payments,
    at         timestamptz NOT NULL,
    PRIMARY KEY (gateway, id)
);

-- Which payment an idempotency key opened, and by which request. Written with the payment, so that every process refuses another
-- request with the same key from then on; the key's answer is known only when the payment ends.
CREATE TABLE payment_keys (
    caller       text COLLATE "C" NOT NULL,
    key          text COLLATE "C" NOT NULL,
    request_hash bytea       NOT NULL,
    payment_id   uuid        NOT NULL,
    opened_at    timestamptz NOT NULL,
    PRIMARY KEY (caller, key)
);

-- For the janitor: the keys whose time is over.
CREATE INDEX payment_keys_by_age ON payment_keys (opened_at);
-- For the erasure of a buyer: the keys that opened the buyer's payments.
CREATE INDEX payment_keys_by_payment ON payment_keys (payment_id);

-- Which payments a buyer opened lately, by id with the time, to count declines. The transaction that opens a payment locks the
-- row, so that payments which are opened at once count each other.
CREATE TABLE payers (
    mode     text COLLATE "C" NOT NULL CONSTRAINT payer_mode_known CHECK (mode IN ('test', 'live')),
    buyer    text COLLATE "C" NOT NULL,
    tries    jsonb       NOT NULL,
    tried_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    PRIMARY KEY (mode, buyer)
);

-- For the janitor: the payers whose time is over.
CREATE INDEX payers_by_age ON payers (tried_at);

-- Accounts ----------------------------------------------------------------------------------------------------------------------
-- Their rules stand here with their tables: no database has accounts without them.

-- A buyer's credit with the shop, or a gift card. The account's figures are those of its last entry.
CREATE TABLE accounts (
    id          text COLLATE "C" PRIMARY KEY,
    currency    text        NOT NULL,
    mode        text COLLATE "C" NOT NULL CONSTRAINT account_mode_known CHECK (mode IN ('test', 'live')),
    created_at  timestamptz NOT NULL,
    -- That of its last entry.
    number      bigint      NOT NULL DEFAULT 0,
    balance     bigint      NOT NULL DEFAULT 0,
    set_aside   bigint      NOT NULL DEFAULT 0,
    -- The HMAC of the code that opens the account; the code itself is not stored.
    code_digest bytea       NOT NULL CONSTRAINT code_opens_one_account UNIQUE,
    CONSTRAINT balance_never_negative CHECK (balance >= 0),
    CONSTRAINT set_aside_within_the_balance CHECK (0 <= set_aside AND set_aside <= balance)
);

-- One attempt to draw from an account, or from one that does not exist; `code` says why nothing was drawn.
CREATE TABLE account_payments (
    id         uuid        PRIMARY KEY,
    account_id text COLLATE "C" NOT NULL,
    currency   text        NOT NULL,
    mode       text COLLATE "C" NOT NULL CONSTRAINT draw_mode_known CHECK (mode IN ('test', 'live')),
    amount     bigint      NOT NULL CONSTRAINT draw_asks_for_something CHECK (amount > 0),
    automatic  boolean     NOT NULL,
    created_at timestamptz NOT NULL,
    code       text
);

CREATE INDEX account_payments_by_age ON account_payments (created_at, id);

-- What happened to an account. Each entry continues from the one before it and states the balance and the amount set aside since,
-- so the sum of the entries is the balance. An entry is written once and stays.
CREATE TABLE account_entries (
    account_id text COLLATE "C" NOT NULL REFERENCES accounts,
    number     bigint      NOT NULL,
    kind       text        NOT NULL,
    id         text COLLATE "C" NOT NULL,
    amount     bigint      NOT NULL,
    aside      bigint      NOT NULL,
    balance    bigint      NOT NULL,
    set_aside  bigint      NOT NULL,
    at         timestamptz NOT NULL,
    payment_id uuid        REFERENCES account_payments,
    reason     text,
    PRIMARY KEY (account_id, number),
    -- A repeated request, at the same account or another, has its effect once.
    CONSTRAINT effect_is_there_once UNIQUE (kind, id),
    -- What the foreign key of an account refers to.
    UNIQUE (account_id, number, balance, set_aside),
    CONSTRAINT entry_does_what_it_says CHECK (CASE kind
        WHEN 'opened'     THEN number = 0 AND amount = 0 AND aside = 0 AND balance = 0 AND set_aside = 0
        WHEN 'credited'   THEN amount > 0 AND aside = 0
        WHEN 'set_aside'  THEN amount = 0 AND aside > 0
        WHEN 'let_go'     THEN amount = 0 AND aside < 0
        WHEN 'taken'      THEN amount < 0 AND aside IN (0, amount)
        WHEN 'given_back' THEN amount > 0 AND aside = 0
        ELSE false END),
    CONSTRAINT entry_is_of_a_payment CHECK (CASE
        WHEN kind IN ('opened', 'credited') THEN payment_id IS NULL
        WHEN kind = 'given_back' THEN payment_id IS NOT NULL
        ELSE payment_id IS NOT NULL AND id = payment_id::text END)
);

CREATE INDEX account_entries_by_payment ON account_entries (payment_id) WHERE payment_id IS NOT NULL;

-- A transaction that changes an account has written the entry for it by its end.
ALTER TABLE accounts ADD CONSTRAINT account_is_its_last_entry
    FOREIGN KEY (id, number, balance, set_aside) REFERENCES account_entries (account_id, number, balance, set_aside)
    DEFERRABLE INITIALLY DEFERRED;

CREATE FUNCTION earmark_refuse_account_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'earmark: no such % on %', lower(TG_OP), TG_TABLE_NAME
        USING ERRCODE = 'check_violation', CONSTRAINT = TG_ARGV[0];
END $$;

CREATE TRIGGER account_begins_empty BEFORE INSERT ON accounts
    FOR EACH ROW WHEN (NEW.number <> 0 OR NEW.balance <> 0 OR NEW.set_aside <> 0)
    EXECUTE FUNCTION earmark_refuse_account_change('account_begins_empty');

-- An account moves on by one entry or not at all, and stays the same account.
CREATE TRIGGER account_moves_by_an_entry AFTER UPDATE ON accounts
    FOR EACH ROW WHEN (
        (OLD.id, OLD.currency, OLD.mode, OLD.created_at) IS DISTINCT FROM (NEW.id, NEW.currency, NEW.mode, NEW.created_at)
        OR (NEW.number <> OLD.number + 1
            AND (OLD.number, OLD.balance, OLD.set_aside) <> (NEW.number, NEW.balance, NEW.set_aside))
    ) EXECUTE FUNCTION earmark_refuse_account_change('account_moves_by_an_entry');

-- Another code would be another buyer's money.
CREATE TRIGGER account_keeps_its_code AFTER UPDATE OF code_digest ON accounts
    FOR EACH ROW WHEN (OLD.code_digest IS DISTINCT FROM NEW.code_digest)
    EXECUTE FUNCTION earmark_refuse_account_change('account_keeps_its_code');

CREATE TRIGGER account_stays BEFORE DELETE ON accounts
    FOR EACH ROW EXECUTE FUNCTION earmark_refuse_account_change('account_stays');

CREATE TRIGGER account_entry_stays BEFORE UPDATE OR DELETE ON account_entries
    FOR EACH ROW EXECUTE FUNCTION earmark_refuse_account_change('account_entry_stays');

CREATE TRIGGER account_payment_stays BEFORE UPDATE OR DELETE ON account_payments
    FOR EACH ROW EXECUTE FUNCTION earmark_refuse_account_change('account_payment_stays');

-- An entry is what its account has just become, and continues from the entry before it.
CREATE FUNCTION earmark_follow_account() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM accounts a
                    WHERE a.id = NEW.account_id
                      AND (a.number, a.balance, a.set_aside) = (NEW.number, NEW.balance, NEW.set_aside)) THEN
        RAISE EXCEPTION 'earmark: account % is not as its entry % says', NEW.account_id, NEW.number
            USING ERRCODE = 'check_violation', CONSTRAINT = 'account_is_its_last_entry';
    END IF;
    IF NEW.number <> 0 AND NOT EXISTS (
        SELECT 1 FROM account_entries e
         WHERE e.account_id = NEW.account_id AND e.number = NEW.number - 1
           AND (e.balance + NEW.amount, e.set_aside + NEW.aside) = (NEW.balance, NEW.set_aside)) THEN
        RAISE EXCEPTION 'earmark: entry % of account % does not carry on from the one before', NEW.number, NEW.account_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'entries_add_up';
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER entries_add_up AFTER INSERT ON account_entries
    FOR EACH ROW EXECUTE FUNCTION earmark_follow_account();

-- A payment that was accepted is set aside once, then taken or let go, and no more goes back than was taken. The entries of an
-- account are written under its lock, so no other transaction adds to these sums meanwhile.
CREATE FUNCTION earmark_follow_draw() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    asked account_payments;
    spent bigint;
    held  bigint;
BEGIN
    SELECT * INTO asked FROM account_payments p
     WHERE p.id = NEW.payment_id AND p.account_id = NEW.account_id AND p.code IS NULL;
    IF NOT FOUND OR (NEW.kind <> 'given_back'
                     AND (greatest(-NEW.amount, abs(NEW.aside)) <> asked.amount OR (NEW.aside = 0) <> asked.automatic)) THEN
        RAISE EXCEPTION 'earmark: this is not what payment % asked of account %', NEW.payment_id, NEW.account_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'entry_of_its_payment';
    END IF;
    SELECT -sum(e.amount), sum(e.aside) INTO spent, held FROM account_entries e WHERE e.payment_id = NEW.payment_id;
    IF spent < 0 OR held < 0 THEN
        RAISE EXCEPTION 'earmark: no more comes back of payment % than was drawn', NEW.payment_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'draw_gives_back_what_it_took';
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER entry_of_its_payment AFTER INSERT ON account_entries
    FOR EACH ROW WHEN (NEW.payment_id IS NOT NULL) EXECUTE FUNCTION earmark_follow_draw();

-- A payment that was accepted has the mode and currency of an account that exists.
CREATE FUNCTION earmark_refuse_strange_draw() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM accounts a
                    WHERE a.id = NEW.account_id AND a.currency = NEW.currency AND a.mode = NEW.mode) THEN
        RAISE EXCEPTION 'earmark: payment % and account % do not agree in mode and currency', NEW.id, NEW.account_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'draw_of_its_account';
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER draw_of_its_account AFTER INSERT ON account_payments
    FOR EACH ROW WHEN (NEW.code IS NULL) EXECUTE FUNCTION earmark_refuse_strange_draw();

CREATE TRIGGER nothing_is_truncated BEFORE TRUNCATE ON accounts
    FOR EACH STATEMENT EXECUTE FUNCTION earmark_refuse_account_change('nothing_is_truncated');
CREATE TRIGGER nothing_is_truncated BEFORE TRUNCATE ON account_payments
    FOR EACH STATEMENT EXECUTE FUNCTION earmark_refuse_account_change('nothing_is_truncated');
CREATE TRIGGER nothing_is_truncated BEFORE TRUNCATE ON account_entries
    FOR EACH STATEMENT EXECUTE FUNCTION earmark_refuse_account_change('nothing_is_truncated');

-- API keys ----------------------------------------------------------------------------------------------------------------------

-- What a client shows to act for the shop. Of a secret only its SHA-256 is stored. A key has at most two valid secrets, so that a
-- rotation has no moment without one. A key is never deleted: the journal names it. These rules, too, stand with their table in
-- every database.
CREATE TABLE api_keys (
    id         text COLLATE "C" PRIMARY KEY,
    name       text        NOT NULL,
    mode       text COLLATE "C" NOT NULL CONSTRAINT key_mode_known CHECK (mode IN ('test', 'live')),
    scopes     text        NOT NULL,
    hash       bytea       NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz,
    rotated_at timestamptz,
    old_hash   bytea,
    old_until  timestamptz,
    revoked_at timestamptz,
    CONSTRAINT scopes_are_known CHECK (scopes ~ '^(sell|manage|ops)( (sell|manage|ops))*$'),
    -- As long as a hash; no secret has that length.
    CONSTRAINT only_hashes_are_kept CHECK (octet_length(hash) = 32 AND (old_hash IS NULL OR octet_length(old_hash) = 32)),
    CONSTRAINT old_secret_has_an_end CHECK ((old_hash IS NULL) = (old_until IS NULL)),
    CONSTRAINT secrets_differ CHECK (hash IS DISTINCT FROM old_hash)
);

CREATE UNIQUE INDEX api_keys_by_hash ON api_keys (hash);
CREATE UNIQUE INDEX api_keys_by_old_hash ON api_keys (old_hash) WHERE old_hash IS NOT NULL;

CREATE FUNCTION earmark_keep_key() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'earmark: a key keeps its id, kind, scopes and end, stays revoked, and is never deleted (%)', OLD.id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'key_stays_what_it_is';
END $$;

CREATE TRIGGER key_stays_what_it_is BEFORE UPDATE ON api_keys
    FOR EACH ROW WHEN (
        (NEW.id, NEW.mode, NEW.scopes, NEW.created_at) IS DISTINCT FROM (OLD.id, OLD.mode, OLD.scopes, OLD.created_at)
        OR NEW.expires_at IS DISTINCT FROM OLD.expires_at
        OR OLD.revoked_at IS NOT NULL)
    EXECUTE FUNCTION earmark_keep_key();

CREATE TRIGGER key_is_never_deleted BEFORE DELETE ON api_keys
    FOR EACH ROW EXECUTE FUNCTION earmark_keep_key();

-- Webhooks ----------------------------------------------------------------------------------------------------------------------

-- A subscriber's address, and which entries it wants.
CREATE TABLE webhooks (
    id               uuid        PRIMARY KEY,
    mode             text COLLATE "C" NOT NULL CONSTRAINT webhook_mode_known CHECK (mode IN ('test', 'live')),
    url              text        NOT NULL,
    -- Only these types; an empty list means all.
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

-- One message for each entry and each webhook that wants it, written in the transaction that numbers the entry. A message that was
-- delivered or has failed is the log.
CREATE TABLE deliveries (
    id         uuid        PRIMARY KEY,
    number     bigint      GENERATED ALWAYS AS IDENTITY,
    webhook_id uuid        NOT NULL REFERENCES webhooks ON DELETE CASCADE,
    entry_id   uuid,
    type       text        NOT NULL,
    -- Stored, so that every try sends the same bytes.
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

-- For the dispatcher: which webhooks have something due, and which of their messages comes first.
CREATE INDEX deliveries_due ON deliveries (webhook_id, due_at) WHERE state = 'pending';
CREATE INDEX deliveries_in_line ON deliveries (webhook_id, number) WHERE state = 'pending';
-- The log, newest first; and, for the janitor, what of it is old.
CREATE INDEX deliveries_log ON deliveries (webhook_id, number);
CREATE INDEX deliveries_ended ON deliveries (ended_at) WHERE ended_at IS NOT NULL;

-- Which webhook a request made or changed, by its idempotency key. The answer contains a secret and is not stored: it is made again
-- from the webhook. No foreign key: a webhook that was removed was made all the same.
CREATE TABLE webhook_keys (
    caller       text COLLATE "C" NOT NULL,
    key          text COLLATE "C" NOT NULL,
    request_hash bytea       NOT NULL,
    webhook_id   uuid        NOT NULL,
    status       integer     NOT NULL,
    done_at      timestamptz NOT NULL,
    PRIMARY KEY (caller, key)
);

-- For the janitor: the keys whose time is over.
CREATE INDEX webhook_keys_done ON webhook_keys (done_at);

-- Workers -----------------------------------------------------------------------------------------------------------------------

-- One row per process and role, updated every few seconds: free room on the page makes that a heap-only update.
CREATE TABLE beats (
    process_id uuid        NOT NULL,
    role       text COLLATE "C" NOT NULL,
    host       text        NOT NULL,
    version    text        NOT NULL,
    started_at timestamptz NOT NULL,
    beat_at    timestamptz NOT NULL,
    outcome    text        NOT NULL,
    rounds     bigint      NOT NULL,
    PRIMARY KEY (process_id, role)
) WITH (fillfactor = 50);

-- How far a worker has read the journal. Ids of entries sort by age, so it goes on along the primary key without another index.
CREATE TABLE marks (
    name  text PRIMARY KEY,
    place uuid NOT NULL
);
INSERT INTO marks (name, place) VALUES ('keys', '00000000-0000-0000-0000-000000000000');

-- Erasures ----------------------------------------------------------------------------------------------------------------------

-- Which erasure of a buyer is open, and in which transaction; empty when the function has ended. Only the owner of the tables
-- writes here: `earmark migrate --application-role` grants it to no other role.
CREATE TABLE erasures (
    one         boolean PRIMARY KEY DEFAULT true CHECK (one),
    pseudonym   text COLLATE "C",
    transaction xid8
);
REVOKE ALL ON TABLE erasures FROM PUBLIC;
