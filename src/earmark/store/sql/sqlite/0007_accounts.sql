-- expand
-- Accounts: what somebody has with the shop, as credit or on a gift card. An account is its last entry: each entry carries
-- on from the one before it and says what the balance and what is set aside are since, so the sum of an account's
-- entries is its balance. Everything but the account's own row is written once and stays.
-- These guards stand with their tables: money without them is nowhere to be had. A REPLACE is refused too.

CREATE TABLE accounts (
    id         text    NOT NULL PRIMARY KEY,
    currency   text    NOT NULL,
    live       integer NOT NULL,
    created_at integer NOT NULL,
    -- That of its last entry.
    number     integer NOT NULL DEFAULT 0,
    balance    integer NOT NULL DEFAULT 0,
    set_aside  integer NOT NULL DEFAULT 0,
    CONSTRAINT counts_are_integers
        CHECK (typeof(number) = 'integer' AND typeof(balance) = 'integer' AND typeof(set_aside) = 'integer'),
    CONSTRAINT balance_never_negative CHECK (balance >= 0),
    CONSTRAINT set_aside_within_the_balance CHECK (0 <= set_aside AND set_aside <= balance),
    -- Whoever changes an account has written the entry for it by the end of the transaction.
    CONSTRAINT account_is_its_last_entry
        FOREIGN KEY (id, number, balance, set_aside) REFERENCES account_entries (account_id, number, balance, set_aside)
        DEFERRABLE INITIALLY DEFERRED
) WITHOUT ROWID;

-- What was asked of an account, or of one that is not there; `code` says why nothing was drawn.
CREATE TABLE account_payments (
    id         text    NOT NULL PRIMARY KEY,
    account_id text    NOT NULL,
    currency   text    NOT NULL,
    live       integer NOT NULL,
    amount     integer NOT NULL,
    automatic  integer NOT NULL,
    created_at integer NOT NULL,
    code       text,
    CONSTRAINT draw_asks_for_something CHECK (amount > 0 AND typeof(amount) = 'integer')
) WITHOUT ROWID;

CREATE INDEX account_payments_by_age ON account_payments (created_at, id);

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
    -- The same effect is there once, whoever asks for it again and at whichever account.
    CONSTRAINT effect_is_there_once UNIQUE (kind, id),
    -- What an account points to.
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

-- Who comes second gives way in silence, as the program's own insert does.
CREATE TRIGGER account_is_not_replaced BEFORE INSERT ON accounts
WHEN EXISTS (SELECT 1 FROM accounts a WHERE a.id = NEW.id)
BEGIN
    SELECT RAISE(IGNORE);
END;

-- It moves on by one entry or not at all, and stays the same account.
CREATE TRIGGER account_moves_by_an_entry BEFORE UPDATE ON accounts
WHEN (OLD.id, OLD.currency, OLD.live, OLD.created_at) IS NOT (NEW.id, NEW.currency, NEW.live, NEW.created_at)
     OR (NEW.number <> OLD.number + 1
         AND (OLD.number, OLD.balance, OLD.set_aside) IS NOT (NEW.number, NEW.balance, NEW.set_aside))
BEGIN
    SELECT RAISE(ABORT, 'earmark: an account moves on by one entry (account_moves_by_an_entry)');
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

-- An entry is what its account has just become, and carries on from the entry before it.
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

-- A payment that was accepted is in the mode and currency of an account that is there.
CREATE TRIGGER draw_of_its_account BEFORE INSERT ON account_payments
WHEN NEW.code IS NULL AND NOT EXISTS (
    SELECT 1 FROM accounts a WHERE a.id = NEW.account_id AND a.currency = NEW.currency AND a.live = NEW.live)
BEGIN
    SELECT RAISE(ABORT, 'earmark: a payment is in the mode and currency of its account (draw_of_its_account)');
END;
