-- expand
-- Erasing a buyer: one function, and the one exception that the guards make for it.
-- A booking keeps its buyer and the journal is append-only. A person may still ask to be forgotten: then the name becomes a
-- pseudonym, the same in every row, so that totals and histories stay what they are.

-- Which erasure is open, and in which transaction. Nothing stays in the row when the function has ended.
-- Only the owner of the tables writes here: `earmark migrate --application-role` grants it to no other role.
CREATE TABLE erasures (
    one         boolean PRIMARY KEY DEFAULT true CHECK (one),
    pseudonym   text COLLATE "C",
    transaction xid8
);

-- Whether a guard makes its exception: an erasure is open in this very transaction, by this pseudonym if one is given, and the
-- session's role owns the guarded table. The second condition stands without the first: a role that was granted too much still
-- cannot use it. The path is fixed and the table is named with its schema: a temporary table of the same name is not read.
CREATE FUNCTION earmark_is_erasing(guarded oid, the_alias text) RETURNS boolean LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kept_in name;
    owned   boolean;
    erasing boolean;
BEGIN
    SELECT n.nspname, pg_catalog.pg_has_role(current_user, c.relowner, 'MEMBER') INTO kept_in, owned
      FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = guarded;
    IF owned IS NOT TRUE THEN
        RETURN false;
    END IF;
    EXECUTE format('SELECT EXISTS (SELECT FROM %I.erasures e
                                    WHERE e.transaction = pg_current_xact_id_if_assigned()
                                      AND ($1 IS NULL OR e.pseudonym = $1))', kept_in)
       INTO erasing USING the_alias;
    RETURN erasing;
END $$;

-- The guards as they were, each with the exception. They are asked only where a statement breaks their rule, so a booking pays
-- nothing for it. Each calls the function by the schema of its own table, which a session's path cannot change.
CREATE OR REPLACE FUNCTION earmark_keep_booking() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    erasing boolean;
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'earmark: booking % is % and stays', OLD.id, OLD.state
            USING ERRCODE = 'check_violation', CONSTRAINT = 'live_booking_stays';
    END IF;
    EXECUTE pg_catalog.format('SELECT %I.earmark_is_erasing($1, $2)', TG_TABLE_SCHEMA) INTO erasing USING TG_RELID, NEW.buyer;
    IF erasing AND (OLD.id, OLD.event_id, OLD.live, OLD.currency, OLD.created_at)
                   IS NOT DISTINCT FROM (NEW.id, NEW.event_id, NEW.live, NEW.currency, NEW.created_at) THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'earmark: booking % keeps its id, event, buyer, currency and beginning', OLD.id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'booking_keeps_its_identity';
END $$;

CREATE OR REPLACE FUNCTION earmark_keep_total() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    erasing boolean;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        EXECUTE pg_catalog.format('SELECT %I.earmark_is_erasing($1, $2)', TG_TABLE_SCHEMA) INTO erasing USING TG_RELID, NEW.buyer;
        IF erasing AND (OLD.event_id, OLD.units) = (NEW.event_id, NEW.units) THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION 'earmark: the total of % at % counts what they have, and stays', OLD.buyer, OLD.event_id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'total_in_use_stays';
END $$;

-- A limit that was lowered after a sale is exceeded by the total that is renamed, as it was before.
CREATE OR REPLACE FUNCTION earmark_keep_limit() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    beyond  record;
    erasing boolean;
BEGIN
    IF TG_OP = 'INSERT' THEN
        SELECT t.event_id, t.buyer, t.units, e.per_buyer_max INTO beyond
          FROM totals_after t LEFT JOIN events e ON e.id = t.event_id
         WHERE e.id IS NULL OR t.units > e.per_buyer_max LIMIT 1;
    ELSE
        SELECT t.event_id, t.buyer, t.units, e.per_buyer_max INTO beyond
          FROM totals_after t JOIN events e ON e.id = t.event_id
         WHERE t.units > e.per_buyer_max
           AND NOT EXISTS (SELECT 1 FROM totals_before o
                            WHERE o.event_id = t.event_id AND o.buyer = t.buyer AND o.units >= t.units) LIMIT 1;
        IF FOUND THEN
            EXECUTE pg_catalog.format('SELECT %I.earmark_is_erasing($1, $2)', TG_TABLE_SCHEMA)
               INTO erasing USING TG_RELID, beyond.buyer;
            IF erasing THEN
                RETURN NULL;
            END IF;
        END IF;
    END IF;
    IF FOUND AND beyond.per_buyer_max IS NULL THEN
        RAISE EXCEPTION 'earmark: there is no event %', beyond.event_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'total_of_an_event';
    ELSIF FOUND THEN
        RAISE EXCEPTION 'earmark: buyer % may have % of %, not %',
            beyond.buyer, beyond.per_buyer_max, beyond.event_id, beyond.units
            USING ERRCODE = 'check_violation', CONSTRAINT = 'buyer_stays_within_limit';
    END IF;
    RETURN NULL;
END $$;

