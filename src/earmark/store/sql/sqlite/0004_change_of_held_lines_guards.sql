-- expand
-- A hold may be given other lines, which nothing but its release could do before. Code that has no such verb runs on this as it did.

-- A sale may be cancelled in part: then lines go, and no line is added or changed. Of a hold, see below.
DROP TRIGGER booking_lines_only_shrink;

CREATE TRIGGER booking_lines_only_shrink BEFORE UPDATE OF lines ON bookings
WHEN NEW.lines IS NOT OLD.lines AND NOT (OLD.state = 'held' AND NEW.state = 'held')
BEGIN
    SELECT RAISE(ABORT, 'earmark: lines only shrink, and only while a booking is confirmed (booking_lines_only_shrink)')
     WHERE EXISTS (
        SELECT 1
          FROM (SELECT json_extract(line.value, '$.id') AS id, json_extract(line.value, '$.price') AS price, count(*) AS seats
                  FROM json_each(NEW.lines, '$.seats') AS line GROUP BY 1, 2) AS kept
         WHERE kept.seats > (
                SELECT count(*) FROM json_each(OLD.lines, '$.seats') AS line
                 WHERE json_extract(line.value, '$.id') IS kept.id AND json_extract(line.value, '$.price') IS kept.price)
     ) OR EXISTS (
        SELECT 1
          FROM (SELECT json_extract(line.value, '$.id') AS id, json_extract(line.value, '$.price') AS price,
                       sum(json_extract(line.value, '$.units')) AS units, min(json_extract(line.value, '$.units')) AS units_min,
                       max(json_type(line.value, '$.units') IS NOT 'integer') AS odd
                  FROM json_each(NEW.lines, '$.pools') AS line GROUP BY 1, 2) AS kept
         WHERE kept.odd OR (kept.units_min > 0 AND kept.units <= (
                SELECT sum(json_extract(line.value, '$.units')) FROM json_each(OLD.lines, '$.pools') AS line
                 WHERE json_extract(line.value, '$.id') IS kept.id AND json_extract(line.value, '$.price') IS kept.price))
               IS NOT 1
     ) OR (
        (OLD.state <> 'confirmed' OR NEW.state <> 'confirmed')
        AND coalesce(json_array_length(NEW.lines, '$.seats'), 0) + coalesce((
                SELECT sum(json_extract(line.value, '$.units')) FROM json_each(NEW.lines, '$.pools') AS line), 0)
            IS NOT
            coalesce(json_array_length(OLD.lines, '$.seats'), 0) + coalesce((
                SELECT sum(json_extract(line.value, '$.units')) FROM json_each(OLD.lines, '$.pools') AS line), 0)
     );
END;

-- A hold may be changed: its end stays, every line that stays keeps its price, each seat and pool stands in it once, something is
-- left, and the total is what the lines cost.
CREATE TRIGGER hold_changes_keep_end_and_prices BEFORE UPDATE OF lines ON bookings
WHEN NEW.lines IS NOT OLD.lines AND OLD.state = 'held' AND NEW.state = 'held'
BEGIN
    SELECT RAISE(ABORT, 'earmark: the lines of a hold change only with its end and its prices kept (hold_changes_keep_end_and_prices)')
     WHERE NEW.expires_at IS NOT OLD.expires_at
        OR NOT EXISTS (SELECT 1 FROM (SELECT 1 FROM json_each(NEW.lines, '$.seats') UNION ALL
                                      SELECT 1 FROM json_each(NEW.lines, '$.pools')))
        OR EXISTS (
            SELECT 1
              FROM (SELECT 'seat' AS kind, json_extract(line.value, '$.id') AS id, json_extract(line.value, '$.price') AS price,
                           json_type(line.value, '$.price') AS price_type, 1 AS units, 'integer' AS units_type
                      FROM json_each(NEW.lines, '$.seats') AS line
                    UNION ALL
                    SELECT 'pool', json_extract(line.value, '$.id'), json_extract(line.value, '$.price'),
                           json_type(line.value, '$.price'), json_extract(line.value, '$.units'), json_type(line.value, '$.units')
                      FROM json_each(NEW.lines, '$.pools') AS line) AS new_line
             GROUP BY kind, id
            HAVING count(*) > 1 OR min(units) <= 0 OR max(units_type IS NOT 'integer')
                OR max(price_type IS NOT 'integer') OR min(price) < 0
        )
        OR EXISTS (
            SELECT 1 FROM json_each(OLD.lines, '$.seats') AS had
              JOIN json_each(NEW.lines, '$.seats') AS has
                ON json_extract(has.value, '$.id') IS json_extract(had.value, '$.id')
             WHERE json_extract(has.value, '$.price') IS NOT json_extract(had.value, '$.price')
        )
        OR EXISTS (
            SELECT 1 FROM json_each(OLD.lines, '$.pools') AS had
              JOIN json_each(NEW.lines, '$.pools') AS has
                ON json_extract(has.value, '$.id') IS json_extract(had.value, '$.id')
             WHERE json_extract(has.value, '$.price') IS NOT json_extract(had.value, '$.price')
        )
        OR NEW.total IS NOT (
            coalesce((SELECT sum(json_extract(line.value, '$.price')) FROM json_each(NEW.lines, '$.seats') AS line), 0)
            + coalesce((SELECT sum(json_extract(line.value, '$.price') * json_extract(line.value, '$.units'))
                          FROM json_each(NEW.lines, '$.pools') AS line), 0)
        );
END;
