-- expand
-- When the time of a key is over, all that it remembers goes, and nothing else comes in its place.
-- That a key which stays keeps its answer is the first guard's.
CREATE TRIGGER journal_forgets_whole BEFORE UPDATE OF caller, key, request_hash, answer_status, answer_body ON journal
WHEN NEW.key IS NULL
     AND (OLD.caller, OLD.key, OLD.request_hash, OLD.answer_status, OLD.answer_body)
         IS NOT (NEW.caller, NEW.key, NEW.request_hash, NEW.answer_status, NEW.answer_body)
     AND coalesce(NEW.caller, NEW.request_hash, NEW.answer_status, NEW.answer_body) IS NOT NULL
BEGIN
    SELECT RAISE(ABORT, 'earmark: a key forgets all that it remembers, or nothing (journal_is_append_only)');
END;
