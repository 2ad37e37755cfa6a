-- expand
-- A draft: requests that were judged on an unlocked look are written by one call, which compares every row with what
-- was seen and refuses as a whole (EM001) when one has moved. Then nothing is kept, and the batch is decided under locks.
--
-- One call is one round trip, and its own transaction: rows stay locked for as long as the server needs to write them,
-- never while a program thinks. The rows of each kind are locked in the order of the arrays, which callers sort by key.

CREATE TYPE earmark_memory AS (caller text, key text, request_hash bytea, answer_status integer, answer_body bytea);

-- Not the tables' own row types: a table may gain a column while an older server runs on.
CREATE TYPE earmark_event AS (
    id text, name text, currency text, live boolean, created_at timestamptz, starts_at timestamptz,
    sale_opens_at timestamptz, sale_closes_at timestamptz, hold_ttl_seconds integer, per_buyer_max integer, version integer
);

CREATE TYPE earmark_booking AS (
    id uuid, event_id text, buyer text, live boolean, state text, lines jsonb, total bigint, currency text,
    created_at timestamptz, expires_at timestamptz, paying_until timestamptz, confirmed_at timestamptz,
    ended_at timestamptz, payment_id text, payment_method text, version integer
);

CREATE TYPE earmark_seat_seen AS (
    n integer, price bigint, blocked boolean, booking_id uuid, fence integer,
    owner_state text, owner_expires_at timestamptz, owner_buyer text
);

CREATE TYPE earmark_payment AS (payment_id text, booking_id uuid);

CREATE TYPE earmark_move AS (
    id uuid, version integer, state text, lines jsonb, total bigint, expires_at timestamptz, paying_until timestamptz,
    confirmed_at timestamptz, ended_at timestamptz, payment_id text, payment_method text,
    seen integer, seen_expires_at timestamptz
);

CREATE TYPE earmark_opening AS (
    id uuid, event_id text, buyer text, live boolean, lines jsonb, total bigint, currency text, expires_at timestamptz
);

CREATE TYPE earmark_entry AS (
    id uuid, event_id text, booking_id uuid, version integer, verb text, before text, after text, actor text, reason text,
    facts jsonb, caller text, key text, request_hash bytea, answer_status integer, answer_body bytea
);

CREATE TYPE earmark_total AS (event_id text, buyer text, units integer);

-- With the price it was sold for, if any of it was.
CREATE TYPE earmark_pool AS (event_id text, id text, held integer, sold integer, price bigint);

CREATE TYPE earmark_taking AS (event_id text, id text, pointer uuid, fence integer, price bigint, booking_id uuid);

-- An event that was judged from memory, at this version.
CREATE TYPE earmark_recalled AS (event_id text, version integer);

-- The number under which a key is claimed. Two keys that share one only wait for each other.
CREATE FUNCTION earmark_claim(caller text, key text) RETURNS bigint LANGUAGE sql IMMUTABLE
    RETURN hashtextextended(caller || chr(31) || key, 0);

