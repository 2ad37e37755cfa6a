-- expand
-- API keys: who may speak for the shop. Of a secret only its SHA-256 is kept. A key has at most two secrets that open
-- it, so a rotation has no moment at which neither does. A key is never deleted: the journal names it.
-- These guards stand with their table, so that they are everywhere where keys are.

CREATE TABLE api_keys (
    id         text    NOT NULL PRIMARY KEY,
    name       text    NOT NULL,
    live       integer NOT NULL,
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
    -- As long as a hash, which no secret is.
    CONSTRAINT only_hashes_are_kept CHECK (
        typeof(hash) = 'blob' AND length(hash) = 32
        AND (old_hash IS NULL OR (typeof(old_hash) = 'blob' AND length(old_hash) = 32))),
    CONSTRAINT old_secret_has_an_end CHECK ((old_hash IS NULL) = (old_until IS NULL)),
    CONSTRAINT secrets_differ CHECK (hash IS NOT old_hash)
) WITHOUT ROWID;

CREATE UNIQUE INDEX api_keys_by_hash ON api_keys (hash);
CREATE UNIQUE INDEX api_keys_by_old_hash ON api_keys (old_hash) WHERE old_hash IS NOT NULL;

CREATE TRIGGER key_stays_what_it_is BEFORE UPDATE ON api_keys
WHEN NEW.id IS NOT OLD.id OR NEW.live IS NOT OLD.live OR NEW.scopes IS NOT OLD.scopes
     OR NEW.created_at IS NOT OLD.created_at OR NEW.expires_at IS NOT OLD.expires_at OR OLD.revoked_at IS NOT NULL
BEGIN
    SELECT RAISE(ABORT, 'earmark: a key keeps its id, kind, scopes and end, and stays revoked (key_stays_what_it_is)');
END;

CREATE TRIGGER key_is_never_deleted BEFORE DELETE ON api_keys
BEGIN
    SELECT RAISE(ABORT, 'earmark: a key is never deleted (key_is_never_deleted)');
END;

-- A REPLACE would delete without asking.
CREATE TRIGGER key_is_never_replaced BEFORE INSERT ON api_keys
WHEN EXISTS (SELECT 1 FROM api_keys WHERE id = NEW.id OR hash = NEW.hash OR old_hash = NEW.hash)
BEGIN
    SELECT RAISE(IGNORE);
END;
