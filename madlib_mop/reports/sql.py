"""The SQL on the pages of a run: its call with all arguments and the seed, its replay, and what registers its best
model."""

import json
from collections.abc import Mapping

from madlib_mop.calls import FUNCTIONS, Argument
from madlib_mop.catalog.facts.run import RunFacts
from madlib_mop.catalog.names import Relation

_AGAIN = "_again"
_OUTPUTS = ("model_output_table", "model")
#: Suffixes of names must leave room within PostgreSQL's 63 bytes.
_MAX_BYTES = 63 - len("_summary") - len(_AGAIN)


def call_again(facts: RunFacts) -> str | None:
    """Return the call that trains the same models with another output table; None for a replay and older records.

    The seed is the one that was used, drawn or not. Arguments that have their defaults are left out.
    """
    function = FUNCTIONS.get(facts.call.function or "")
    if function is None or facts.kind == "replay" or not facts.call.arguments:
        return None
    given = dict(facts.call.arguments)
    if "seed" in given:
        given["seed"] = facts.seed
    lines = []
    for argument in function.arguments:
        value = given.get(argument.name)
        if argument.name in _OUTPUTS:
            value = again(facts.model_output_table)
        elif value and argument.name in facts.call.tables:
            value = facts.call.tables[argument.name]
        elif argument.name == "warm_start" and value:
            continue  # a new table has no models to continue with
        is_default = not argument.is_required and value == argument.default and argument.name != "seed"
        if argument.name in given and not is_default:
            lines.append(f"    {argument.name} => {_value(argument, value)}")
    return f"SELECT {function.schema}.{function.name}(\n" + ",\n".join(lines) + "\n);"


def replay(facts: RunFacts) -> str:
    """Return the call that repeats the recorded visits of a run, in their order, as a new run."""
    return f"SELECT madlib_mop.replay({facts.run_id}, output_table => {literal(again(facts.model_output_table))});"


def register_best(table: str) -> str:
    """Return the call that registers the best model of a run, with what its pages show of held-out rows and columns.

    Parameters
    ----------
    table : str
        The output table, as the record has it: schema and name, not quoted.
    """
    schema, _, name = table.rpartition(".")
    written = literal(Relation(schema or "public", name).written)
    given = "held_out => 'my_packed_test_rows', explained => 'my_table'"
    return f"SELECT madlib_mop.register('my_model', {written}, {given});"


def again(table: str) -> str:
    """Return the name of a table for the repeated run, quoted where that is necessary.

    Parameters
    ----------
    table : str
        Schema and name as the record has them: not quoted, with one point between them.
    """
    schema, _, name = table.rpartition(".")
    short = name.encode()[:_MAX_BYTES].decode(errors="ignore")
    return Relation(schema or "public", f"{short}{_AGAIN}").written


def literal(text: str) -> str:
    """Return a text as an SQL literal, which every setting of standard_conforming_strings reads alike."""
    quoted = text.replace("'", "''")
    if "\\" not in text:
        return f"'{quoted}'"
    return "E'" + quoted.replace("\\", "\\\\") + "'"


def _value(argument: Argument, value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        items = ", ".join(_value(argument, item) for item in value)
        return f"ARRAY[{items}]::{argument.type.removesuffix('[]')}[]"
    if isinstance(value, Mapping):
        return literal(json.dumps(value))
    return literal(str(value))
