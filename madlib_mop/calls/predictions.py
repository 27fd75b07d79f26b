"""The SQL functions that predict in a query, made when the extension is built (make/build_extension.py).

Each is for one kind of input, and is there for a model of a table, for a registered model by its name alone and, with
what rests on held-out rows, for registered models only. Their common parts are in ``sql/46-predict.sql``.
"""

from collections.abc import Iterator
from dataclasses import dataclass

_PL = "LANGUAGE plpgsql STABLE COST 5000 SET search_path = pg_catalog, pg_temp AS $body$"
_PL_ROWS = "LANGUAGE plpgsql STABLE COST 100000 ROWS 1000 SET search_path = pg_catalog, pg_temp AS $body$"
_PATH = "caller_path text DEFAULT pg_catalog.current_setting('search_path')"


@dataclass(frozen=True)
class _Input:
    """What a function predicts for: its parameter, and how the parameter's value is passed on.

    Attributes
    ----------
    name, type : str
    absent : str
        The condition under which there is nothing to predict, and the answer is NULL.
    declares : str
        Variables that the function needs.
    allows_null : bool
        Whether the function has the parameter ``allow_null``.
    """

    name: str
    type: str
    absent: str
    declares: str = ""
    allows_null: bool = True

    def value(self, function: str) -> str:
        """Return the arguments that follow the model's, as an expression of SQL."""
        if self is ROW:
            return """sent, pg_typeof(input_row)::oid::bigint,
        CASE WHEN pg_typeof(input_row) = 'record'::regtype THEN madlib_mop_calls._field_names(input_row, sent) END,
        pg_client_encoding()::text"""
        return self.name if self is ARRAYS else f"ARRAY[madlib_mop_calls._real_bytes('{function}', {self.name})]"


ROW = _Input(
    "input_row",
    "anynonarray",
    "sent = '' THEN -- NULL, not a row of NULLs",
    "    sent bytea := substr(record_send(ROW(input_row)), 13);\n",
    allows_null=False,
)
ARRAY = _Input("x", "anyarray", "x IS NULL THEN")
ARRAYS = _Input("inputs", "bytea[]", "inputs IS NULL OR array_position(inputs, NULL) IS NOT NULL THEN")


@dataclass(frozen=True)
class _Prediction:
    """One function.

    Attributes
    ----------
    name : str
    input : _Input
    returns : str
        The SQL type of a row's answer.
    comment : str
        The comment of the function for a model of a table.
    registered : str
        The comment of the function for a registered model; there is none if this is empty.
    form : str
        The form of the answer (``mop_backend.predict``); empty for the outputs of the model as numbers.
    many : bool
        Whether it takes several rows, and returns one row each.
    """

    name: str
    input: _Input
    returns: str
    comment: str
    registered: str = ""
    form: str = ""
    many: bool = False


# fmt: off
_PREDICTIONS = (
    _Prediction("predict", ROW, "real[]",
        "The outputs of a model for a row of a table: probabilities, or numbers in the units of the table",
        "The outputs of a registered model for a row of a table: probabilities, or numbers in the units of the table"),
    _Prediction("predict_number", ROW, "double precision",
        "The number that a regression predicts for a row of a table",
        "The number that a registered regression predicts for a row of a table", "number"),
    _Prediction("predict_class", ROW, "text",
        "The class of a row of a table: the one with the highest probability",
        "The class that a registered model predicts for a row of a table: the one with the highest"
        " probability", "class"),
    _Prediction("predict_json", ROW, "jsonb",
        "The probabilities of a row of a table by class; a number by the name of its column",
        "The probabilities of a row of a table by class, by a registered model; a number by the name of its"
        " column", "named"),
    _Prediction("predict", ARRAYS, "real[]",
        "The outputs of a model with several inputs, each as returned by madlib_mop.array_bytes; allow_null: NULL"
        " for a row with a NULL element"),
    _Prediction("predict", ARRAY, "real[]",
        "The outputs of a model for one row, as an array; for an array of rows, an array of such arrays; allow_null:"
        " NULL for a row with a NULL element",
        "The outputs of a registered model for one row, as an array; for an array of rows, an array of such arrays"),
    _Prediction("predict_class", ARRAY, "text",
        "The class of one row, as text: the one with the highest probability",
        "The class of one row, as text, by a registered model", "class"),
    _Prediction("predict_named", ARRAY, "jsonb",
        "The probabilities of one row by class; for a predicted number, its value by column name",
        "The probabilities of one row by class, by a registered model; for a predicted number, its value by column"
        " name", "named"),
    _Prediction("predict_class", ARRAYS, "text",
        "The class of one row of a model with several inputs, each as returned by"
        " madlib_mop.array_bytes", form="class"),
    _Prediction("predict_named", ARRAYS, "jsonb",
        "The probabilities by class of one row of a model with several inputs, each as returned by"
        " madlib_mop.array_bytes", form="named"),
    _Prediction("predict_rows", ARRAY, "real[]",
        "The outputs of a model for an array of rows: one row each, in their order",
        "The outputs of a registered model for an array of rows: one row each, in their order", many=True),
    _Prediction("predict_class_rows", ARRAY, "text",
        "The classes of an array of rows: one row each, in their order",
        "The classes of an array of rows, by a registered model: one row each, in their order", "class", many=True),
    _Prediction("predict_named_rows", ARRAY, "jsonb",
        "The probabilities by class of an array of rows: one row each, in their order",
        "The probabilities by class of an array of rows, by a registered model: one row each, in their"
        " order", "named", many=True),
)
# fmt: on


