-- The schemas: madlib has the names that MADlib's users know, madlib_mop what is this project's alone,
-- madlib_mop_calls what the functions of these two call with their caller's rights, and madlib_mop_internal what only the
-- driver calls, in sessions of the server's own user.

-- The tables need unique indexes and UPDATE, whatever the default is; the setting lasts to the end of this script.
SET LOCAL default_table_access_method = heap;

CREATE SCHEMA madlib;
COMMENT ON SCHEMA madlib IS 'Deep learning in the database, call-compatible with Apache MADlib';

CREATE SCHEMA madlib_mop;
COMMENT ON SCHEMA madlib_mop IS 'Model hopper parallelism: the record of runs, and their control';

CREATE SCHEMA madlib_mop_calls;
COMMENT ON SCHEMA madlib_mop_calls IS 'Internal functions that those of madlib and madlib_mop call; not for direct use';

CREATE SCHEMA madlib_mop_internal;
COMMENT ON SCHEMA madlib_mop_internal IS 'Internal functions that the driver calls as the server''s own user; no other role has rights to them';