-- Of an entry only what may name a buyer changes, and never what happened, when, in which order and to which booking.
CREATE OR REPLACE FUNCTION earmark_keep_journal() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    erasing boolean;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        EXECUTE pg_catalog.format('SELECT %I.earmark_is_erasing($1, NULL)', TG_TABLE_SCHEMA) INTO erasing USING TG_RELID;
        IF erasing AND to_jsonb(OLD) - '{actor,reason,facts,caller,key,answer_body}'::text[]
                       = to_jsonb(NEW) - '{actor,reason,facts,caller,key,answer_body}'::text[] THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION 'earmark: the journal is append-only'
        USING ERRCODE = 'check_violation', CONSTRAINT = 'journal_is_append_only';
END $$;

CREATE OR REPLACE FUNCTION earmark_keep_gateway_payment() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    erasing boolean;
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'earmark: payment % stays', OLD.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'payment_stays';
    END IF;
    EXECUTE pg_catalog.format('SELECT %I.earmark_is_erasing($1, NULL)', TG_TABLE_SCHEMA) INTO erasing USING TG_RELID;
    IF erasing AND to_jsonb(OLD) - '{method,code,message,action,return_url}'::text[]
                   = to_jsonb(NEW) - '{method,code,message,action,return_url}'::text[] THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'earmark: payment % keeps its id, booking, gateway, amount and beginning', OLD.id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'payment_keeps_its_identity';
END $$;

CREATE OR REPLACE FUNCTION earmark_keep_payment() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    erasing boolean;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        EXECUTE pg_catalog.format('SELECT %I.earmark_is_erasing($1, NULL)', TG_TABLE_SCHEMA) INTO erasing USING TG_RELID;
        IF erasing AND to_jsonb(OLD) - 'payment_id' = to_jsonb(NEW) - 'payment_id' THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION 'earmark: payment % is the one of booking % for good', OLD.payment_id, OLD.booking_id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'outside_payment_stays';
END $$;

-- A text without the name; `store/erasure.py` says the rule and has it for SQLite. `chr(1)` stands for the name, so that a
-- name with signs in it is no pattern.
CREATE FUNCTION earmark_unname(said text, field text, the_buyer text, the_alias text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN said IS NULL THEN NULL
        WHEN said = the_buyer THEN the_alias
        WHEN said IN ('buyer:' || the_buyer, 'test:buyer:' || the_buyer)
            THEN left(said, -length(the_buyer)) || the_alias
        WHEN said ~ '^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$' OR said ~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:' THEN said
        WHEN replace(said, the_buyer, chr(1)) !~ ('(^|[^A-Za-z0-9])' || chr(1) || '($|[^A-Za-z0-9])') THEN said
        WHEN field IN ('payment_id', 'key') THEN replace(said, the_buyer, the_alias)
        ELSE '' END
$$;

-- A document without the name, its fields in their order. What stands under a `kept` field, or under a moment, is no name.
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

-- The bytes of an answer or of a message. What is no JSON is a text.
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

-- Why a buyer is not erased yet, booking by booking. An event is over when it has begun or, where no start is known, when its
-- sale is closed; as late money is judged.
CREATE FUNCTION earmark_erasure_obstacles(the_buyer text, moment timestamptz)
    RETURNS TABLE (booking_id uuid, event_id text, live boolean, why text) LANGUAGE sql STABLE AS $$
    SELECT b.id, b.event_id, b.live, found.why
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

-- The name becomes the pseudonym, everywhere in one transaction: half of it would be a total that no booking adds up to.
-- Locks in the order of all transactions, and looks at what it locked in statements of its own: a hold of this buyer that was
-- under way has committed by then, and is an obstacle; one that comes later is another buyer's, whole.
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
    PERFORM FROM payers WHERE live IN (false, true) AND buyer = the_buyer ORDER BY live FOR UPDATE;
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

    UPDATE payments p SET method = n.method, code = n.code, message = n.message, action = n.action, return_url = n.return_url
      FROM (SELECT q.id, earmark_unname(q.method, 'method', the_buyer, the_alias) AS method,
                   nullif(earmark_unname(q.code, 'code', the_buyer, the_alias), '') AS code,
                   nullif(earmark_unname(q.message, 'message', the_buyer, the_alias), '') AS message,
                   earmark_unname_json(q.action::json, NULL, the_buyer, the_alias, kept)::jsonb AS action,
                   nullif(earmark_unname(q.return_url, 'return_url', the_buyer, the_alias), '') AS return_url
              FROM payments q WHERE q.id = ANY (paid)) AS n
     WHERE p.id = n.id AND (p.method, p.code, p.message, p.action, p.return_url)
                           IS DISTINCT FROM (n.method, n.code, n.message, n.action, n.return_url);
    what := 'payments';
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN NEXT;

    UPDATE refunds r SET reason = n.reason, code = n.code
      FROM (SELECT q.id, nullif(earmark_unname(q.reason, 'reason', the_buyer, the_alias), '') AS reason,
                   nullif(earmark_unname(q.code, 'code', the_buyer, the_alias), '') AS code
              FROM refunds q WHERE q.payment_id = ANY (paid)) AS n
     WHERE r.id = n.id AND (r.reason, r.code) IS DISTINCT FROM (n.reason, n.code);
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

    UPDATE payers SET buyer = the_alias WHERE live IN (false, true) AND buyer = the_buyer;
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

    -- After the journal: a relay that was publishing one of these entries has queued its deliveries by now.
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

REVOKE ALL ON TABLE erasures FROM PUBLIC;
REVOKE ALL ON FUNCTION earmark_erase_buyer(text, text, timestamptz, text[]) FROM PUBLIC;
