-- expand
-- The rules of tickets, in the schema: what no program and no hand-written SQL may do to these rows.
-- They are in a file of their own so that a test can build a database without them.

-- One admission per ticket: of two scanners at once, one writes the row.
CREATE UNIQUE INDEX ticket_admits_once ON ticket_scans (ticket_id)
    WHERE admitted AND reason IS NULL AND undone_at IS NULL;

-- Only a ticket of a confirmed booking admits. The booking is locked by then, so it cannot be cancelled in between.
CREATE FUNCTION earmark_keep_admission() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM tickets t JOIN bookings b ON b.id = t.booking_id
                WHERE t.id = NEW.ticket_id AND b.state = 'confirmed') THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'earmark: ticket % is of no confirmed booking', NEW.ticket_id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'admission_is_of_a_sale';
END $$;

CREATE TRIGGER admission_is_of_a_sale AFTER INSERT ON ticket_scans
    FOR EACH ROW WHEN (NEW.admitted AND NEW.reason IS NULL) EXECUTE FUNCTION earmark_keep_admission();

-- A ticket and a page stay as they are, and a scan too, but that an admission is undone once.
CREATE FUNCTION earmark_keep_ticket() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'earmark: no such % on %', lower(TG_OP), TG_TABLE_NAME
        USING ERRCODE = 'check_violation', CONSTRAINT = TG_ARGV[0];
END $$;

CREATE TRIGGER ticket_page_stays BEFORE UPDATE OR DELETE ON ticket_pages
    FOR EACH ROW EXECUTE FUNCTION earmark_keep_ticket('ticket_page_stays');

CREATE TRIGGER ticket_stays BEFORE UPDATE OR DELETE ON tickets
    FOR EACH ROW EXECUTE FUNCTION earmark_keep_ticket('ticket_stays');

CREATE TRIGGER scan_is_not_removed BEFORE DELETE ON ticket_scans
    FOR EACH ROW EXECUTE FUNCTION earmark_keep_ticket('scan_stays');

CREATE TRIGGER scan_stays BEFORE UPDATE ON ticket_scans
    FOR EACH ROW WHEN (
        OLD.undone_at IS NOT NULL
        OR (OLD.id, OLD.caller, OLD.nonce, OLD.mode, OLD.code_hash, OLD.admitted, OLD.offline, OLD.scanned_at, OLD.received_at)
           <> (NEW.id, NEW.caller, NEW.nonce, NEW.mode, NEW.code_hash, NEW.admitted, NEW.offline, NEW.scanned_at, NEW.received_at)
        OR (OLD.ticket_id, OLD.event_id, OLD.reason) IS DISTINCT FROM (NEW.ticket_id, NEW.event_id, NEW.reason)
    ) EXECUTE FUNCTION earmark_keep_ticket('scan_stays');

CREATE TRIGGER nothing_is_truncated BEFORE TRUNCATE ON ticket_pages
    FOR EACH STATEMENT EXECUTE FUNCTION earmark_keep_ticket('nothing_is_truncated');
CREATE TRIGGER nothing_is_truncated BEFORE TRUNCATE ON tickets
    FOR EACH STATEMENT EXECUTE FUNCTION earmark_keep_ticket('nothing_is_truncated');
CREATE TRIGGER nothing_is_truncated BEFORE TRUNCATE ON ticket_scans
    FOR EACH STATEMENT EXECUTE FUNCTION earmark_keep_ticket('nothing_is_truncated');