CREATE FUNCTION earmark_expect(written bigint, wanted integer, what text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF written <> wanted THEN
        RAISE EXCEPTION 'earmark: % moved: % of % are as they were seen', what, written, wanted USING ERRCODE = 'EM001';
    END IF;
END $$;

CREATE FUNCTION earmark_write(
    at timestamptz, clock interval, from_memory boolean, recalled earmark_recalled[],
    moves earmark_move[], payments earmark_payment[], opened earmark_opening[], entries earmark_entry[],
    totals earmark_total[], all_rise boolean, pools earmark_pool[], seats earmark_taking[], cleared earmark_taking[]
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    written bigint;
BEGIN
    -- A program that slept between its look and this call is not to be believed about the time.
    IF at < statement_timestamp() + clock - interval '10 seconds' THEN
        RAISE EXCEPTION 'earmark: judged too long ago' USING ERRCODE = 'EM001';
    END IF;

    -- Judged from memory: by rules that still stand, and at a moment that is this server's now, or was a moment ago.
    IF from_memory AND (
        at NOT BETWEEN statement_timestamp() + clock - interval '1 second' AND statement_timestamp() + clock + interval '20 ms'
        OR EXISTS (SELECT 1 FROM unnest(recalled) r
                    WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.id = r.event_id AND e.version = r.version))) THEN
        RAISE EXCEPTION 'earmark: remembered otherwise' USING ERRCODE = 'EM001';
    END IF;

    -- A twin of one of these requests is being decided somewhere: whoever waited here would keep its batch waiting too.
    IF EXISTS (SELECT 1 FROM unnest(entries) e
                WHERE e.key IS NOT NULL AND NOT pg_try_advisory_xact_lock(earmark_claim(e.caller, e.key))) THEN
        RAISE EXCEPTION 'earmark: a key is being decided elsewhere' USING ERRCODE = 'EM001';
    END IF;

    -- Bookings that were judged at a version, and still have it, and the same time to live. Before the seats: the schema refuses a seat whose owner lives.
    IF cardinality(moves) > 0 THEN
        UPDATE bookings b
           SET state = m.state, lines = coalesce(m.lines, b.lines), total = coalesce(m.total, b.total),
               expires_at = m.expires_at, paying_until = m.paying_until, confirmed_at = m.confirmed_at,
               ended_at = m.ended_at, payment_id = m.payment_id, payment_method = m.payment_method, version = m.version
          FROM unnest(moves) m WHERE b.id = m.id AND b.version = m.seen AND b.expires_at = m.seen_expires_at;
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written <> cardinality(moves) THEN PERFORM earmark_expect(written, cardinality(moves), 'bookings'); END IF;
    END IF;
    IF cardinality(payments) > 0 THEN
        INSERT INTO outside_payments (payment_id, booking_id)
        SELECT p.payment_id, p.booking_id FROM unnest(payments) p ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written <> cardinality(payments) THEN PERFORM earmark_expect(written, cardinality(payments), 'payments'); END IF;
    END IF;

    -- What nobody else can want yet comes next, so that hot rows are locked as late as can be.
    IF cardinality(opened) > 0 THEN
        INSERT INTO bookings (id, event_id, buyer, live, state, lines, total, currency, created_at, expires_at, version)
        SELECT o.id, o.event_id, o.buyer, o.live, 'held', o.lines, o.total, o.currency, at, o.expires_at, 1
          FROM unnest(opened) o;
    END IF;
    -- The story comes last, so that a draft in vain has not paid for it; but never while a pool waits, which many want.
    IF cardinality(pools) > 0 THEN PERFORM earmark_tell(at, entries); END IF;

    IF cardinality(totals) > 0 AND NOT all_rise THEN
        PERFORM earmark_add_totals(totals);
    ELSIF cardinality(totals) > 0 THEN
        -- Nobody gives anything back, as most often: one statement, which judges the limit on the row as it is now.
        INSERT INTO buyer_totals AS t (event_id, buyer, units)
        SELECT d.event_id, d.buyer, d.units FROM unnest(totals) d
        ON CONFLICT (event_id, buyer) DO UPDATE SET units = t.units + excluded.units
         WHERE (SELECT per_buyer_max FROM events e WHERE e.id = t.event_id) IS NULL
            OR t.units + excluded.units <= (SELECT per_buyer_max FROM events e WHERE e.id = t.event_id);
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written <> cardinality(totals) THEN PERFORM earmark_expect(written, cardinality(totals), 'totals'); END IF;
    END IF;
    IF cardinality(pools) > 0 THEN
        UPDATE pools p SET held = p.held + d.held, sold = p.sold + d.sold
          FROM unnest(pools) d
         WHERE p.event_id = d.event_id AND p.id = d.id AND (d.price IS NULL OR p.price = d.price)
           AND (d.held + d.sold <= 0 OR p.held + p.sold + d.held + d.sold <= p.capacity);
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written <> cardinality(pools) THEN PERFORM earmark_expect(written, cardinality(pools), 'pools'); END IF;
    END IF;
    IF cardinality(seats) > 0 THEN
        UPDATE seats s SET booking_id = t.booking_id
          FROM unnest(seats) t
         WHERE s.event_id = t.event_id AND s.id = t.id
           AND s.booking_id IS NOT DISTINCT FROM t.pointer AND s.fence = t.fence AND s.price = t.price AND NOT s.blocked;
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written <> cardinality(seats) THEN PERFORM earmark_expect(written, cardinality(seats), 'seats'); END IF;
    END IF;
    IF cardinality(cleared) > 0 THEN
        UPDATE seats s SET booking_id = NULL, fence = s.fence + 1
          FROM unnest(cleared) c WHERE s.event_id = c.event_id AND s.id = c.id AND s.booking_id = c.pointer;
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written <> cardinality(cleared) THEN PERFORM earmark_expect(written, cardinality(cleared), 'seats'); END IF;
    END IF;
    IF cardinality(pools) = 0 THEN PERFORM earmark_tell(at, entries); END IF;
END $$;

CREATE FUNCTION earmark_tell(at timestamptz, entries earmark_entry[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO journal (id, event_id, booking_id, version, verb, before, after, actor, reason, at, facts,
                         caller, key, request_hash, answer_status, answer_body)
    SELECT e.id, e.event_id, e.booking_id, e.version, e.verb, e.before, e.after, e.actor, e.reason, $1, e.facts,
           e.caller, e.key, e.request_hash, e.answer_status, e.answer_body
      FROM unnest(entries) e;
END $$;

-- A total rises only within the event's limit, judged on the row as it is now, and falls whatever it is.
CREATE FUNCTION earmark_add_totals(totals earmark_total[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    rising  integer := (SELECT count(*) FROM unnest(totals) d WHERE d.units > 0);
    falling integer := cardinality(totals) - rising;
    written bigint;
BEGIN
    IF rising > 0 AND falling > 0 THEN
        -- Two statements follow, so the rows are made or locked in one order first: a conflict locks, and changes nothing.
        INSERT INTO buyer_totals AS t (event_id, buyer, units) SELECT d.event_id, d.buyer, 0 FROM unnest(totals) d
        ON CONFLICT (event_id, buyer) DO UPDATE SET units = t.units WHERE false;
    END IF;
    IF rising > 0 THEN
        INSERT INTO buyer_totals AS t (event_id, buyer, units)
        SELECT d.event_id, d.buyer, d.units FROM unnest(totals) d WHERE d.units > 0
        ON CONFLICT (event_id, buyer) DO UPDATE SET units = t.units + excluded.units
         WHERE (SELECT per_buyer_max FROM events e WHERE e.id = t.event_id) IS NULL
            OR t.units + excluded.units <= (SELECT per_buyer_max FROM events e WHERE e.id = t.event_id);
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written <> rising THEN PERFORM earmark_expect(written, rising, 'totals'); END IF;
    END IF;
    IF falling > 0 THEN
        UPDATE buyer_totals t SET units = t.units + d.units
          FROM unnest(totals) d WHERE d.units < 0 AND t.event_id = d.event_id AND t.buyer = d.buyer;
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written <> falling THEN PERFORM earmark_expect(written, falling, 'totals'); END IF;
    END IF;
END $$;
