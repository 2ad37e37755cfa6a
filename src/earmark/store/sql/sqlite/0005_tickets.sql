-- expand
-- Tickets: the secret of a booking's page, the secrets that a door scans, every scan, and the scope of the keys that may scan.
-- The rules that a test or a benchmark can leave out are in `0008_ticket_guards.sql`.
--
-- A ticket is written when its booking's tickets are first asked for, never when the booking is confirmed: a sale writes nothing
-- here. Both secrets are kept as they are, because the page has to show them again; they are random and no name is in them.

-- The page of a booking, at a link that stays. Its secret opens the page, and admits to nothing.
CREATE TABLE ticket_pages (
    booking_id text    NOT NULL PRIMARY KEY REFERENCES bookings,
    secret     text    NOT NULL,
    created_at integer NOT NULL,
    CONSTRAINT page_secret_is_one CHECK (length(secret) = 32 AND secret NOT GLOB '*[^a-hjkmnp-z2-9]*')
) WITHOUT ROWID;

CREATE UNIQUE INDEX ticket_pages_by_secret ON ticket_pages (secret);

-- One row for each seat of a booking, and for each unit of its pools, numbered from 1. Whether it is valid, its booking says.
CREATE TABLE tickets (
    id         text    NOT NULL PRIMARY KEY,
    booking_id text    NOT NULL REFERENCES bookings,
    event_id   text    NOT NULL,
    kind       text    NOT NULL CONSTRAINT ticket_kind_is_known CHECK (kind IN ('seat', 'pool')),
    -- The seat, or the pool.
    name       text    NOT NULL,
    unit       integer NOT NULL CONSTRAINT ticket_unit_counts_from_one CHECK (typeof(unit) = 'integer' AND unit >= 1),
    secret     text    NOT NULL,
    created_at integer NOT NULL,
    CONSTRAINT scan_secret_is_one CHECK (length(secret) = 32 AND secret NOT GLOB '*[^a-hjkmnp-z2-9]*'),
    -- Two requests that make the tickets of one booking at once make them once.
    CONSTRAINT ticket_is_there_once UNIQUE (booking_id, kind, name, unit)
) WITHOUT ROWID;

-- For a scan: the ticket of a code.
CREATE UNIQUE INDEX tickets_by_secret ON tickets (secret);
-- For the list that a door takes along: the tickets of an event, page by page.
CREATE INDEX tickets_by_event ON tickets (event_id, id);

-- Every scan, also of a code that no ticket has: who scanned what and when, and what became of it. A scan admits a visitor when it
-- has no reason. One that was made offline let a visitor in whatever the server would have said: then it has a reason too.
CREATE TABLE ticket_scans (
    id          text    NOT NULL PRIMARY KEY,
    -- The key that sent it, and the scanner's own name for this scan: a repeat is the same scan.
    caller      text    NOT NULL,
    nonce       text    NOT NULL,
    mode        text    NOT NULL CONSTRAINT scan_mode_known CHECK (mode IN ('test', 'live')),
    -- SHA-256 of the code: what was typed wrongly is kept, and opens nothing.
    code_hash   blob    NOT NULL
        CONSTRAINT only_the_hash_of_a_code_is_kept CHECK (typeof(code_hash) = 'blob' AND length(code_hash) = 32),
    ticket_id   text    REFERENCES tickets,
    -- That of the ticket, else the one that the door is for.
    event_id    text,
    admitted    integer NOT NULL CONSTRAINT scan_admits_or_not CHECK (admitted IN (0, 1)),
    reason      text,
    offline     integer NOT NULL CONSTRAINT scan_is_offline_or_not CHECK (offline IN (0, 1)),
    -- By the scanner's clock where it was offline, else as `received_at`.
    scanned_at  integer NOT NULL,
    received_at integer NOT NULL,
    undone_at   integer,
    CONSTRAINT scan_is_there_once UNIQUE (caller, nonce),
    CONSTRAINT scan_reason_is_known CHECK (
        reason IN ('unknown', 'wrong_event', 'not_confirmed', 'cancelled', 'seat_not_in_booking', 'already_admitted')),
    CONSTRAINT scan_says_why CHECK (offline OR admitted = (reason IS NULL)),
    CONSTRAINT admission_is_of_a_ticket CHECK (ticket_id IS NOT NULL OR reason IS 'unknown'),
    CONSTRAINT only_an_admission_is_undone CHECK (undone_at IS NULL OR (admitted AND reason IS NULL))
) WITHOUT ROWID;

-- For a scan: whether its ticket has admitted before.
CREATE INDEX ticket_scans_by_ticket ON ticket_scans (ticket_id) WHERE ticket_id IS NOT NULL;
-- For the audit: the scans of an event, by age.
CREATE INDEX ticket_scans_by_event ON ticket_scans (event_id, id);

-- A key may check tickets. What the rule allowed before, it allows still. SQLite cannot change a rule of a table, so the table is
-- made again with the same rows, and its indexes and triggers as they were.
ALTER TABLE api_keys RENAME TO api_keys_before_0005;
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
        CHECK (scopes <> ''
               AND trim(replace(replace(replace(replace(scopes, 'sell', ''), 'manage', ''), 'ops', ''), 'check', '')) = ''),
    -- As long as a hash; no secret has that length.
    CONSTRAINT only_hashes_are_kept CHECK (
        typeof(hash) = 'blob' AND length(hash) = 32
        AND (old_hash IS NULL OR (typeof(old_hash) = 'blob' AND length(old_hash) = 32))),
    CONSTRAINT old_secret_has_an_end CHECK ((old_hash IS NULL) = (old_until IS NULL)),
    CONSTRAINT secrets_differ CHECK (hash IS NOT old_hash)
) WITHOUT ROWID;
INSERT INTO api_keys (id, name, mode, scopes, hash, created_at, expires_at, rotated_at, old_hash, old_until, revoked_at)
SELECT id, name, mode, scopes, hash, created_at, expires_at, rotated_at, old_hash, old_until, revoked_at
  FROM api_keys_before_0005;
DROP TABLE api_keys_before_0005;

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
