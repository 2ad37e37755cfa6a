-- expand
-- Sealing codes of older releases: the one exception that guards make for it, so that no table is locked against sales.
-- Only the owner of the tables can use it, in a transaction that says so first, and only for the columns that hold codes.

-- In which transaction codes are being sealed. Nothing stays in the row when it has ended.
-- Only the owner of the tables writes here: `earmark migrate --application-role` grants it to no other role.
CREATE TABLE sealings (
    one         boolean PRIMARY KEY DEFAULT true CHECK (one),
    transaction xid8
);

-- Whether a guard makes its exception: this very transaction seals, and the session's role owns the guarded table. The second
-- condition stands without the first, and the table is named with its schema, as in `earmark_is_erasing`.
CREATE FUNCTION earmark_is_sealing(guarded oid) RETURNS boolean LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kept_in name;
    owned   boolean;
    sealing boolean;
BEGIN
    SELECT n.nspname, pg_catalog.pg_has_role(current_user, c.relowner, 'MEMBER') INTO kept_in, owned
      FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = guarded;
    IF owned IS NOT TRUE THEN
        RETURN false;
    END IF;
    EXECUTE format('SELECT EXISTS (SELECT FROM %I.sealings s WHERE s.transaction = pg_current_xact_id_if_assigned())', kept_in)
       INTO sealing;
    RETURN sealing;
END $$;

-- The guards as they were, each with the exception. They are asked only where a statement breaks their rule, so a sale pays
-- nothing for it.

-- An account that has a digest keeps it, in a sealing too. Of entries only the first has its account's id as its own.
CREATE OR REPLACE FUNCTION earmark_refuse_account_change() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    sealing boolean;
    codes   text[];
BEGIN
    IF TG_OP = 'UPDATE' THEN
        EXECUTE pg_catalog.format('SELECT %I.earmark_is_sealing($1)', TG_TABLE_SCHEMA) INTO sealing USING TG_RELID;
        IF sealing THEN
            codes := CASE
                WHEN TG_TABLE_NAME = 'accounts' AND to_jsonb(OLD) -> 'code_digest' = 'null' THEN '{id,code_digest}'
                WHEN TG_TABLE_NAME = 'account_entries' AND to_jsonb(OLD) ->> 'kind' = 'opened' THEN '{account_id,id}'
                WHEN TG_TABLE_NAME IN ('account_entries', 'account_payments') THEN '{account_id}'
                ELSE '{}' END;
            IF to_jsonb(OLD) - codes = to_jsonb(NEW) - codes THEN
                RETURN NEW;
            END IF;
        END IF;
    END IF;
    RAISE EXCEPTION 'earmark: no such % on %', lower(TG_OP), TG_TABLE_NAME
        USING ERRCODE = 'check_violation', CONSTRAINT = TG_ARGV[0];
END $$;

-- With the exception for an erasure, as it was.
CREATE OR REPLACE FUNCTION earmark_keep_journal() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    erasing boolean;
    sealing boolean;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        EXECUTE pg_catalog.format('SELECT %I.earmark_is_erasing($1, NULL)', TG_TABLE_SCHEMA) INTO erasing USING TG_RELID;
        IF erasing AND to_jsonb(OLD) - '{actor,reason,facts,caller,key,answer_body}'::text[]
                       = to_jsonb(NEW) - '{actor,reason,facts,caller,key,answer_body}'::text[] THEN
            RETURN NEW;
        END IF;
        EXECUTE pg_catalog.format('SELECT %I.earmark_is_sealing($1)', TG_TABLE_SCHEMA) INTO sealing USING TG_RELID;
        IF sealing AND to_jsonb(OLD) - '{facts,key,request_hash,answer_body}'::text[]
                       = to_jsonb(NEW) - '{facts,key,request_hash,answer_body}'::text[] THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION 'earmark: the journal is append-only'
        USING ERRCODE = 'check_violation', CONSTRAINT = 'journal_is_append_only';
END $$;

-- Likewise.
CREATE OR REPLACE FUNCTION earmark_keep_gateway_payment() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    erasing boolean;
    sealing boolean;
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'earmark: payment % stays', OLD.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'payment_stays';
    END IF;
    EXECUTE pg_catalog.format('SELECT %I.earmark_is_erasing($1, NULL)', TG_TABLE_SCHEMA) INTO erasing USING TG_RELID;
    IF erasing AND to_jsonb(OLD) - '{method,code,message,action,return_url}'::text[]
                   = to_jsonb(NEW) - '{method,code,message,action,return_url}'::text[] THEN
        RETURN NULL;
    END IF;
    EXECUTE pg_catalog.format('SELECT %I.earmark_is_sealing($1)', TG_TABLE_SCHEMA) INTO sealing USING TG_RELID;
    IF sealing AND to_jsonb(OLD) - 'method' = to_jsonb(NEW) - 'method' THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'earmark: payment % keeps its id, booking, gateway, amount and beginning', OLD.id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'payment_keeps_its_identity';
END $$;

-- A function that is replaced loses its path: see 0024.
DO $$
DECLARE
    guard text;
BEGIN
    FOREACH guard IN ARRAY ARRAY['earmark_refuse_account_change()', 'earmark_keep_journal()', 'earmark_keep_gateway_payment()']
    LOOP
        EXECUTE format('ALTER FUNCTION %I.%s SET search_path = %I, pg_temp', current_schema(), guard, current_schema());
    END LOOP;
END $$;

REVOKE ALL ON TABLE sealings FROM PUBLIC;
