-- expand
-- Tickets: the secret of a booking's page, the secrets that a door scans, every scan, and the scope of the keys that may scan.
-- The rules that a test or a benchmark can leave out are in `0008_ticket_guards.sql`.
--
-- A ticket is written when its booking's tickets are first asked for, never when the booking is confirmed: a sale writes nothing
-- here. Both secrets are kept as they are, because the page has to show them again; they are random and no name is in them.

-- The page of a booking, at a link that stays. Its secret opens the page, and admits to nothing.
CREATE TABLE ticket_pages (
    booking_id uuid        PRIMARY KEY,
    secret     text COLLATE "C" NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT page_secret_is_one CHECK (secret ~ '^[a-hjkmnp-z2-9]{32}$')
);

CREATE UNIQUE INDEX ticket_pages_by_secret ON ticket_pages (secret);

-- One row for each seat of a booking, and for each unit of its pools, numbered from 1. Whether it is valid, its booking says.
CREATE TABLE tickets (
    id         uuid        PRIMARY KEY,
    booking_id uuid        NOT NULL,
    event_id   text COLLATE "C" NOT NULL,
    kind       text COLLATE "C" NOT NULL CONSTRAINT ticket_kind_is_known CHECK (kind IN ('seat', 'pool')),
    -- The seat, or the pool.
    name       text COLLATE "C" NOT NULL,
    unit       integer     NOT NULL CONSTRAINT ticket_unit_counts_from_one CHECK (unit >= 1),
    secret     text COLLATE "C" NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT scan_secret_is_one CHECK (secret ~ '^[a-hjkmnp-z2-9]{32}$'),
    -- Two requests that make the tickets of one booking at once make them once.
    CONSTRAINT ticket_is_there_once UNIQUE (booking_id, kind, name, unit)
);

-- For a scan: the ticket of a code.
CREATE UNIQUE INDEX tickets_by_secret ON tickets (secret);
-- For the list that a door takes along: the tickets of an event, page by page.
CREATE INDEX tickets_by_event ON tickets (event_id, id);

-- Every scan, also of a code that no ticket has: who scanned what and when, and what became of it. A scan admits a visitor when it
-- has no reason. One that was made offline let a visitor in whatever the server would have said: then it has a reason too.
CREATE TABLE ticket_scans (
    id          uuid        PRIMARY KEY,
    -- The key that sent it, and the scanner's own name for this scan: a repeat is the same scan.
    caller      text COLLATE "C" NOT NULL,
    nonce       text COLLATE "C" NOT NULL,
    mode        text COLLATE "C" NOT NULL CONSTRAINT scan_mode_known CHECK (mode IN ('test', 'live')),
    -- SHA-256 of the code: what was typed wrongly is kept, and opens nothing.
    code_hash   bytea       NOT NULL CONSTRAINT only_the_hash_of_a_code_is_kept CHECK (octet_length(code_hash) = 32),
    ticket_id   uuid        REFERENCES tickets,
    -- That of the ticket, else the one that the door is for.
    event_id    text COLLATE "C",
    admitted    boolean     NOT NULL,
    reason      text COLLATE "C",
    offline     boolean     NOT NULL,
    -- By the scanner's clock where it was offline, else as `received_at`.
    scanned_at  timestamptz NOT NULL,
    received_at timestamptz NOT NULL,
    undone_at   timestamptz,
    CONSTRAINT scan_is_there_once UNIQUE (caller, nonce),
    CONSTRAINT scan_reason_is_known CHECK (
        reason IN ('unknown', 'wrong_event', 'not_confirmed', 'cancelled', 'seat_not_in_booking', 'already_admitted')),
    CONSTRAINT scan_says_why CHECK (offline OR admitted = (reason IS NULL)),
    CONSTRAINT admission_is_of_a_ticket CHECK (ticket_id IS NOT NULL OR reason = 'unknown'),
    CONSTRAINT only_an_admission_is_undone CHECK (undone_at IS NULL OR (admitted AND reason IS NULL))
);

-- For a scan: whether its ticket has admitted before.
CREATE INDEX ticket_scans_by_ticket ON ticket_scans (ticket_id) WHERE ticket_id IS NOT NULL;
-- For the audit: the scans of an event, by age.
CREATE INDEX ticket_scans_by_event ON ticket_scans (event_id, id);

-- A key may check tickets. What the rule allowed before, it allows still.
ALTER TABLE api_keys
    DROP CONSTRAINT scopes_are_known,
    ADD CONSTRAINT scopes_are_known CHECK (scopes ~ '^(sell|manage|ops|check)( (sell|manage|ops|check))*$');
