-- expand
-- Accounts: what somebody has with the shop, as credit or on a gift card. An account is its last entry: each entry carries
-- on from the one before it and says what the balance and what is set aside are since, so the sum of an account's
-- entries is its balance. Everything but the account's own row is written once and stays.
-- These guards stand with their tables: money without them is nowhere to be had.

CREATE TABLE accounts (
    id         text COLLATE "C" PRIMARY KEY,
    currency   text        NOT NULL,
    live       boolean     NOT NULL,
    created_at timestamptz NOT NULL,
    -- That of its last entry.
    number     bigint      NOT NULL DEFAULT 0,
    balance    bigint      NOT NULL DEFAULT 0,
    set_aside  bigint      NOT NULL DEFAULT 0,
    CONSTRAINT balance_never_negative CHECK (balance >= 0),
    CONSTRAINT set_aside_within_the_balance CHECK (0 <= set_aside AND set_aside <= balance)
);

-- What was asked of an account, or of one that is not there; `code` says why nothing was drawn.
CREATE TABLE account_payments (
    id         uuid        PRIMARY KEY,
    account_id text COLLATE "C" NOT NULL,
    currency   text        NOT NULL,
    live       boolean     NOT NULL,
    amount     bigint      NOT NULL CONSTRAINT draw_asks_for_something CHECK (amount > 0),
    automatic  boolean     NOT NULL,
    created_at timestamptz NOT NULL,
    code       text
);

CREATE INDEX account_payments_by_age ON account_payments (created_at, id);

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
    -- The same effect is there once, whoever asks for it again and at whichever account.
    CONSTRAINT effect_is_there_once UNIQUE (kind, id),
    -- What an account points to.
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

-- Whoever changes an account has written the entry for it by the end of the transaction.
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

-- It moves on by one entry or not at all, and stays the same account.
CREATE TRIGGER account_moves_by_an_entry AFTER UPDATE ON accounts
    FOR EACH ROW WHEN (
        (OLD.id, OLD.currency, OLD.live, OLD.created_at) IS DISTINCT FROM (NEW.id, NEW.currency, NEW.live, NEW.created_at)
        OR (NEW.number <> OLD.number + 1
            AND (OLD.number, OLD.balance, OLD.set_aside) <> (NEW.number, NEW.balance, NEW.set_aside))
    ) EXECUTE FUNCTION earmark_refuse_account_change('account_moves_by_an_entry');

CREATE TRIGGER account_stays BEFORE DELETE ON accounts
    FOR EACH ROW EXECUTE FUNCTION earmark_refuse_account_change('account_stays');
CREATE TRIGGER account_entry_stays BEFORE UPDATE OR DELETE ON account_entries
    FOR EACH ROW EXECUTE FUNCTION earmark_refuse_account_change('account_entry_stays');
CREATE TRIGGER account_payment_stays BEFORE UPDATE OR DELETE ON account_payments
    FOR EACH ROW EXECUTE FUNCTION earmark_refuse_account_change('account_payment_stays');

-- An entry is what its account has just become, and carries on from the entry before it.
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

-- A payment that was accepted is set aside once, then taken or let go, and no more goes back than was taken. The entries of
-- an account are written under its lock, so nobody adds to these sums meanwhile.
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

-- A payment that was accepted is in the mode and currency of an account that is there.
CREATE FUNCTION earmark_refuse_strange_draw() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM accounts a
                    WHERE a.id = NEW.account_id AND a.currency = NEW.currency AND a.live = NEW.live) THEN
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
