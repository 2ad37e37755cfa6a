-- expand
-- How a buyer is reached about a booking, and the mails about it.
--
-- No foreign key to `bookings`: a booking is never deleted, and a contact is only written under a lock of its booking.

-- Whom mails about a booking go to. Deleted when the buyer is erased.
CREATE TABLE booking_contacts (
    booking_id uuid        PRIMARY KEY,
    name       text        NOT NULL CONSTRAINT contact_name_fits CHECK (char_length(name) BETWEEN 1 AND 200),
    email      text        NOT NULL CONSTRAINT contact_email_fits CHECK (char_length(email) BETWEEN 3 AND 254),
    language   text        NOT NULL,
    created_at timestamptz NOT NULL,
    changed_at timestamptz NOT NULL
);

-- One mail for each entry that makes one, written in the transaction that numbers the entry. It names no buyer: the contact is read
-- when the mail is sent.
CREATE TABLE mails (
    id         uuid        PRIMARY KEY,
    booking_id uuid        NOT NULL,
    entry_id   uuid        NOT NULL,
    kind       text        NOT NULL,
    state      text        NOT NULL DEFAULT 'pending'
        CONSTRAINT mail_state_is_known CHECK (state IN ('pending', 'sent', 'failed', 'skipped')),
    created_at timestamptz NOT NULL,
    due_at     timestamptz NOT NULL,
    tries      integer     NOT NULL DEFAULT 0,
    tried_at   timestamptz,
    ended_at   timestamptz,
    -- A code of Earmark's own: what a mail server answers may repeat the address.
    error      text,
    CONSTRAINT mail_ends_when_it_does CHECK ((state = 'pending') = (ended_at IS NULL)),
    CONSTRAINT mail_is_queued_once UNIQUE (entry_id, kind)
);

-- For the mailer: what is due.
CREATE INDEX mails_due ON mails (due_at) WHERE state = 'pending';
-- For the operator: what was given up.
CREATE INDEX mails_failed ON mails (ended_at) WHERE state = 'failed';
-- For the erasure of a buyer: the mails of a booking.
CREATE INDEX mails_by_booking ON mails (booking_id);
-- For the janitor: what is old.
CREATE INDEX mails_ended ON mails (ended_at) WHERE ended_at IS NOT NULL;
