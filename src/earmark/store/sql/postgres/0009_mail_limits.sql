-- expand
-- Whom a mail went to and about whose booking, as hashes: how many mails an address and a buyer were sent lately is counted by them. They are
-- written when a mail is leased, removed when the buyer is erased, and gone with the row after a week.
ALTER TABLE mails ADD COLUMN recipient_hash text;
ALTER TABLE mails ADD COLUMN buyer_hash text;

-- For the mailer: what an address was sent lately.
CREATE INDEX mails_by_recipient ON mails (recipient_hash, tried_at) WHERE recipient_hash IS NOT NULL;
-- For the mailer: what a buyer was sent lately.
CREATE INDEX mails_by_buyer ON mails (buyer_hash, tried_at) WHERE buyer_hash IS NOT NULL;
-- For the operator: what was above a limit.
CREATE INDEX mails_above_limit ON mails (ended_at) WHERE state = 'skipped' AND error IN ('recipient_limit', 'buyer_limit');
