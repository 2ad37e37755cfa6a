-- expand
-- Functions: the path of the guards, the erasure of a buyer, and the optimistic write.

-- The path of the guards --------------------------------------------------------------------------------------------------------

-- Each guard reads the tables of its own schema, whatever path a session has set. Without this, a session reads its temporary
-- tables first: an empty one named `bookings` made a guard release a seat that a booking owned. A migration that replaces a guard
-- does this again, because a function that is replaced loses its path.
DO $$
DECLARE
    guard regprocedure;
BEGIN
    FOR guard IN SELECT p.oid FROM pg_proc p
                  WHERE p.pronamespace = current_schema()::regnamespace AND p.prorettype = 'trigger'::regtype
                    AND p.proname LIKE 'earmark\_%'
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', guard, current_schema());
    END LOOP;
END $$;

-- Erasing a buyer ---------------------------------------------------------------------------------------------------------------
-- A buyer's name becomes a pseudonym, the same in every row, so that totals and histories stay what they are.

-- A pattern of all spellings of a name: each character as it is or percent-encoded (`%40` for `@`), in upper or lower case, once
-- or several times (`%2540`), and a space also as `+`. `store/both_databases/replace_buyer_name_in_texts.py` has the same for SQLite.
CREATE FUNCTION earmark_spellings(the_name text) RETURNS text LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT string_agg('(' || e.escaped || CASE WHEN s.sign = ' ' THEN '|\+' ELSE '' END || '|'
                      || CASE WHEN ascii(s.sign) < 128 AND s.sign !~ '[A-Za-z0-9]' THEN '\' ELSE '' END || s.sign || ')',
                      '' ORDER BY s.n)
      FROM (SELECT n, substr(the_name, n, 1) AS sign, encode(convert_to(substr(the_name, n, 1), 'UTF8'), 'hex') AS hex
              FROM generate_series(1, length(the_name)) AS n) AS s
     CROSS JOIN LATERAL (SELECT string_agg(CASE WHEN d % 2 = 1 THEN '%(25)*' ELSE '' END
                                           || '[' || substr(s.hex, d, 1) || upper(substr(s.hex, d, 1)) || ']', '' ORDER BY d)
                           FROM generate_series(1, length(s.hex)) AS d) AS e (escaped)
$$;

-- A text without the name; `store/both_databases/replace_buyer_name_in_texts.py` states the rule and has it for SQLite. The pattern is made only for a text that may
-- contain the name.
CREATE FUNCTION earmark_unname(said text, field text, the_buyer text, the_alias text) RETURNS text
    LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN said IS NULL THEN NULL
        WHEN said = the_buyer THEN the_alias
        WHEN said IN ('buyer:' || the_buyer, 'test:buyer:' || the_buyer)
            THEN left(said, -length(the_buyer)) || the_alias
        WHEN said ~ '^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$' OR said ~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:' THEN said
        WHEN strpos(said, the_buyer) = 0 AND strpos(said, '%') = 0 AND strpos(said, '+') = 0 THEN said
        WHEN said !~ ('(^|[^A-Za-z0-9]|%(25)*[0-9A-Fa-f]{2})' || earmark_spellings(the_buyer) || '($|[^A-Za-z0-9])') THEN said
        WHEN field IN ('payment_id', 'key') THEN regexp_replace(said, earmark_spellings(the_buyer), the_alias, 'g')
        ELSE '' END
$$;

-- A document without the name, its fields in their order. A `kept` field and a moment contain no name.
CREATE FUNCTION earmark_unname_json(said json, field text, the_buyer text, the_alias text, kept text[]) RETURNS json
    LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    reworded text;