@dataclass(frozen=True)
class _HeldOut:
    """A function of what the held-out rows of a registered model tell, for a row and for an array.

    Attributes
    ----------
    names : tuple of str
        The function's names for a row and for an array.
    form : str
    parameters : str
        What follows the input.
    option_type : str
        The SQL type of the first of them, the only one that is passed.
    returns : str
        With the word RETURNS; empty if the parameters say it.
    coverage : str
        The expression for the coverage.
    answers : str
        The statements that return the answer, ``{0}``.
    comments : tuple of str
    first : str
        Statements before, with ``{0}`` for the function's name and ``{1}`` for the input's.
    """

    names: tuple[str, str]
    form: str
    parameters: str
    option_type: str
    returns: str
    coverage: str
    answers: str
    comments: tuple[str, str]
    first: str = ""


_INTERVAL = """    prediction := ({0}::double precision[])[1];
    lower := ({0}::double precision[])[2];
    upper := ({0}::double precision[])[3];"""
_PLAIN = """    IF NOT coalesce(calibrated, false) THEN
        RETURN madlib_mop.{0}(model, {1});
    END IF;
"""
_HELD_OUT = (
    _HeldOut(
        ("predict_interval", "predict_interval"),
        "interval",
        "coverage double precision DEFAULT 0.9,\n"
        "    OUT prediction double precision, OUT lower double precision, OUT upper double precision",
        "double precision",
        "",
        "coverage",
        _INTERVAL,
        (
            "The number that a registered regression predicts for a row, and an interval that has the true number with"
            " this probability",
            "The number that a registered regression of arrays predicts for a row, and an interval that has the true"
            " number with this probability",
        ),
    ),
    _HeldOut(
        ("predict_set", "predict_set"),
        "set",
        "coverage double precision DEFAULT 0.9",
        "double precision",
        "RETURNS text[] ",
        "coverage",
        "    RETURN coalesce(ARRAY(SELECT * FROM json_array_elements_text({0}::json)), '{{}}');",
        (
            "The classes of a row that are likely enough to have the true one among them with this probability, the"
            " most probable one first",
            "The classes of a row of arrays that are likely enough to have the true one among them with this"
            " probability, the most probable one first",
        ),
    ),
    _HeldOut(
        ("predict_json", "predict_named"),
        "calibrated",
        "calibrated boolean",
        "boolean",
        "RETURNS jsonb ",
        "NULL",
        "    RETURN {0}::jsonb;",
        (
            "The probabilities of a row by class, by a registered model; calibrated: as its held-out rows have"
            " calibrated them",
            "The probabilities of a row of arrays by class, by a registered model; calibrated: as its held-out rows"
            " have calibrated them",
        ),
        _PLAIN,
    ),
)


def predict_functions() -> str:
    """Return the statements that create every function that predicts in a query, with their comments."""
    return "\n\n".join(
        [
            *map(_of_table, _PREDICTIONS),
            "-- if greenplum\n" + "\n\n".join(_planned(p) for p in _PREDICTIONS if not p.many) + "\n-- end",
            *(_of_name(p) for p in _PREDICTIONS if p.registered),
            *(text for held_out in _HELD_OUT for text in _of_held_out(held_out)),
        ]
    )


def _of_table(made: _Prediction) -> str:
    given = made.input
    if made.many:
        schema, guard = "madlib_mop", f"_at_coordinator('madlib_mop.{made.name}')"
    else:
        schema, guard = "@PREDICTIONS@", f"_not_at_segment('madlib_mop.{made.name}')"
    if given is ROW:
        guard += ", madlib_mop_calls._note_row(sent, pg_typeof(input_row)::oid)"
    options = "allow_null, caller_path" if given.allows_null else "caller_path"
    return f"""CREATE FUNCTION {schema}.{made.name}(
{_parameters(given)}
) RETURNS {_returns(made)} {_PL_ROWS if made.many else _PL}
{_body(made, guard, "model_table, mst_key", options, _answers(made))}
$body$;
{_comment(schema, made)}"""


