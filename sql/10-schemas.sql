-- The schemas: madlib has the names of Apache MADlib, madlib_mop the names of this project,
-- madlib_mop_calls the functions that these two call with the caller's rights, and madlib_mop_internal those that only the
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
