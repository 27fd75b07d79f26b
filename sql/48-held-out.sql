-- How sure a prediction is, by the rows that were held out when the version was registered (mop_backend/held_out.py). The
-- rows come as those of madlib_mop.predict.

CREATE FUNCTION madlib_mop.predict_interval(
    model text, input_row anynonarray, coverage double precision DEFAULT 0.9,
    OUT prediction double precision, OUT lower double precision, OUT upper double precision
) LANGUAGE plpgsql STABLE COST 5000 SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    sent bytea := substr(record_send(ROW(input_row)), 13);
    answer text;
    error json;
BEGIN
    -- if greenplum
    PERFORM madlib_mop_calls._absent('predict_interval');
    -- end
    IF sent = '' THEN -- NULL, not a row of NULLs
        RETURN;
    END IF;
    answer := madlib_mop_calls._predict_row_text('interval', madlib_mop_calls._registered_model(model), NULL, sent, pg_typeof(input_row)::oid::bigint,
        CASE WHEN pg_typeof(input_row) = 'record'::regtype THEN madlib_mop_calls._field_names(input_row, sent) END,
        pg_client_encoding()::text, '', coverage);
    IF answer IS NULL THEN
        error := madlib_mop_calls._raise(madlib_mop_calls._predict_error());
    END IF;
    prediction := (answer::double precision[])[1];
    lower := (answer::double precision[])[2];
    upper := (answer::double precision[])[3];
END
$body$;
COMMENT ON FUNCTION madlib_mop.predict_interval(text, anynonarray, double precision) IS
    'The number that a registered regression predicts for a row, and an interval that has the true number with this probability';

CREATE FUNCTION madlib_mop.predict_interval(
    model text, x anyarray, coverage double precision DEFAULT 0.9,
    OUT prediction double precision, OUT lower double precision, OUT upper double precision
) LANGUAGE plpgsql STABLE COST 5000 SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    answer text[];
    error json;
BEGIN
    -- if greenplum
    PERFORM madlib_mop_calls._absent('predict_interval');
    -- end
    IF x IS NULL THEN
        RETURN;
    END IF;
    answer := madlib_mop_calls._predict_texts('interval', false, madlib_mop_calls._registered_model(model), NULL,
        ARRAY[madlib_mop_calls._real_bytes('predict_interval', x)], false, '', coverage);
    IF answer IS NULL THEN
        error := madlib_mop_calls._raise(madlib_mop_calls._predict_error());
    END IF;
    prediction := (answer[1]::double precision[])[1];
    lower := (answer[1]::double precision[])[2];
    upper := (answer[1]::double precision[])[3];
END
$body$;
COMMENT ON FUNCTION madlib_mop.predict_interval(text, anyarray, double precision) IS
    'The number that a registered regression of arrays predicts for a row, and an interval that has the true number with this probability';

CREATE FUNCTION madlib_mop.predict_set(
    model text, input_row anynonarray, coverage double precision DEFAULT 0.9
) RETURNS text[] LANGUAGE plpgsql STABLE COST 5000 SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    sent bytea := substr(record_send(ROW(input_row)), 13);
    answer text;
    error json;
BEGIN
    -- if greenplum
    PERFORM madlib_mop_calls._absent('predict_set');
    -- end
    IF sent = '' THEN -- NULL, not a row of NULLs
        RETURN NULL;
    END IF;
    answer := madlib_mop_calls._predict_row_text('set', madlib_mop_calls._registered_model(model), NULL, sent, pg_typeof(input_row)::oid::bigint,
        CASE WHEN pg_typeof(input_row) = 'record'::regtype THEN madlib_mop_calls._field_names(input_row, sent) END,
        pg_client_encoding()::text, '', coverage);
    IF answer IS NULL THEN
        error := madlib_mop_calls._raise(madlib_mop_calls._predict_error());
    END IF;
    RETURN coalesce(ARRAY(SELECT * FROM json_array_elements_text(answer::json)), '{}');
