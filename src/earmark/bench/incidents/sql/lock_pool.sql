-- What a careless report or a stuck session does: it locks the row that every hold of this event must write.
SELECT capacity FROM pools WHERE event_id = $1 FOR UPDATE
