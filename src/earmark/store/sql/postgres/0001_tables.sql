-- expand
-- What is sold, who claims it, and what happened.
-- The booking row is the arbiter: a seat only points to a booking, and is taken because that booking lives.
-- No foreign key is checked on the way of a booking: what they would say, the guards say once for many rows, and
-- `earmark verify` says again. Each would cost a look-up per row, and a lock on an event's one row that all of its buyers share.

-- Names sort by their bytes: it is quicker, and the same in every database and in every program that sorts before it locks.

CREATE TABLE events (
    id               text COLLATE "C" PRIMARY KEY,
    name             text        NOT NULL,
    currency         text        NOT NULL,
    live             boolean     NOT NULL,
    created_at       timestamptz NOT NULL,
    starts_at        timestamptz,
    sale_opens_at    timestamptz,
    sale_closes_at   timestamptz,
    hold_ttl_seconds integer,
    per_buyer_max    integer,
    version          integer     NOT NULL DEFAULT 1
);

CREATE TABLE bookings (
    id             uuid        PRIMARY KEY,
    event_id       text COLLATE "C" NOT NULL,
    buyer          text COLLATE "C" NOT NULL,
    live           boolean     NOT NULL,
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

-- The sweeper's way to the holds whose time is over.
CREATE INDEX bookings_due ON bookings (expires_at) WHERE state = 'held';
-- The two lists people ask for: a buyer's bookings, and an event's.
CREATE INDEX bookings_by_buyer ON bookings (buyer, id);
CREATE INDEX bookings_by_event ON bookings (event_id, id);

-- Seats carry no index but their key, so that taking one is a heap-only update.
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

-- What one buyer has of one event, changed by every verb that takes or gives: counting would be a race.
CREATE TABLE buyer_totals (
    event_id text COLLATE "C" NOT NULL,
    buyer    text COLLATE "C" NOT NULL,
    units    integer NOT NULL,
    PRIMARY KEY (event_id, buyer)
) WITH (fillfactor = 80);

-- One payment taken elsewhere confirms one booking.
CREATE TABLE outside_payments (
    payment_id text COLLATE "C" PRIMARY KEY,
    booking_id uuid NOT NULL
);

-- One row per change: audit entry, outbox row (unsent while it has no sequence) and idempotency record.
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
