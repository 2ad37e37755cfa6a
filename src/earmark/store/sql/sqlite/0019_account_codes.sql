-- expand
-- Accounts have an id of their own, and a code is kept as its HMAC alone. Under which key is the program's to know, so it is
-- the program that gives older accounts their ids and digests, after this: see `sealing.sql`. Until then they have none.

-- In hexadecimal digits.
ALTER TABLE accounts ADD COLUMN code_digest text;
CREATE UNIQUE INDEX code_opens_one_account ON accounts (code_digest);

-- Another code would be another buyer's money. `earmark migrate` alone lifts this, to give older accounts their digests.
CREATE TRIGGER account_keeps_its_code BEFORE UPDATE OF code_digest ON accounts
WHEN OLD.code_digest IS NOT NEW.code_digest
BEGIN
    SELECT RAISE(ABORT, 'earmark: an account keeps its code (account_keeps_its_code)');
END;

-- A REPLACE would remove the account that this code opens. Who comes second gives way in silence, as in `0007_accounts.sql`.
CREATE TRIGGER account_code_is_not_replaced BEFORE INSERT ON accounts
WHEN EXISTS (SELECT 1 FROM accounts a WHERE a.code_digest = NEW.code_digest)
BEGIN
    SELECT RAISE(IGNORE);
END;
