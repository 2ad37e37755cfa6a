-- expand
-- A payment that needs attention is settled by a person, and by nothing else; a later refund of it that is refused calls
-- somebody again. The guard of `0006_payment_guards.sql`, with these two edges.

DROP TRIGGER payment_moves_along_an_edge;

CREATE TRIGGER payment_moves_along_an_edge BEFORE UPDATE OF state ON payments
WHEN OLD.state <> NEW.state AND (OLD.state, NEW.state) NOT IN (VALUES
    ('pending', 'requires_action'), ('pending', 'unknown'), ('pending', 'authorised'), ('pending', 'captured'),
    ('pending', 'voiding'), ('pending', 'failed'), ('pending', 'needs_attention'),
    ('requires_action', 'pending'), ('requires_action', 'authorised'), ('requires_action', 'captured'),
    ('requires_action', 'voiding'), ('requires_action', 'failed'), ('requires_action', 'needs_attention'),
    ('unknown', 'pending'), ('unknown', 'requires_action'), ('unknown', 'authorised'), ('unknown', 'captured'),
    ('unknown', 'voiding'), ('unknown', 'failed'), ('unknown', 'needs_attention'),
    ('authorised', 'captured'), ('authorised', 'voiding'), ('authorised', 'failed'),
    ('authorised', 'needs_attention'),
    ('captured', 'partially_refunded'), ('captured', 'refunded'), ('captured', 'needs_attention'),
    ('partially_refunded', 'refunded'), ('partially_refunded', 'needs_attention'),
    ('refunded', 'needs_attention'),
    ('voiding', 'captured'), ('voiding', 'voided'), ('voiding', 'needs_attention'),
    ('voided', 'captured'), ('voided', 'voiding'), ('voided', 'needs_attention'),
    ('failed', 'captured'), ('failed', 'voiding'), ('failed', 'needs_attention'),
    ('needs_attention', 'authorised'), ('needs_attention', 'captured'), ('needs_attention', 'voiding'),
    ('needs_attention', 'failed'), ('needs_attention', 'settled'),
    ('settled', 'needs_attention')
)
BEGIN
    SELECT RAISE(ABORT, 'earmark: a payment cannot move this way (payment_moves_along_an_edge)');
END;
