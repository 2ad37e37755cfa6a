-- expand
-- Erasing a buyer leaves alone what a later refund needs, and finds the name also as addresses spell it.

-- A pattern of all spellings of a name: each sign as it is or percent-encoded (`%40` for `@`), with capitals or without, once or
-- several times (`%2540`), and a space also as `+`. `store/erasure.py` has the same for SQLite.
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

-- A text without the name; `store/erasure.py` says the rule and has it for SQLite. The pattern is made only for a text that can
-- have the name in it.
CREATE OR REPLACE FUNCTION earmark_unname(said text, field text, the_buyer text, the_alias text) RETURNS text
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

-- The name becomes the pseudonym, everywhere in one transaction: half of it would be a total that no booking adds up to.
-- Locks in the order of all transactions, and looks at what it locked in statements of its own: a hold of this buyer that was
-- under way has committed by then, and is an obstacle; one that comes later is another buyer's, whole.
CREATE OR REPLACE FUNCTION earmark_erase_buyer(the_buyer text, the_alias text, moment timestamptz, kept text[])
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

    -- What a refund is asked for by stays: of an account, the payment's reference to it; of every payment, the gateway's code.
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
