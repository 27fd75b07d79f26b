"""The SQL functions for users, made from their specifications when the extension is built (make/build_extension.py).

Each passes its arguments on as one JSON object, and returns the answer as its SQL type. bytea goes beside the JSON, and
JSON goes as the text that the user gave.
"""

from collections.abc import Iterator

from madlib_mop.calls import GROUPS
from madlib_mop.calls.argument import Function, Parameter

_PATH = Parameter("caller_path", "text", "pg_catalog.current_setting('search_path')")
_HELP_FOR_HOSTS = ("add_host", "remove_host")
_KEY_WORDS = {"exclude"}  # of Greenplum
_PARTS = "SETOF bytea"
#: What an added argument is given, by the SQL type whose kind it tells.
_KINDS = {"varchar": "text", "integer": "integer", "double precision": "float8"}


def sql_functions() -> str:
    """Return the statements that create every function for users, with their comments, by groups."""
    return "\n\n".join(
        f"-- {(group.__doc__ or '').splitlines()[0]}\n\n" + "\n\n".join(map(function_sql, group.FUNCTIONS))
        for group in GROUPS
    )


def help_functions() -> str:
    """Return the statements that create the help forms: of MADlib's functions, and of those for hosts."""
    functions = [f for group in GROUPS for f in group.FUNCTIONS]
    return "\n\n".join(_help_form(f) for f in functions if f.schema == "madlib" or f.name in _HELP_FOR_HOSTS)


def _help_form(function: Function) -> str:
    name, topic = f"{function.schema}.{function.name}", _literal(function.name)
    takes_one = any(sum(p.default is None for p in signature) == 1 for signature in function.signatures())
    if takes_one:  # f('usage') calls the function itself
        parameter, kind, option, comment = "", "", "'usage'", "Help"
    else:
        parameter, kind, option = "usage text DEFAULT NULL", "text", "usage"
        comment = f"Help: SELECT {name}('usage')"
    return f"""CREATE FUNCTION {name}({parameter}) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    RETURN madlib_mop_calls.call('help', json_build_object('topic', {topic}, 'option', {option}), NULL) #>> '{{}}';
END
$body$;
COMMENT ON FUNCTION {name}({kind}) IS {_literal(comment)};"""


def function_sql(function: Function) -> str:
    """Return the statements that create one function, in each of its signatures. Raises ValueError without comments."""
    signatures = function.signatures()
    if len(signatures) != len(function.comments):
        raise ValueError(f"{function.name} needs {len(signatures)} comments, one a signature: {function.comments}")
    pairs = zip(signatures, function.comments, strict=True)
    return "\n\n".join(
        _create(function, form, comment) for signature, comment in pairs for form in _json_forms(signature)
    )


def _json_forms(signature: tuple[Parameter, ...]) -> Iterator[tuple[Parameter, ...]]:
    """Yield a signature, and if it has json the same with jsonb and with text.

    The form with text is for literals: the server could not choose between json and jsonb. Only the first form has a
    default there, so that a call without the argument is of one function.
    """
    yield signature
    if any(parameter.type == "json" for parameter in signature):
        for other in ("jsonb", "text"):
            yield tuple(Parameter(p.name, other) if p.type == "json" else p for p in signature)


def _create(function: Function, signature: tuple[Parameter, ...], comment: str) -> str:
    name = f"{function.schema}.{function.name}"
    parameters = (*signature, _PATH) if function.takes_path else signature
    is_sql = function.starter == "call" or function.returns == _PARTS
    language = "sql" if is_sql else "plpgsql"
    head = [f"RETURNS {function.returns} LANGUAGE {language} VOLATILE SET search_path = pg_catalog, pg_temp"]
    body = _parts_body if function.returns == _PARTS else _body if is_sql else _reading_body
    lines = [
        f"CREATE FUNCTION {name}(",
        ",\n".join(f"    {_declared(parameter)}" for parameter in parameters),
        ") " + " SET ".join([*head, *function.settings]) + " AS $body$",
        body(function, signature),
        "$body$;",
        f"COMMENT ON FUNCTION {name}({', '.join(parameter.type for parameter in parameters)}) IS",
        f"    {_literal(comment)};",
    ]
    return "\n".join(lines)


def _declared(parameter: Parameter) -> str:
    default = "" if parameter.default is None else f" DEFAULT {parameter.default}"
    return f"{_identifier(parameter.name)} {parameter.type}{default}"


def _body(function: Function, signature: tuple[Parameter, ...]) -> str:
    """Return the statement of a function in SQL."""
    path = _PATH.name if function.takes_path else "NULL"
    bytes_ = [p.name for p in signature if p.type == "bytea"]
    payload = "".join(f", payload_name => {_literal(name)}, payload => {name}" for name in bytes_)
    call = f"madlib_mop_calls.call({_literal(function.name)}, {_arguments(function, signature)}, {path}{payload})"
    kind = function.returns
    if kind.startswith("TABLE "):
        columns = kind.removeprefix("TABLE ")
        return f"    SELECT r.* FROM json_to_recordset(\n        {call}\n    ) AS r {columns};"
    if kind.endswith("[]"):
        cast = "" if kind == "text[]" else f"::{kind.removesuffix('[]')}"
        elements = f"SELECT json_array_elements_text({call}){cast}"
        return f"    SELECT coalesce(ARRAY({elements}), '{{}}');"  # on Greenplum, an ARRAY without rows is NULL
    return f"    SELECT {call};" if kind == "void" else f"    SELECT ({call} #>> '{{}}')::{kind};"


def _parts_body(function: Function, signature: tuple[Parameter, ...]) -> str:
    """Return the query of a function that returns parts of a large value; PL/pgSQL would hold 50 of them."""
    path = f", {_PATH.name}" if function.takes_path else ""
    answer = f"madlib_mop_calls.{function.starter}({_arguments(function, signature)}::text{path})"
    part = "CASE WHEN madlib_mop_calls._raise(p.error::json) IS NULL THEN p.content END"
    return f"    SELECT {part} FROM {answer} AS p;"


def _reading_body(function: Function, signature: tuple[Parameter, ...]) -> str:
    """Return the body of a function in PL/pgSQL, for roles that may only read: they have no right to ``call``."""
    path = f", {_PATH.name}" if function.takes_path else ""
    answer = f"madlib_mop_calls.{function.starter}({_arguments(function, signature)}::text{path})"
    is_bytes = function.returns == "bytea"
    return f"""DECLARE
    answer {"record" if is_bytes else "json"};
    raised json;
BEGIN
    PERFORM madlib_mop_calls._at_coordinator({_literal(function.name)});
    answer := {answer if is_bytes else f"{answer}::json"};
    raised := madlib_mop_calls._raise({"answer.error::json" if is_bytes else "answer -> 'error'"});
    RETURN {"answer.content" if is_bytes else "answer ->> 'result'"};
END"""


def _arguments(function: Function, signature: tuple[Parameter, ...]) -> str:
    pairs = [
        f"{_literal(p.name)}, {_identifier(p.name)}{'::text' if p.type in ('json', 'jsonb') else ''}"
        for p in signature
        if p.type != "bytea"
    ]
    typed = {argument.name for argument in function.arguments if argument.other_types}
    for added in function.added:
        (kind,) = (_KINDS[p.type] for p in signature if p.name in typed)
        pairs.append(f"{_literal(added.name)}, {_literal(kind)}")
    return f"json_build_object({', '.join(pairs)})"


def _identifier(name: str) -> str:
    return f'"{name}"' if name in _KEY_WORDS else name


def _literal(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"
