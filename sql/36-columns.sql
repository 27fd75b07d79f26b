-- Packing of ordinary tables: the proposal for each column, packing, and the network's inputs for a row.

CREATE FUNCTION madlib_mop.propose_columns(
    source_table varchar,
    output_table varchar,
    dependent varchar,
    "exclude" varchar[] DEFAULT NULL,
    task text DEFAULT NULL,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS void LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT madlib_mop_calls.call('propose_columns', json_build_object(@ARGUMENTS@), caller_path);
$body$;
COMMENT ON FUNCTION madlib_mop.propose_columns(varchar, varchar, varchar, varchar[], text, text) IS
    'Writes an editable table with a row for each column of a table: what pack_columns would do with it, and why';

CREATE FUNCTION madlib_mop.pack_columns(
    source_table varchar,
    output_table varchar,
    dependent varchar,
    validation double precision DEFAULT NULL,
    columns varchar DEFAULT NULL,
    "exclude" varchar[] DEFAULT NULL,
    seed integer DEFAULT NULL,
    buffer_size integer DEFAULT NULL,
    distribution_rules text DEFAULT NULL,
    task text DEFAULT NULL,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS void LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT madlib_mop_calls.call('pack_columns', json_build_object(@ARGUMENTS@), caller_path);
$body$;
COMMENT ON FUNCTION madlib_mop.pack_columns(
    varchar, varchar, varchar, double precision, varchar, varchar[], integer, integer, text, text, text) IS
    'Packs an ordinary table for training: numbers, categories, dates and texts are encoded; validation: a share of the rows';

CREATE FUNCTION madlib_mop.pack_columns(
    source_table varchar,
    output_table varchar,
    dependent varchar,
    validation text,
    columns varchar DEFAULT NULL,
    "exclude" varchar[] DEFAULT NULL,
    seed integer DEFAULT NULL,
    buffer_size integer DEFAULT NULL,
    distribution_rules text DEFAULT NULL,
    task text DEFAULT NULL,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS void LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT madlib_mop_calls.call('pack_columns', json_build_object(@ARGUMENTS@), caller_path);
$body$;
COMMENT ON FUNCTION madlib_mop.pack_columns(
    varchar, varchar, varchar, text, varchar, varchar[], integer, integer, text, text, text) IS
    'Packs an ordinary table for training; validation: ''last 20% by <column>'', ''20% by group <column>'', or a boolean column';

CREATE FUNCTION madlib_mop.describe_preprocessor(
    packed_table varchar,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS TABLE (column_name text, sql_type text, role text, kind text, inputs text[], encoding text, nulls text, units text[])
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT d.column_name, d.sql_type, d.role, d.kind, d.inputs, d.encoding, d.nulls, d.units FROM json_to_recordset(
        madlib_mop_calls.call('describe_preprocessor', json_build_object(@ARGUMENTS@), caller_path)
    ) AS d (column_name text, sql_type text, role text, kind text, inputs text[], encoding text, nulls text, units text[]);
$body$;
COMMENT ON FUNCTION madlib_mop.describe_preprocessor(varchar, text) IS
    'How each column of a packed table''s source is encoded, and by which statistics';

CREATE FUNCTION madlib_mop.transform(
    packed_table varchar,
    source_table varchar,
    output_table varchar,
    keep varchar DEFAULT NULL,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS void LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $body$
    SELECT madlib_mop_calls.call('transform', json_build_object(@ARGUMENTS@), caller_path);
$body$;
COMMENT ON FUNCTION madlib_mop.transform(varchar, varchar, varchar, varchar, text) IS
    'Encodes each row of a table by the preprocessor of a packed table, and writes a table with one column for each unit';
