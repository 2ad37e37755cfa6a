-- expand
-- API keys: who may speak for the shop. Of a secret only its SHA-256 is kept. A key has at most two secrets that open
-- it, so a rotation has no moment at which neither does. A key is never deleted: the journal names it.
-- These guards stand with their table, so that they are everywhere where keys are.

CREATE TABLE api_keys (
    id         text COLLATE "C" PRIMARY KEY,
    name       text        NOT NULL,
    live       boolean     NOT NULL,
    scopes     text        NOT NULL,
    hash       bytea       NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz,
    rotated_at timestamptz,
    old_hash   bytea,
    old_until  timestamptz,
    revoked_at timestamptz,
    CONSTRAINT scopes_are_known CHECK (scopes ~ '^(sell|manage|ops)( (sell|manage|ops))*$'),
    -- As long as a hash, which no secret is.
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
        (NEW.id, NEW.live, NEW.scopes, NEW.created_at) IS DISTINCT FROM (OLD.id, OLD.live, OLD.scopes, OLD.created_at)
        OR NEW.expires_at IS DISTINCT FROM OLD.expires_at
        OR OLD.revoked_at IS NOT NULL)
    EXECUTE FUNCTION earmark_keep_key();

CREATE TRIGGER key_is_never_deleted BEFORE DELETE ON api_keys
    FOR EACH ROW EXECUTE FUNCTION earmark_keep_key();
