-- Tickets, their pages and their scans. One writer: no row is locked.

-- name: insert_ticket_page
-- The page of a booking, made with its first tickets. No row written means that it is there.
INSERT INTO ticket_pages (booking_id, secret, created_at) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING;

-- name: insert_tickets
-- Those that are not there yet, in one statement.
INSERT INTO tickets (id, booking_id, event_id, kind, name, unit, secret, created_at)
SELECT i.value, ?1, ?2, k.value, n.value, u.value, s.value, ?3
  FROM json_each(?4) AS i
  JOIN json_each(?5) AS k ON k.key = i.key
  JOIN json_each(?6) AS n ON n.key = i.key
  JOIN json_each(?7) AS u ON u.key = i.key
  JOIN json_each(?8) AS s ON s.key = i.key
 WHERE true
ON CONFLICT DO NOTHING;

-- name: read_ticket_page
-- The page of a booking, if its tickets were ever asked for.
SELECT booking_id, secret, created_at FROM ticket_pages WHERE booking_id = ?1;

-- name: find_ticket_page
-- The page that a link opens.
SELECT booking_id, secret, created_at FROM ticket_pages WHERE secret = ?1;

-- name: list_tickets
-- The tickets of a booking, each with the time of its admission.
SELECT t.id, t.booking_id, t.event_id, t.kind, t.name, t.unit, t.secret, t.created_at, s.scanned_at AS admitted_at
  FROM tickets t
  LEFT JOIN ticket_scans s ON s.ticket_id = t.id AND s.admitted AND s.reason IS NULL AND s.undone_at IS NULL
 WHERE t.booking_id = ?1 ORDER BY t.kind DESC, t.name, t.unit LIMIT 10000;

-- name: list_checked_in
-- Of these bookings those of which a ticket has admitted, unless that was undone.
SELECT DISTINCT t.booking_id FROM json_each(?1) AS k CROSS JOIN tickets t ON t.booking_id = k.value
  JOIN ticket_scans s ON s.ticket_id = t.id AND s.admitted AND s.undone_at IS NULL LIMIT 1000;

-- name: find_ticket
-- The ticket of a code.
SELECT id, booking_id, event_id, kind, name, unit, secret, created_at FROM tickets WHERE secret = ?1;

-- name: read_ticket
-- The ticket of a scan that is sent again.
SELECT id, booking_id, event_id, kind, name, unit, secret, created_at FROM tickets WHERE id = ?1;

-- name: list_tickets_of_event
-- For a door without a network: the tickets of an event behind an id, each with its booking's state and lines, and whether it
-- has admitted. Of a pool's unit also how many others of its booking let a visitor in.
SELECT t.id, t.booking_id, t.event_id, t.kind, t.name, t.unit, t.secret, t.created_at, s.scanned_at AS admitted_at,
       b.state, b.lines,
       CASE WHEN t.kind = 'pool' THEN (
           SELECT count(DISTINCT o.id) FROM tickets o
             JOIN ticket_scans i ON i.ticket_id = o.id AND i.admitted AND i.undone_at IS NULL
            WHERE o.booking_id = t.booking_id AND o.kind = t.kind AND o.name = t.name AND o.id <> t.id)
       ELSE 0 END AS others_inside
  FROM tickets t
  JOIN bookings b ON b.id = t.booking_id
  LEFT JOIN ticket_scans s ON s.ticket_id = t.id AND s.admitted AND s.reason IS NULL AND s.undone_at IS NULL
 WHERE t.event_id = ?1 AND t.id > ?2 ORDER BY t.id LIMIT ?3;

-- name: find_scan
-- The scan that this key sent under this nonce before.
SELECT id, caller, nonce, mode, code_hash, ticket_id, event_id, admitted, reason, offline, scanned_at, received_at, undone_at
  FROM ticket_scans WHERE caller = ?1 AND nonce = ?2;

-- name: find_admission
-- The scan that admitted this ticket, unless it was undone.
SELECT id, caller, nonce, mode, code_hash, ticket_id, event_id, admitted, reason, offline, scanned_at, received_at, undone_at
  FROM ticket_scans WHERE ticket_id = ?1 AND admitted AND reason IS NULL AND undone_at IS NULL LIMIT 1;

-- name: count_others_inside
-- Of a pool's units in a booking those, but for this one, that let a visitor in and were not undone, cancelled units too. Read
-- after the booking is locked, which every scan of it does.
SELECT count(DISTINCT t.id) AS inside FROM tickets t
  JOIN ticket_scans s ON s.ticket_id = t.id AND s.admitted AND s.undone_at IS NULL
 WHERE t.booking_id = ?1 AND t.kind = ?2 AND t.name = ?3 AND t.id <> ?4;

-- name: insert_scan
-- The one guarded write. No row written means that this nonce was here before, or that the ticket has admitted meanwhile.
INSERT INTO ticket_scans
    (id, caller, nonce, mode, code_hash, ticket_id, event_id, admitted, reason, offline, scanned_at, received_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
ON CONFLICT DO NOTHING;

-- name: undo_scan
-- The ticket may admit again.
UPDATE ticket_scans SET undone_at = ?2
 WHERE id = ?1 AND admitted AND reason IS NULL AND undone_at IS NULL;

-- name: list_scans
-- For the audit: the scans of an event behind an id, by age. A key of the other mode may name any event: its scans are not shown.
SELECT s.id, s.caller, s.nonce, s.mode, s.code_hash, s.ticket_id, s.event_id, s.admitted, s.reason, s.offline,
       s.scanned_at, s.received_at, s.undone_at, t.kind, t.name, t.unit, t.booking_id
  FROM ticket_scans s LEFT JOIN tickets t ON t.id = s.ticket_id
 WHERE s.event_id = ?1 AND s.mode = ?2 AND s.id > ?3 ORDER BY s.id LIMIT ?4;
