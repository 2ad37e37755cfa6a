-- expand
-- The rules of tickets, in the schema: what no program and no hand-written SQL may do to these rows.
-- They are in a file of their own so that a test can build a database without them.

-- One admission per ticket: of two scanners at once, one writes the row.
CREATE UNIQUE INDEX ticket_admits_once ON ticket_scans (ticket_id)
    WHERE admitted AND reason IS NULL AND undone_at IS NULL;

-- Only a ticket of a confirmed booking admits.
CREATE TRIGGER admission_is_of_a_sale BEFORE INSERT ON ticket_scans
WHEN NEW.admitted AND NEW.reason IS NULL AND NOT EXISTS (
    SELECT 1 FROM tickets t JOIN bookings b ON b.id = t.booking_id
     WHERE t.id = NEW.ticket_id AND b.state = 'confirmed')
BEGIN
    SELECT RAISE(ABORT, 'earmark: an admission is of a confirmed booking (admission_is_of_a_sale)');
END;

-- A ticket and a page stay as they are, and a scan too, but that an admission is undone once. A REPLACE would delete without
-- running the triggers on DELETE: it is ignored, as the program's own second insert is.
CREATE TRIGGER ticket_page_stays BEFORE UPDATE ON ticket_pages
BEGIN
    SELECT RAISE(ABORT, 'earmark: the page of a booking stays as it is (ticket_page_stays)');
END;

CREATE TRIGGER ticket_page_is_not_removed BEFORE DELETE ON ticket_pages
BEGIN
    SELECT RAISE(ABORT, 'earmark: the page of a booking stays as it is (ticket_page_stays)');
END;

CREATE TRIGGER ticket_page_is_not_replaced BEFORE INSERT ON ticket_pages
WHEN EXISTS (SELECT 1 FROM ticket_pages p WHERE p.booking_id = NEW.booking_id)
     OR EXISTS (SELECT 1 FROM ticket_pages p WHERE p.secret = NEW.secret)
BEGIN
    SELECT RAISE(IGNORE);
END;

CREATE TRIGGER ticket_stays BEFORE UPDATE ON tickets
BEGIN
    SELECT RAISE(ABORT, 'earmark: a ticket stays as it is (ticket_stays)');
END;

CREATE TRIGGER ticket_is_not_removed BEFORE DELETE ON tickets
BEGIN
    SELECT RAISE(ABORT, 'earmark: a ticket stays as it is (ticket_stays)');
END;

CREATE TRIGGER ticket_is_not_replaced BEFORE INSERT ON tickets
WHEN EXISTS (SELECT 1 FROM tickets t WHERE t.id = NEW.id)
     OR EXISTS (SELECT 1 FROM tickets t WHERE t.secret = NEW.secret)
     OR EXISTS (SELECT 1 FROM tickets t
                 WHERE t.booking_id = NEW.booking_id AND t.kind = NEW.kind AND t.name = NEW.name AND t.unit = NEW.unit)
BEGIN
    SELECT RAISE(IGNORE);
END;

CREATE TRIGGER scan_stays BEFORE UPDATE ON ticket_scans
WHEN OLD.undone_at IS NOT NULL
     OR (OLD.id, OLD.caller, OLD.nonce, OLD.mode, OLD.code_hash, OLD.ticket_id, OLD.event_id, OLD.admitted, OLD.reason,
         OLD.offline, OLD.scanned_at, OLD.received_at)
        IS NOT
        (NEW.id, NEW.caller, NEW.nonce, NEW.mode, NEW.code_hash, NEW.ticket_id, NEW.event_id, NEW.admitted, NEW.reason,
         NEW.offline, NEW.scanned_at, NEW.received_at)
BEGIN
    SELECT RAISE(ABORT, 'earmark: a scan stays as it is (scan_stays)');
END;

CREATE TRIGGER scan_is_not_removed BEFORE DELETE ON ticket_scans
BEGIN
    SELECT RAISE(ABORT, 'earmark: a scan stays as it is (scan_stays)');
END;

CREATE TRIGGER scan_is_not_replaced BEFORE INSERT ON ticket_scans
WHEN EXISTS (SELECT 1 FROM ticket_scans s WHERE s.id = NEW.id)
     OR EXISTS (SELECT 1 FROM ticket_scans s WHERE s.caller = NEW.caller AND s.nonce = NEW.nonce)
     OR (NEW.admitted AND NEW.reason IS NULL AND EXISTS (
            SELECT 1 FROM ticket_scans s
             WHERE s.ticket_id = NEW.ticket_id AND s.admitted AND s.reason IS NULL AND s.undone_at IS NULL))
BEGIN
    SELECT RAISE(IGNORE);
END;