BEGIN
    CASE json_typeof(said)
        WHEN 'object' THEN
            SELECT '{' || coalesce(string_agg(to_json(e.key)::text || ':'
                                              || earmark_unname_json(e.value, e.key, the_buyer, the_alias, kept)::text,
                                              ',' ORDER BY e.n), '') || '}'
              INTO reworded FROM json_each(said) WITH ORDINALITY AS e (key, value, n);
            RETURN reworded::json;
        WHEN 'array' THEN
            SELECT '[' || coalesce(string_agg(earmark_unname_json(e.value, field, the_buyer, the_alias, kept)::text,
                                              ',' ORDER BY e.n), '') || ']'
              INTO reworded FROM json_array_elements(said) WITH ORDINALITY AS e (value, n);
            RETURN reworded::json;
        WHEN 'string' THEN
            IF field = ANY (kept) OR right(field, 3) = '_at' OR right(field, 6) = '_until' THEN
                RETURN said;
            END IF;
            reworded := earmark_unname(said #>> '{}', field, the_buyer, the_alias);
            RETURN CASE WHEN reworded = said #>> '{}' THEN said ELSE to_json(reworded) END;
        ELSE
            RETURN said;
    END CASE;
END $$;

-- The bytes of an answer or of a message. What is not JSON is treated as text.
CREATE FUNCTION earmark_unname_bytes(said bytea, the_buyer text, the_alias text, kept text[]) RETURNS bytea
    LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    told     text := convert_from(said, 'UTF8');
    document json;
    reworded json;
BEGIN
    IF said IS NULL THEN
        RETURN NULL;
    END IF;
    BEGIN
        document := told::json;
    EXCEPTION WHEN invalid_text_representation THEN
        RETURN convert_to(earmark_unname(told, NULL, the_buyer, the_alias), 'UTF8');
    END;
    reworded := earmark_unname_json(document, NULL, the_buyer, the_alias, kept);
    -- Where nothing is renamed, not a byte changes.
    RETURN CASE WHEN reworded::jsonb = document::jsonb THEN said ELSE convert_to(reworded::text, 'UTF8') END;
END $$;

-- Why a buyer cannot be erased yet, booking by booking. An event is over when it has begun or, where it has no start, when its
-- sale is closed; late money is judged by the same rule.
CREATE FUNCTION earmark_erasure_obstacles(the_buyer text, moment timestamptz)
    RETURNS TABLE (booking_id uuid, event_id text, mode text, why text) LANGUAGE sql STABLE AS $$
    SELECT b.id, b.event_id, b.mode, found.why
      FROM bookings b LEFT JOIN events e ON e.id = b.event_id
     CROSS JOIN LATERAL (
        SELECT 1, 'it is ' || b.state WHERE b.state IN ('held', 'paying')
         UNION ALL
        SELECT 2, format('its payment %s is %s', p.id, p.state) FROM payments p
         WHERE p.booking_id = b.id
           AND p.state IN ('pending', 'requires_action', 'unknown', 'authorised', 'voiding', 'needs_attention')
         UNION ALL
        SELECT 3, format('its refund %s is pending', r.id)
          FROM payments p JOIN refunds r ON r.payment_id = p.id AND r.state = 'pending' WHERE p.booking_id = b.id
         UNION ALL
        SELECT 4, CASE WHEN e.starts_at IS NOT NULL
                       THEN format('its event starts at %s', to_char(e.starts_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI "UTC"'))
                       WHEN e.sale_closes_at IS NOT NULL
                       THEN format('the sale of its event closes at %s',
                                   to_char(e.sale_closes_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI "UTC"'))
                       ELSE 'its event has neither starts_at nor sale_closes_at' END
         WHERE coalesce(e.starts_at, e.sale_closes_at) IS NULL OR coalesce(e.starts_at, e.sale_closes_at) > moment
      ) AS found (rank, why)
     WHERE b.buyer = the_buyer
     ORDER BY b.id, found.rank
$$;

-- The name becomes the pseudonym everywhere in one transaction: half of it would leave a total that no bookings add up to.
-- Locks are taken in the order of all transactions, and what was locked is read in statements of its own: a hold of this buyer that
-- was under way has committed by then, and is an obstacle; a later hold belongs to another buyer.
CREATE FUNCTION earmark_erase_buyer(the_buyer text, the_alias text, moment timestamptz, kept text[])
    RETURNS TABLE (what text, changed bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    callers  text[] := ARRAY['buyer:' || the_buyer, 'test:buyer:' || the_buyer];
    ids      uuid[];
    paid     uuid[];
    told     uuid[];
    held_at  text[];
    answered bigint;
BEGIN
    INSERT INTO erasures (pseudonym, transaction) VALUES (the_alias, pg_current_xact_id())
    ON CONFLICT (one) DO UPDATE SET pseudonym = excluded.pseudonym, transaction = excluded.transaction;

    PERFORM FROM bookings WHERE buyer IN (the_buyer, the_alias) ORDER BY id FOR NO KEY UPDATE;
    SELECT array_agg(id), array_agg(DISTINCT event_id) INTO ids, held_at FROM bookings WHERE buyer IN (the_buyer, the_alias);
    PERFORM FROM payments WHERE booking_id = ANY (ids) ORDER BY id FOR NO KEY UPDATE;
    PERFORM FROM payers WHERE mode IN ('test', 'live') AND buyer = the_buyer ORDER BY mode FOR UPDATE;
    PERFORM FROM buyer_totals WHERE event_id = ANY (held_at) AND buyer = the_buyer ORDER BY event_id FOR UPDATE;
    IF EXISTS (SELECT FROM earmark_erasure_obstacles(the_buyer, moment)) THEN
        RAISE EXCEPTION 'earmark: the buyer has bookings that are not over' USING ERRCODE = 'EM002';
    END IF;
    SELECT array_agg(id), array_agg(DISTINCT event_id) INTO ids, held_at FROM bookings WHERE buyer IN (the_buyer, the_alias);
    SELECT array_agg(id) INTO paid FROM payments WHERE booking_id = ANY (ids);
    -- An entry about a repeated request has no booking in its column; those of an event are found by the event's two indexes.
    SELECT array_agg(DISTINCT j.id) INTO told
      FROM (SELECT id FROM journal WHERE booking_id = ANY (ids)
             UNION ALL
            SELECT id FROM journal WHERE key IS NOT NULL AND caller = ANY (callers)
             UNION ALL
            SELECT id FROM journal WHERE event_id = ANY (held_at) AND sequence IS NULL
                                     AND booking_id IS NULL AND facts ->> 'booking_id' = ANY (ids::text[])
             UNION ALL
            SELECT id FROM journal WHERE event_id = ANY (held_at) AND sequence IS NOT NULL
                                     AND booking_id IS NULL AND facts ->> 'booking_id' = ANY (ids::text[])) AS j;
    PERFORM FROM journal WHERE id = ANY (told) ORDER BY id FOR NO KEY UPDATE;

    UPDATE outside_payments o SET payment_id = earmark_unname(o.payment_id, 'payment_id', the_buyer, the_alias)
      FROM bookings b
     WHERE b.id = ANY (ids) AND o.payment_id = b.payment_id AND o.booking_id = b.id
       AND o.payment_id <> earmark_unname(o.payment_id, 'payment_id', the_buyer, the_alias);
    what := 'outside payments';
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN NEXT;

    UPDATE bookings b SET buyer = the_alias,
           payment_id = earmark_unname(b.payment_id, 'payment_id', the_buyer, the_alias),
           payment_method = nullif(earmark_unname(b.payment_method, 'payment_method', the_buyer, the_alias), '')
     WHERE b.id = ANY (ids) AND b.buyer = the_buyer;
    what := 'bookings';
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN NEXT;

    -- What a refund needs stays: the reference of the payment to an account, and the gateway's code of every payment.
    UPDATE payments p SET method = n.method, message = n.message, action = n.action, return_url = n.return_url
      FROM (SELECT q.id,
                   CASE q.gateway WHEN 'balance' THEN q.method
                                  ELSE earmark_unname(q.method, 'method', the_buyer, the_alias) END AS method,
                   nullif(earmark_unname(q.message, 'message', the_buyer, the_alias), '') AS message,
                   earmark_unname_json(q.action::json, NULL, the_buyer, the_alias, kept)::jsonb AS action,
                   nullif(earmark_unname(q.return_url, 'return_url', the_buyer, the_alias), '') AS return_url
              FROM payments q WHERE q.id = ANY (paid)) AS n
     WHERE p.id = n.id AND (p.method, p.message, p.action, p.return_url)
                           IS DISTINCT FROM (n.method, n.message, n.action, n.return_url);
    what := 'payments';
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN NEXT;

    UPDATE refunds r SET reason = n.reason
      FROM (SELECT q.id, nullif(earmark_unname(q.reason, 'reason', the_buyer, the_alias), '') AS reason
              FROM refunds q WHERE q.payment_id = ANY (paid)) AS n
     WHERE r.id = n.id AND r.reason IS DISTINCT FROM n.reason;
    what := 'refunds';
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN NEXT;

    UPDATE payment_keys k SET caller = n.new_caller, key = n.new_key
      FROM (SELECT q.caller, q.key, earmark_unname(q.caller, 'caller', the_buyer, the_alias) AS new_caller,
                   earmark_unname(q.key, 'key', the_buyer, the_alias) AS new_key
              FROM payment_keys q WHERE q.caller = ANY (callers) OR q.payment_id = ANY (paid)) AS n
     WHERE k.caller = n.caller AND k.key = n.key AND (n.caller, n.key) <> (n.new_caller, n.new_key);
    what := 'payment keys';
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN NEXT;

    UPDATE payers SET buyer = the_alias WHERE mode IN ('test', 'live') AND buyer = the_buyer;
    what := 'payers';
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN NEXT;

    UPDATE buyer_totals SET buyer = the_alias WHERE event_id = ANY (held_at) AND buyer = the_buyer;
    what := 'totals';
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN NEXT;

    WITH reworded AS MATERIALIZED (
        SELECT j.id, j.answer_body AS old_body, earmark_unname(j.actor, 'actor', the_buyer, the_alias) AS actor,
               nullif(earmark_unname(j.reason, 'reason', the_buyer, the_alias), '') AS reason,
               earmark_unname_json(j.facts::json, NULL, the_buyer, the_alias, kept)::jsonb AS facts,
               earmark_unname(j.caller, 'caller', the_buyer, the_alias) AS caller,
               earmark_unname(j.key, 'key', the_buyer, the_alias) AS key,
               earmark_unname_bytes(j.answer_body, the_buyer, the_alias, kept) AS answer_body
          FROM journal j WHERE j.id = ANY (told)
    ), written AS (
        UPDATE journal j SET actor = r.actor, reason = r.reason, facts = r.facts, caller = r.caller, key = r.key,
               answer_body = r.answer_body
          FROM reworded r
         WHERE j.id = r.id AND (j.actor, j.reason, j.facts, j.caller, j.key, j.answer_body)
                               IS DISTINCT FROM (r.actor, r.reason, r.facts, r.caller, r.key, r.answer_body)
        RETURNING r.old_body IS DISTINCT FROM r.answer_body AS answered
    )
    SELECT count(*), count(*) FILTER (WHERE w.answered) INTO changed, answered FROM written w;
    what := 'journal entries';
    RETURN NEXT;
    what := 'stored answers';
    changed := answered;
    RETURN NEXT;

    -- After the journal: a relay that was publishing one of these entries has queued its messages by now.
    PERFORM FROM webhooks w WHERE EXISTS (SELECT FROM deliveries d WHERE d.webhook_id = w.id AND d.entry_id = ANY (told))
      ORDER BY w.id FOR NO KEY UPDATE;
    UPDATE deliveries d SET body = n.body, error = n.error
      FROM (SELECT q.id, earmark_unname_bytes(q.body, the_buyer, the_alias, kept) AS body,
                   nullif(earmark_unname(q.error, 'error', the_buyer, the_alias), '') AS error
              FROM webhooks w JOIN deliveries q ON q.webhook_id = w.id AND q.entry_id = ANY (told)) AS n
     WHERE d.id = n.id AND (d.body, d.error) IS DISTINCT FROM (n.body, n.error);
    what := 'deliveries';
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN NEXT;

    UPDATE erasures SET pseudonym = NULL, transaction = NULL;
END $$;

REVOKE ALL ON FUNCTION earmark_erase_buyer(text, text, timestamptz, text[]) FROM PUBLIC;

-- Optimistic write --------------------------------------------------------------------------------------------------------------
-- Requests that were decided on rows read without a lock are written by one call, which compares every row with what was read and
-- refuses as a whole (EM001) when one has changed. Then nothing is kept, and the batch is decided again.
-- One call is one round trip and one transaction: rows stay locked only while the server writes, never while a program
-- computes. The rows of each kind are locked in the order of the arrays, which callers sort by key.

-- What an idempotency key recorded.
CREATE TYPE earmark_memory AS (caller text, key text, request_hash bytea, answer_status integer, answer_body bytea);

-- Not the tables' own row types: a later migration may add a column while servers of this version run on.
CREATE TYPE earmark_event AS (
    id text, name text, currency text, mode text, created_at timestamptz, starts_at timestamptz,
    sale_opens_at timestamptz, sale_closes_at timestamptz, hold_ttl_seconds integer, per_buyer_max integer, version integer
);

CREATE TYPE earmark_booking AS (
    id uuid, event_id text, buyer text, mode text, state text, lines jsonb, total bigint, currency text,
    created_at timestamptz, expires_at timestamptz, paying_until timestamptz, confirmed_at timestamptz,
    ended_at timestamptz, payment_id text, payment_method text, version integer
);

-- A seat with its owner, and with the names that the event's plan gives it.
CREATE TYPE earmark_seat_named AS (
    n integer, price bigint, blocked boolean, booking_id uuid, fence integer,
    owner_state text, owner_expires_at timestamptz, owner_buyer text,
    row_name text, number integer, section text, category text
);

-- A payment that the shop took elsewhere.
CREATE TYPE earmark_payment AS (payment_id text, mode text, booking_id uuid);

CREATE TYPE earmark_move AS (
    id uuid, version integer, state text, lines jsonb, total bigint, expires_at timestamptz, paying_until timestamptz,
    confirmed_at timestamptz, ended_at timestamptz, payment_id text, payment_method text,
    seen integer, seen_expires_at timestamptz
);

CREATE TYPE earmark_opening AS (
    id uuid, event_id text, buyer text, mode text, lines jsonb, total bigint, currency text, expires_at timestamptz
);

CREATE TYPE earmark_entry AS (
    id uuid, event_id text, booking_id uuid, version integer, verb text, before text, after text, actor text, reason text,
    facts jsonb, caller text, key text, request_hash bytea, answer_status integer, answer_body bytea
);

CREATE TYPE earmark_total AS (event_id text, buyer text, units integer);

-- With the price that units were sold for, if any were.
CREATE TYPE earmark_pool AS (event_id text, id text, held integer, sold integer, price bigint);

CREATE TYPE earmark_taking AS (event_id text, id text, pointer uuid, fence integer, price bigint, booking_id uuid);

-- An event that was decided on from the seat cache, at this version.
CREATE TYPE earmark_recalled AS (event_id text, version integer);

-- The number of the advisory lock of a key. Two keys with the same number only wait for each other.
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
    -- A program that was suspended between its read and this call has a wrong time.
    IF at < statement_timestamp() + clock - interval '10 seconds' THEN
        RAISE EXCEPTION 'earmark: judged too long ago' USING ERRCODE = 'EM001';
    END IF;

    -- Decided from the seat cache: the event must have the same version still, and the moment must be this server's now, or just
    -- past.
    IF from_memory AND (
        at NOT BETWEEN statement_timestamp() + clock - interval '1 second' AND statement_timestamp() + clock + interval '20 ms'
        OR EXISTS (SELECT 1 FROM unnest(recalled) r
                    WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.id = r.event_id AND e.version = r.version))) THEN
        RAISE EXCEPTION 'earmark: remembered otherwise' USING ERRCODE = 'EM001';
    END IF;

    -- Another transaction decides a request with the same key. To wait for it here would keep the whole batch waiting.
    IF EXISTS (SELECT 1 FROM unnest(entries) e
                WHERE e.key IS NOT NULL AND NOT pg_try_advisory_xact_lock(earmark_claim(e.caller, e.key))) THEN
        RAISE EXCEPTION 'earmark: a key is being decided elsewhere' USING ERRCODE = 'EM001';
    END IF;

    -- Bookings that still have the version and the end that were read. Before the seats: the schema refuses to take a seat from an
    -- active booking.
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
        INSERT INTO outside_payments (payment_id, mode, booking_id)
        SELECT p.payment_id, p.mode, p.booking_id FROM unnest(payments) p ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written <> cardinality(payments) THEN PERFORM earmark_expect(written, cardinality(payments), 'payments'); END IF;
    END IF;

    -- New rows, which no other transaction can want yet, come next, so that contended rows are locked as late as possible.
    IF cardinality(opened) > 0 THEN
        INSERT INTO bookings (id, event_id, buyer, mode, state, lines, total, currency, created_at, expires_at, version)
        SELECT o.id, o.event_id, o.buyer, o.mode, 'held', o.lines, o.total, o.currency, at, o.expires_at, 1
          FROM unnest(opened) o;
    END IF;
    -- The journal is written last, so that a call that is refused has not paid for it; but before a pool is locked, which many
    -- transactions want.
    IF cardinality(pools) > 0 THEN PERFORM earmark_add_entries(at, entries); END IF;

    IF cardinality(totals) > 0 AND NOT all_rise THEN
        PERFORM earmark_add_totals(totals);
    ELSIF cardinality(totals) > 0 THEN
        -- All totals rise, as in most calls: one statement, which checks the limit on the row as it is now.
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
    IF cardinality(pools) = 0 THEN PERFORM earmark_add_entries(at, entries); END IF;
END $$;

CREATE FUNCTION earmark_add_entries(at timestamptz, entries earmark_entry[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO journal (id, event_id, booking_id, version, verb, before, after, actor, reason, at, facts,
                         caller, key, request_hash, answer_status, answer_body)
    SELECT e.id, e.event_id, e.booking_id, e.version, e.verb, e.before, e.after, e.actor, e.reason, $1, e.facts,
           e.caller, e.key, e.request_hash, e.answer_status, e.answer_body
      FROM unnest(entries) e;
END $$;

-- A total rises only within the event's limit, checked on the row as it is now, and falls in any case.
CREATE FUNCTION earmark_add_totals(totals earmark_total[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    rising  integer := (SELECT count(*) FROM unnest(totals) d WHERE d.units > 0);
    falling integer := cardinality(totals) - rising;
    written bigint;
BEGIN
    IF rising > 0 AND falling > 0 THEN
        -- Two statements follow, so the rows are inserted or locked in one order first: a conflict locks, and changes nothing.
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
