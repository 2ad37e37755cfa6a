-- expand
-- Who is at work, and how far the walks through the journal have come. Nothing here is on a booking's way.

-- One row per process and role, written every few seconds: room on the page makes that a heap-only update.
CREATE TABLE beats (
    process_id uuid        NOT NULL,
    role       text COLLATE "C" NOT NULL,
    host       text        NOT NULL,
    version    text        NOT NULL,
    started_at timestamptz NOT NULL,
    beat_at    timestamptz NOT NULL,
    outcome    text        NOT NULL,
    rounds     bigint      NOT NULL,
    PRIMARY KEY (process_id, role)
) WITH (fillfactor = 50);

-- Ids of entries sort by age, so a walk along the primary key needs no index of its own: it goes on behind its mark.
CREATE TABLE marks (
    name  text PRIMARY KEY,
    place uuid NOT NULL
);
INSERT INTO marks (name, place) VALUES ('keys', '00000000-0000-0000-0000-000000000000');
