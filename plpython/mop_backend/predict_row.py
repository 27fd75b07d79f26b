"""Predictions for a row of an ordinary table: the functions of madlib_mop that take a record.

The row arrives as ``record_send`` sends it. The names and types of its fields are looked up once for each row type. The
session's trainer encodes it by the model's preprocessor, with the code that packed the training rows, and predicts.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import plpy

from mop_backend import predict
from mop_backend.call import CallError
from mop_backend.classes import FORMS
from mop_backend.frames import Header

_FIELD = struct.Struct(">Ii")
_FIELDS_OF_TYPE = """
select a.attname::text as name, a.atttypid::int8 as oid
from pg_catalog.pg_type t join pg_catalog.pg_attribute a on a.attrelid = t.typrelid
where t.oid = $1 and a.attnum > 0 and not a.attisdropped order by a.attnum
"""
# Finds the base types of types, through domains; for types of extensions, only those that can be inputs.
_BASES = """
with recursive chain (first, oid, typtype, typbasetype) as (
    select t.oid, t.oid, t.typtype, t.typbasetype from pg_catalog.pg_type t where t.oid::int8 = any ($1)
    union all
    select c.first, t.oid, t.typtype, t.typbasetype
    from chain c join pg_catalog.pg_type t on t.oid = c.typbasetype where c.typtype = 'd'
)
select c.first::int8 as oid, pg_catalog.format_type(c.first, null) as type_sql,
       case when c.typtype = 'e' then 'enum' when n.nspname = 'pg_catalog' or x.extname = 'vector' then b.typname::text
       end as base
from chain c join pg_catalog.pg_type b on b.oid = c.oid join pg_catalog.pg_namespace n on n.oid = b.typnamespace
left join pg_catalog.pg_depend d on d.classid = 'pg_catalog.pg_type'::pg_catalog.regclass and d.objid = b.oid
    and d.deptype = 'e' and d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass
left join pg_catalog.pg_extension x on x.oid = d.refobjid
where c.typtype <> 'd'
"""
_MAX_ROW_TYPES = 1000

Field = list[str | int | None]  # name, SQL type, oid, base type

_row_types: dict[tuple[int, tuple[str, ...], tuple[int, ...]], list[Field]] = {}


def predict_row(
    model_table: str,
    mst_key: int | None,
    row: bytes,
    row_type: int,
    names: Sequence[str] | None,
    encoding: str,
    caller_path: str,
    version: str,
) -> Sequence[float] | None:
    """Predict one row.

    Parameters
    ----------
    model_table : str
    mst_key : int or None
    row : bytes
        What ``record_send`` gives for it.
    row_type : int
        The oid of its type.
    names : list of str or None
        The names of its fields where the type is ``record``, which does not have them.
    encoding : str
        Of its texts: the client's.
    caller_path : str
        The caller's search_path.
    version : str
        The extension's.

    Returns
    -------
    list of float, or None
        The outputs, side by side; numbers in the units of the table. None after an error (`predict.last_error`).
    """
    answer = _answer(model_table, mst_key, row, row_type, names, encoding, caller_path, version)
    return None if answer is None else answer.floats


def predict_row_text(
    form: str,
    model_table: str,
    mst_key: int | None,
    row: bytes,
    row_type: int,
    names: Sequence[str] | None,
    encoding: str,
    caller_path: str,
    version: str,
) -> str | None:
    """Predict as `predict_row` does; return the class, or JSON of all classes with their values.

    Parameters
    ----------
    form : str
        ``class`` or ``named``.

    Returns
    -------
    str or None
        None after an error.
    """
    answer = _answer(model_table, mst_key, row, row_type, names, encoding, caller_path, version)
    if answer is None:
        return None
    try:
        return FORMS[form](answer.model.found["outputs"], answer.widths)(answer.floats)
    except Exception as error:
        predict.note_error(error)
        return None


def _answer(
    model_table: str,
    mst_key: int | None,
    row: bytes,
    row_type: int,
    names: Sequence[str] | None,
    encoding: str,
    caller_path: str,
    version: str,
) -> predict.Answer | None:
    predict.note_error(None)
    try:
        session = predict.session(version)
        fields = _fields(row, row_type, names)

        def request(model: predict.Model) -> Header:
            if not model.found.get("preprocessor"):
                raise CallError(
                    f"predict: {model_table} was not trained on a table of pack_columns, so it takes no rows",
                    "22023",
                    hint="Pass the inputs as arrays: madlib_mop.predict(model_table, mst_key, x).",
                )
            return {"op": "predict_row", "key": model.version, "fields": fields, "encoding": encoding}

        found, header, values = session.ask((model_table, mst_key, caller_path), request, [row])
        return predict.Answer(found, header, values, type_code="d")
    except Exception as error:
        predict.note_error(error)
        return None


def _fields(row: bytes, row_type: int, names: Sequence[str] | None) -> list[Field]:
    """Return the fields of a row."""
    oids = _oids(row)
    key = (row_type, tuple(names or ()), oids)
    fields = _row_types.get(key)
    if fields is None:
        found = names
        if found is None:
            found = [one["name"] for one in plpy.execute(plpy.prepare(_FIELDS_OF_TYPE, ["oid"]), [row_type])]
        if len(found) != len(oids):
            message = f"predict: the row has {len(oids)} fields, but its type has {len(found)}"
            raise CallError(message, "55000", hint="The table was changed meanwhile. Call again.")
        rows = plpy.execute(plpy.prepare(_BASES, ["int8[]"]), [list(set(oids))])
        types = {one["oid"]: (one["type_sql"], one["base"]) for one in rows}
        fields = [[name, types[oid][0], oid, types[oid][1]] for name, oid in zip(found, oids, strict=True)]
        if len(_row_types) >= _MAX_ROW_TYPES:
            _row_types.clear()
        _row_types[key] = fields
    return fields


def _oids(row: bytes) -> tuple[int, ...]:
    """Return the types of a record's fields."""
    oids = []
    position = 4
    while position < len(row):
        oid, length = _FIELD.unpack_from(row, position)
        oids.append(oid)
        position += _FIELD.size + max(length, 0)
    return tuple(oids)
