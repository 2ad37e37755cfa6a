-- expand
-- Who is at work, and how far the walks through the journal have come. Nothing here is on a booking's way.

-- One row per process and role, written every few seconds.
CREATE TABLE beats (
    process_id text    NOT NULL,
    role       text    NOT NULL,
    host       text    NOT NULL,
    version    text    NOT NULL,
    started_at integer NOT NULL,
    beat_at    integer NOT NULL,
    outcome    text    NOT NULL,
    rounds     integer NOT NULL,
    PRIMARY KEY (process_id, role)
) WITHOUT ROWID;

-- Ids of entries sort by age, so a walk along the primary key needs no index of its own: it goes on behind its mark.
CREATE TABLE marks (
    name  text NOT NULL PRIMARY KEY,
    place text NOT NULL
) WITHOUT ROWID;
INSERT INTO marks (name, place) VALUES ('keys', '00000000-0000-0000-0000-000000000000');
