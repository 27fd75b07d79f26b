-- The commands to each run: their history, and a view into which they can be inserted.

-- if greenplum
CREATE VIEW madlib_mop.steering WITH (security_barrier = true) AS
-- else
CREATE VIEW madlib_mop.steering WITH (security_invoker = true) AS
-- end
SELECT c.run_id, c.change_id AS command_id, c.command, c.arguments, c.source, pg_catalog.pg_get_userbyid(c.issued_by) AS issued_by, c.issued_at,
       c.state, c.detail, c.ordinal, c.mst_keys, c.visits, c.settled_at
FROM madlib_mop.change c
WHERE c.command IS NOT NULL
-- if greenplum
      AND c.run_id IN (SELECT r.run_id FROM madlib_mop.run r WHERE madlib_mop_calls.may_see(r.owner))
-- end
;
COMMENT ON VIEW madlib_mop.steering IS 'The commands to each run: who issued them, what became of them, and after which visits they were obeyed';
COMMENT ON COLUMN madlib_mop.steering.run_id IS 'The run';
COMMENT ON COLUMN madlib_mop.steering.command_id IS 'The number of the command, unique in the database';
COMMENT ON COLUMN madlib_mop.steering.command IS 'The function that issues it, such as stop_model';
COMMENT ON COLUMN madlib_mop.steering.arguments IS 'The arguments as given';
COMMENT ON COLUMN madlib_mop.steering.source IS 'person, or policy: the run''s policy issued it';
COMMENT ON COLUMN madlib_mop.steering.issued_by IS 'The role that issued it';
COMMENT ON COLUMN madlib_mop.steering.issued_at IS 'When it was issued';
COMMENT ON COLUMN madlib_mop.steering.state IS 'pending, obeyed, refused or withdrawn';
COMMENT ON COLUMN madlib_mop.steering.detail IS 'What it did, or why it was refused';
COMMENT ON COLUMN madlib_mop.steering.ordinal IS 'Its place among the obeyed commands of the run, from 0';
COMMENT ON COLUMN madlib_mop.steering.mst_keys IS 'The models that it changed or added';
COMMENT ON COLUMN madlib_mop.steering.visits IS 'By mst_key: epoch and position of the newest committed visit when it was obeyed';
COMMENT ON COLUMN madlib_mop.steering.settled_at IS 'When it was obeyed, refused or withdrawn';

-- if postgres
CREATE VIEW madlib_mop.command WITH (security_invoker = true) AS
SELECT c.run_id, c.command, c.arguments, c.change_id AS command_id, c.state, c.detail, c.mst_keys
FROM madlib_mop.change c WHERE c.command IS NOT NULL;
COMMENT ON VIEW madlib_mop.command IS 'The commands to each run; an INSERT of run_id, command and arguments issues one, and its row has the outcome';
COMMENT ON COLUMN madlib_mop.command.run_id IS 'The run; insert it';
COMMENT ON COLUMN madlib_mop.command.command IS 'The command; insert it';
COMMENT ON COLUMN madlib_mop.command.arguments IS 'Its arguments, a JSON object by name; insert it';
COMMENT ON COLUMN madlib_mop.command.command_id IS 'The number of the command, unique in the database';
COMMENT ON COLUMN madlib_mop.command.state IS 'pending, obeyed, refused or withdrawn';
COMMENT ON COLUMN madlib_mop.command.detail IS 'What it did, or why it was refused';
COMMENT ON COLUMN madlib_mop.command.mst_keys IS 'The models that it changed or added';

CREATE FUNCTION madlib_mop_calls._issue_command() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    outcome json;
BEGIN
    IF NEW.command_id IS NOT NULL OR NEW.state IS NOT NULL OR NEW.detail IS NOT NULL OR NEW.mst_keys IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'madlib_mop.command: insert only run_id, command and arguments',
            HINT = 'The command sets the other columns.';
    END IF;
    outcome := madlib_mop_calls.call('command', json_build_object('run_id', NEW.run_id, 'command', NEW.command,
        'arguments', NEW.arguments::text), NULL);
    NEW.command_id := (outcome ->> 'command_id')::bigint;
    NEW.state := outcome ->> 'state';
    NEW.detail := outcome ->> 'detail';
    NEW.mst_keys := (SELECT array_agg(k.value::integer) FROM json_array_elements_text(
        CASE json_typeof(outcome -> 'mst_keys') WHEN 'array' THEN outcome -> 'mst_keys' ELSE '[]'::json END) AS k (value));
    RETURN NEW;
END
$body$;
COMMENT ON FUNCTION madlib_mop_calls._issue_command() IS 'Issues the command of a row inserted into madlib_mop.command';

CREATE TRIGGER issue INSTEAD OF INSERT ON madlib_mop.command
FOR EACH ROW EXECUTE FUNCTION madlib_mop_calls._issue_command();
-- end
