-- expand
-- Each guard reads the tables of its own schema, whatever path a session has set. Without this, a session looks into its
-- temporary tables first: one of the name `bookings`, empty, let a seat go that a booking had.
-- A migration that replaces a guard does this again, for a function that is replaced loses its path.
DO $$
DECLARE
    guard regprocedure;
BEGIN
    FOR guard IN SELECT p.oid FROM pg_proc p
                  WHERE p.pronamespace = current_schema()::regnamespace AND p.prorettype = 'trigger'::regtype
                    AND p.proname LIKE 'earmark\_%'
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', guard, current_schema());
    END LOOP;
END $$;