def _planned(made: _Prediction) -> str:
    """Return the function that users call on Greenplum, where the planner must find the model."""
    given = made.input
    options = f"{given.name}, allow_null" if given.allows_null else given.name
    return f"""CREATE FUNCTION madlib_mop.{made.name}(
{_parameters(given)}
) RETURNS {made.returns} LANGUAGE sql STABLE COST 5000 AS $body$
SELECT madlib_mop_calls.{made.name}(madlib_mop_calls._planned(model_table, mst_key, caller_path), NULL, {options}, '')
$body$;
{_comment("madlib_mop", made)}"""


def _of_name(made: _Prediction) -> str:
    """Return the function for a registered model by its name alone.

    It has no SET clause, so the planner puts it into the query, and a call costs no more than one with mst_key. All
    names in it have schemas.
    """
    given = made.input
    model = "madlib_mop_calls._registered_model(model), NULL::pg_catalog.int4"
    options = f"{given.name}, false" if given.allows_null else given.name
    cost = "100000 ROWS 1000" if made.many else "5000"
    return f"""CREATE FUNCTION madlib_mop.{made.name}(model text, {given.name} {given.type})
RETURNS {_returns(made)} LANGUAGE sql STABLE COST {cost} AS $body$
SELECT madlib_mop.{made.name}({model}, {options}, ''::pg_catalog.text)
$body$;
COMMENT ON FUNCTION madlib_mop.{made.name}(text, {given.type}) IS
    '{made.registered}';"""


def _of_held_out(about: _HeldOut) -> Iterator[str]:
    for given, name, comment in zip((ROW, ARRAY), about.names, about.comments, strict=True):
        answer = "answer" if given is ROW else "answer[1]"
        made = _Prediction(name, given, "", comment, form=about.form)
        options = f"false, '', {about.coverage}" if given.allows_null else f"'', {about.coverage}"
        model = "madlib_mop_calls._registered_model(model), NULL"
        body = _body(
            made,
            f"_absent('{name}')",
            model,
            options,
            about.answers.format(answer),
            "RETURN;" if not about.returns else "RETURN NULL;",
            about.first.format(name, given.name),
        )
        yield f"""CREATE FUNCTION madlib_mop.{name}(
    model text, {given.name} {given.type}, {about.parameters}
) {about.returns}{_PL}
{body}
$body$;
COMMENT ON FUNCTION madlib_mop.{name}(text, {given.type}, {about.option_type}) IS
    '{comment}';"""


def _body(
    made: _Prediction, guard: str, model: str, options: str, answers: str, absent: str = "", first: str = ""
) -> str:
    given = made.input
    value = f"{model}, {given.value(made.name)}, {options}"
    if given is ROW:
        kind = "text" if made.form else "double precision[]"
        call = f"_predict_row_text('{made.form}', {value})" if made.form else f"_predict_row({value})"
    else:
        kind = "text[]" if made.form else "real[]"
        many = "true" if made.many else "false"
        call = f"_predict_texts('{made.form}', {many}, {value})" if made.form else f"_predict({value})"
    return f"""DECLARE
{given.declares}    answer {kind};
    error json;
{"    row_values real[];" + chr(10) if made.many and not made.form else ""}BEGIN
    IF {given.absent}
        {absent or ("RETURN;" if made.many else "RETURN NULL;")}
    END IF;
    -- if greenplum
    PERFORM madlib_mop_calls.{guard};
    -- end
{first}    answer := madlib_mop_calls.{call};
    IF answer IS NULL THEN
        error := madlib_mop_calls._raise(madlib_mop_calls._predict_error());
    END IF;
{answers}
END"""


def _answers(made: _Prediction) -> str:
    cast = "" if made.returns == "text" else f"::{made.returns}"
    if made.many and made.form:
        return f"    RETURN QUERY SELECT unnest(answer){cast};"
    if made.many:
        return """    IF answer IS NULL OR array_ndims(answer) = 1 THEN
        RETURN NEXT answer;
        RETURN;
    END IF;
    FOREACH row_values SLICE 1 IN ARRAY answer LOOP
        RETURN NEXT CASE WHEN row_values[1] IS NOT NULL THEN row_values END;
    END LOOP;"""
    if not made.form:
        return "    RETURN answer;"
    return f"    RETURN answer{'' if made.input is ROW else '[1]'}{cast};"


def _parameters(given: _Input) -> str:
    kinds = [f"{given.name} {given.type}", *(["allow_null boolean DEFAULT false"] if given.allows_null else []), _PATH]
    return ",\n".join(f"    {kind}" for kind in ("model_table text", "mst_key integer", *kinds))


def _returns(made: _Prediction) -> str:
    return f"SETOF {made.returns}" if made.many else made.returns


def _comment(schema: str, made: _Prediction) -> str:
    types = f"text, integer, {made.input.type}{', boolean' if made.input.allows_null else ''}, text"
    return f"COMMENT ON FUNCTION {schema}.{made.name}({types}) IS\n    '{made.comment}';"