END
$body$;
COMMENT ON FUNCTION madlib_mop.predict_set(text, anynonarray, double precision) IS
    'The classes of a row that are likely enough to have the true one among them with this probability, the most probable one first';

CREATE FUNCTION madlib_mop.predict_set(
    model text, x anyarray, coverage double precision DEFAULT 0.9
) RETURNS text[] LANGUAGE plpgsql STABLE COST 5000 SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    answer text[];
    error json;
BEGIN
    -- if greenplum
    PERFORM madlib_mop_calls._absent('predict_set');
    -- end
    IF x IS NULL THEN
        RETURN NULL;
    END IF;
    answer := madlib_mop_calls._predict_texts('set', false, madlib_mop_calls._registered_model(model), NULL,
        ARRAY[madlib_mop_calls._real_bytes('predict_set', x)], false, '', coverage);
    IF answer IS NULL THEN
        error := madlib_mop_calls._raise(madlib_mop_calls._predict_error());
    END IF;
    RETURN coalesce(ARRAY(SELECT * FROM json_array_elements_text(answer[1]::json)), '{}');
END
$body$;
COMMENT ON FUNCTION madlib_mop.predict_set(text, anyarray, double precision) IS
    'The classes of a row of arrays that are likely enough to have the true one among them with this probability, the most probable one first';

CREATE FUNCTION madlib_mop.predict_json(
    model text, input_row anynonarray, calibrated boolean
) RETURNS jsonb LANGUAGE plpgsql STABLE COST 5000 SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    sent bytea := substr(record_send(ROW(input_row)), 13);
    answer text;
    error json;
BEGIN
    -- if greenplum
    PERFORM madlib_mop_calls._absent('predict_json');
    -- end
    IF sent = '' THEN -- NULL, not a row of NULLs
        RETURN NULL;
    END IF;
    IF NOT coalesce(calibrated, false) THEN
        RETURN madlib_mop.predict_json(model, input_row);
    END IF;
    answer := madlib_mop_calls._predict_row_text('calibrated', madlib_mop_calls._registered_model(model), NULL, sent, pg_typeof(input_row)::oid::bigint,
        CASE WHEN pg_typeof(input_row) = 'record'::regtype THEN madlib_mop_calls._field_names(input_row, sent) END,
        pg_client_encoding()::text, '', NULL);
    IF answer IS NULL THEN
        error := madlib_mop_calls._raise(madlib_mop_calls._predict_error());
    END IF;
    RETURN answer::jsonb;
END
$body$;
COMMENT ON FUNCTION madlib_mop.predict_json(text, anynonarray, boolean) IS
    'The probabilities of a row by class, by a registered model; calibrated: as its held-out rows have calibrated them';

CREATE FUNCTION madlib_mop.predict_named(
    model text, x anyarray, calibrated boolean
) RETURNS jsonb LANGUAGE plpgsql STABLE COST 5000 SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    answer text[];
    error json;
BEGIN
    -- if greenplum
    PERFORM madlib_mop_calls._absent('predict_named');
    -- end
    IF x IS NULL THEN
        RETURN NULL;
    END IF;
    IF NOT coalesce(calibrated, false) THEN
        RETURN madlib_mop.predict_named(model, x);
    END IF;
    answer := madlib_mop_calls._predict_texts('calibrated', false, madlib_mop_calls._registered_model(model), NULL,
        ARRAY[madlib_mop_calls._real_bytes('predict_named', x)], false, '', NULL);
    IF answer IS NULL THEN
        error := madlib_mop_calls._raise(madlib_mop_calls._predict_error());
    END IF;
    RETURN answer[1]::jsonb;
END
$body$;
COMMENT ON FUNCTION madlib_mop.predict_named(text, anyarray, boolean) IS
    'The probabilities of a row of arrays by class, by a registered model; calibrated: as its held-out rows have calibrated them';
