-- name: describe_role
-- What an operator must know of a role before it serves: whether it exists, and whether it could undo the guards all the same.
SELECT r.rolsuper AS is_superuser, pg_has_role(r.oid, c.relowner, 'MEMBER') AS is_owner
  FROM pg_roles r, pg_class c
 WHERE r.rolname = $1 AND c.oid = to_regclass('journal');

-- name: word_grants
-- The statements that let a role serve in this schema and no more: it reads and writes rows, and deletes where Earmark does.
-- To change or empty a table, or to switch a trigger off, it would have to own the table. To erase a buyer is the owner's, too.
SELECT format(
    'REVOKE ALL ON ALL TABLES IN SCHEMA %1$I FROM %2$I;
     GRANT USAGE ON SCHEMA %1$I TO %2$I;
     GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA %1$I TO %2$I;
     GRANT DELETE ON %1$I.buyer_totals, %1$I.beats, %1$I.webhooks, %1$I.webhook_keys, %1$I.deliveries TO %2$I;
     REVOKE INSERT, UPDATE ON %1$I.earmark_migrations FROM %2$I;
     REVOKE ALL ON %1$I.erasures FROM %2$I;
     REVOKE ALL ON FUNCTION %1$I.earmark_erase_buyer(text, text, timestamptz, text[]) FROM %2$I;
     GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA %1$I TO %2$I;',
    current_schema(), $1::text);
