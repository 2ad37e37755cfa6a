-- expand
-- A hold may be given other lines, which nothing but its release could do before. Code that has no such verb runs on this as it did.

-- What a booking claims changes in two ways. A hold may be changed: its end stays, every line that stays keeps its price, each
-- seat and pool stands in it once, something is left, and the total is what the lines cost. A sale may be cancelled in part: then
-- lines go, and no line is added or changed.
CREATE OR REPLACE FUNCTION earmark_keep_lines() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state = 'held' AND NEW.state = 'held' THEN
        IF NEW.expires_at <> OLD.expires_at OR coalesce(earmark_units(NEW.lines), 0) = 0 OR EXISTS (
            SELECT 1 FROM (
                SELECT 'seat' AS kind, line -> 'id' AS id, line -> 'price' AS price, 1 AS units
                  FROM jsonb_array_elements(NEW.lines -> 'seats') line
                UNION ALL
                SELECT 'pool', line -> 'id', line -> 'price', (line ->> 'units')::integer
                  FROM jsonb_array_elements(NEW.lines -> 'pools') line) AS new_line
             GROUP BY kind, id
            HAVING count(*) > 1 OR bool_and(units > 0) IS NOT TRUE OR bool_and(price::bigint >= 0) IS NOT TRUE
        ) OR EXISTS (
            SELECT 1 FROM jsonb_array_elements(OLD.lines -> 'seats') had
              JOIN jsonb_array_elements(NEW.lines -> 'seats') has ON has -> 'id' = had -> 'id'
             WHERE has -> 'price' <> had -> 'price'
        ) OR EXISTS (
            SELECT 1 FROM jsonb_array_elements(OLD.lines -> 'pools') had
              JOIN jsonb_array_elements(NEW.lines -> 'pools') has ON has -> 'id' = had -> 'id'
             WHERE has -> 'price' <> had -> 'price'
        ) OR NEW.total <> (
            SELECT coalesce(sum((line ->> 'price')::bigint), 0) FROM jsonb_array_elements(NEW.lines -> 'seats') line
        ) + (
            SELECT coalesce(sum((line ->> 'price')::bigint * (line ->> 'units')::integer), 0)
              FROM jsonb_array_elements(NEW.lines -> 'pools') line
        ) THEN
            RAISE EXCEPTION 'earmark: the lines of hold % change only with its end and its prices kept', OLD.id
                USING ERRCODE = 'check_violation', CONSTRAINT = 'hold_changes_keep_end_and_prices';
        END IF;
        RETURN NEW;
    END IF;
    IF EXISTS (
        SELECT line -> 'id', line -> 'price' FROM jsonb_array_elements(NEW.lines -> 'seats') line
        EXCEPT ALL
        SELECT line -> 'id', line -> 'price' FROM jsonb_array_elements(OLD.lines -> 'seats') line
    ) OR EXISTS (
        SELECT 1
          FROM (SELECT line -> 'id' AS id, line -> 'price' AS price,
                       sum((line ->> 'units')::integer) AS units, min((line ->> 'units')::integer) AS units_min
                  FROM jsonb_array_elements(NEW.lines -> 'pools') line GROUP BY 1, 2) AS kept
         WHERE (kept.units_min > 0 AND kept.units <= (
                SELECT sum((line ->> 'units')::integer) FROM jsonb_array_elements(OLD.lines -> 'pools') line
                 WHERE line -> 'id' = kept.id AND line -> 'price' = kept.price)) IS NOT TRUE
    ) OR (
        (OLD.state <> 'confirmed' OR NEW.state <> 'confirmed') AND earmark_units(NEW.lines) <> earmark_units(OLD.lines)
    ) THEN
        RAISE EXCEPTION 'earmark: the lines of booking % only shrink, and only while it is confirmed', OLD.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'booking_lines_only_shrink';
    END IF;
    RETURN NEW;
END $$;

-- The guard reads the tables of its own schema, as all guards do: a function that is replaced loses its path.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION earmark_keep_lines() SET search_path = %I, pg_temp', current_schema());
END $$;
