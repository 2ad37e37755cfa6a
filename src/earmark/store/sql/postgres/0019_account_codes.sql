-- expand
-- Accounts have an id of their own, and a code is kept as its HMAC alone. Under which key is the program's to know, so it is
-- the program that gives older accounts their ids and digests, after this: see `sealing.sql`. Until then they have none.

ALTER TABLE accounts ADD COLUMN code_digest bytea CONSTRAINT code_opens_one_account UNIQUE;

-- The id of an older account is its code. When it gets one of its own, its entries follow in the same transaction.
ALTER TABLE account_entries ALTER CONSTRAINT account_entries_account_id_fkey DEFERRABLE INITIALLY IMMEDIATE;

-- Another code would be another buyer's money. Only the owner of the table can lift this, to give older accounts their digests.
CREATE TRIGGER account_keeps_its_code AFTER UPDATE OF code_digest ON accounts
    FOR EACH ROW WHEN (OLD.code_digest IS DISTINCT FROM NEW.code_digest)
    EXECUTE FUNCTION earmark_refuse_account_change('account_keeps_its_code');
