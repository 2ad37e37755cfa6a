-- name: describe_role
-- What an operator must know of a role before it serves: whether it exists, and whether it could undo the guards all the same.
SELECT r.rolsuper AS is_superuser, pg_has_role(r.oid, c.relowner, 'MEMBER') AS is_owner,
       has_schema_privilege(r.oid, c.relnamespace, 'CREATE') AS makes_tables, c.relnamespace::regnamespace::text AS schema
  FROM pg_roles r, pg_class c
 WHERE r.rolname = $1 AND c.oid = to_regclass('journal');

-- name: word_grants
-- The statements that let a role serve with these tables of this schema and no others: it reads and writes rows, and deletes
-- where Earmark does. To change or empty a table, or to switch a trigger off, it would have to own the table. To erase a buyer is
-- the owner's, too. A sequence goes with the table that it numbers.
SELECT format(
    'REVOKE ALL ON %3$s FROM %2$I;
     GRANT USAGE ON SCHEMA %1$I TO %2$I;
     GRANT SELECT, INSERT, UPDATE ON %3$s TO %2$I;
     GRANT DELETE ON %1$I.buyer_totals, %1$I.beats, %1$I.webhooks, %1$I.webhook_keys, %1$I.deliveries,
         %1$I.payment_keys, %1$I.payers, %1$I.mails TO %2$I;
     GRANT SELECT ON %1$I.earmark_migrations TO %2$I;
     REVOKE ALL ON FUNCTION %1$I.earmark_erase_buyer(text, text, timestamptz, text[]) FROM %2$I;',
    current_schema(), $1::text, string_agg(t.oid::regclass::text, ', '))
    || coalesce(format('GRANT USAGE, SELECT ON SEQUENCE %s TO %I;', string_agg(s.names, ', '), $1::text), '')
  FROM pg_class t
  LEFT JOIN LATERAL (SELECT string_agg(d.objid::regclass::text, ', ') AS names
                       FROM pg_depend d JOIN pg_class n ON n.oid = d.objid AND n.relkind = 'S'
                      WHERE d.refobjid = t.oid AND d.deptype IN ('a', 'i')) AS s ON true
 WHERE t.relnamespace = current_schema()::regnamespace AND t.relkind = 'r' AND t.relname = ANY ($2::text[]);

-- name: missing_grants
-- Of these tables, those that the role of this session may not read and write.
SELECT current_user AS role, array_agg(t.relname::text ORDER BY t.relname) AS tables
  FROM pg_class t
 WHERE t.relnamespace = current_schema()::regnamespace AND t.relkind = 'r' AND t.relname = ANY ($1::text[])
   AND NOT (has_table_privilege(t.oid, 'SELECT') AND has_table_privilege(t.oid, 'INSERT')
            AND has_table_privilege(t.oid, 'UPDATE'))
HAVING count(*) > 0;
