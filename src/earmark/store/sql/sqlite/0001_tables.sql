-- expand
-- What is sold, who claims it, and what happened.
-- The booking row is the arbiter: a seat only points to a booking, and is taken because that booking lives.
--
-- Moments are whole microseconds since 1970 in UTC, so that they compare as numbers. Ids are UUIDs in lower-case text,
-- which sort as their bytes do: by age. Yes and no are 1 and 0. Tables without a rowid have one key, hence one way to a row.

CREATE TABLE events (
    id               text    NOT NULL PRIMARY KEY,
    name             text    NOT NULL,
    currency         text    NOT NULL,
    live             integer NOT NULL,
    created_at       integer NOT NULL,
    starts_at        integer,
    sale_opens_at    integer,
    sale_closes_at   integer,
    hold_ttl_seconds integer,
    per_buyer_max    integer,
    version          integer NOT NULL DEFAULT 1
) WITHOUT ROWID;

CREATE TABLE bookings (
    id             text    NOT NULL PRIMARY KEY,
    event_id       text    NOT NULL REFERENCES events,
    buyer          text    NOT NULL,
    live           integer NOT NULL,
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

-- The sweeper's way to the holds whose time is over.
CREATE INDEX bookings_due ON bookings (expires_at) WHERE state = 'held';
-- The two lists people ask for: a buyer's bookings, and an event's.
CREATE INDEX bookings_by_buyer ON bookings (buyer, id);
CREATE INDEX bookings_by_event ON bookings (event_id, id);

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

-- What one buyer has of one event, changed by every verb that takes or gives: counting would be a race.
CREATE TABLE buyer_totals (
    event_id text    NOT NULL REFERENCES events,
    buyer    text    NOT NULL,
    units    integer NOT NULL,
    PRIMARY KEY (event_id, buyer)
) WITHOUT ROWID;

-- One payment taken elsewhere confirms one booking.
CREATE TABLE outside_payments (
    payment_id text NOT NULL PRIMARY KEY,
    booking_id text NOT NULL REFERENCES bookings
) WITHOUT ROWID;

-- One row per change: audit entry, outbox row (unsent while it has no sequence) and idempotency record.
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
