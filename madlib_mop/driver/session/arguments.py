"""Arguments of a call held against the SQL types that they have in sql/; asked by `driver.__main__` for each call.

The SQL function `call` may be called by everybody who may call the functions above it, with any JSON. What a command
gets is therefore of the type that it expects, or NULL, and a name that was left out is NULL.
"""

from typing import Any

from madlib_mop.errors import InvalidParameter

_INT = {"integer": 2**31, "bigint": 2**63}
#: SQL type of each argument; those of one name have one type in all functions. Others are their command's to look at.
KINDS = {
    name: kind
    for kind, names in {
        "text": """
            automl_method automl_params compile_params compile_params_grid dependent_varname description
            distribution_rules fit_params fit_params_grid id_col independent_varname keras_model_arch_table model
            model_arch model_arch_table model_output_table model_selection_table model_table name object_table option
            output_table pred_kind schedule schedule_table search_type server source source_table test_table
            training_preprocessor_table validation_table
            """,
        "integer": """
            buffer_size dependent_count eta id k metrics_compute_frequency model_id mst_key n_segments num_configs
            num_iterations r random_state seed skip_last
            """,
        "number": "normalizing_const",
        "boolean": "use_caching use_gpus warm_start",
        "integer[]": "image_shape model_id_list num_classes",
        "text[]": "compile_params_list fit_params_list",
        "texts": "class_values",
        "bytea": "model_weights object",
    }.items()
    for name in names.split()
}


def check_arguments(given: Any) -> dict[str, Any]:
    """Return the arguments of a call, with None for each known one that is not there.

    Raises
    ------
    InvalidParameter
        If one is of another type than its SQL type, or out of that type's range.
    """
    if not isinstance(given, dict):
        raise InvalidParameter(f"the arguments must be a JSON object. Received: {_shown(given)}")
    for name, value in given.items():
        if not isinstance(value, bytes | bytearray):
            _check_texts(name, value)
        kind = KINDS.get(name)
        if kind is not None and value is not None and not _fits(kind, value):
            raise InvalidParameter(f"{name} must be of type {_SQL.get(kind, kind)}. Received: {_shown(value)}")
    return {**dict.fromkeys(KINDS), **given}


_SQL = {"number": "double precision", "texts": "text[]"}


def _fits(kind: str, value: Any) -> bool:
    if kind.endswith("[]"):
        return isinstance(value, list) and all(item is None or _fits(kind[:-2], item) for item in value)
    if kind == "texts":  # an array of any dimensions
        return isinstance(value, list) and all(
            item is None or isinstance(item, str) or _fits(kind, item) for item in value
        )
    if kind in _INT:
        return isinstance(value, int) and not isinstance(value, bool) and -_INT[kind] <= value < _INT[kind]
    if kind == "number":  # JSON has no NaN: the server writes it as text
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number or value in ("NaN", "Infinity", "-Infinity")
    return isinstance(value, {"text": str, "boolean": bool, "bytea": bytes | bytearray}[kind])


def _check_texts(name: str, value: Any) -> None:
    """Refuse a text that the server cannot hold: JSON can write a zero byte, and half of a character."""
    if isinstance(value, list):
        for item in value:
            _check_texts(name, item)
    elif isinstance(value, str):
        try:
            whole = "\0" not in value and value.encode() is not None
        except UnicodeEncodeError:
            whole = False
        if not whole:
            raise InvalidParameter(f"{name} has a character that the server cannot hold. Received: {ascii(value):.100}")


def _shown(value: Any, limit: int = 100) -> str:
    try:
        text = repr(value)
    except ValueError:  # a number of more digits than Python writes
        return "a number of thousands of digits"
    return text if len(text) <= limit else f"{text[:limit]} ..."
