"""Predictions for a row of an ordinary table: the functions of madlib_mop that take a record.

The row arrives as ``record_send`` sends it. Its fields are looked up in the catalog. The session's
trainer encodes it by the model's preprocessor, with the code that packed the training rows, and predicts.

The names of an anonymous row's fields are not in the catalog. ``row_to_json`` is the fast way to them, but it runs
casts that owners of types have defined, also of types within arrays and rows. So it gets rows whose fields are all of
plain types of the server. Any other row comes through a cursor: PL/Python makes a dict of it with the output functions
of the types, which only superusers define.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import plpy

from mop_backend import classes, predict, rights, row_images
from mop_backend.call import CallError
from mop_backend.challenger import ChallengedCall, Rows
from mop_backend.frames import Header, encoded
from mop_backend.interrupts import with_whole_cancels
from mop_backend.predict_model import FoundModel
from mop_backend.read_ahead import Ask, Contexts, Field, RowValues

_FIELD = struct.Struct(">Ii")
_COUNT_BYTES = 4
_NAMES_OF_TYPE = """
select t.typrelid <> 0 as is_row, pg_catalog.format_type(t.oid, null) as type_sql,
       coalesce(array(select a.attname::text from pg_catalog.pg_attribute a
                      where a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped
                      order by a.attnum), '{}') as names
from pg_catalog.pg_type t where t.oid = $1::oid
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
# bool, bytea, "char", name, int8, int2, int4, text, oid, json, float4, float8, unknown, bpchar, varchar, date, time,
# timestamp, timestamptz, interval, timetz, numeric, uuid, jsonb; then arrays of them
_PLAIN = frozenset(
    (16, 17, 18, 19, 20, 21, 23, 25, 26, 114, 700, 701, 705, 1042, 1043, 1082, 1083, 1114, 1184, 1186, 1266, 1700, 2950)
    + (3802, 1000, 1001, 1002, 1003, 1016, 1005, 1007, 1009, 1028, 199, 1021, 1022, 1014, 1015, 1182, 1183, 1115, 1185)
    + (1187, 1270, 1231, 2951, 3807)
)
_FETCHED_ROW = "select madlib_mop_calls._fetched_row($1) as input_row"
_MAX_ROW_TYPES = 1000
_MAX_HEADERS = 64

_known_fields: dict[tuple[tuple[str, ...], tuple[int, ...]], list[Field]] = {}  # by names and types
_names_plan: plpy.Plan | None = None
_fetched_plan: plpy.Plan | None = None
_names: tuple[object, Sequence[str]] = (None, ())  # the newest names, and what they were looked up for
_of_type: tuple[object, list[Field]] = (None, [])  # the newest fields of a type, and what they were looked up for
_headers: dict[tuple[str, str], tuple[list[Field], bytes]] = {}  # of requests, by model and encoding, with the fields
_contexts = Contexts()
_noted: Mapping[str, Any] = {}  # what the catalogs have about the row of the next call for a planned model


@with_whole_cancels
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
    return None if answer is None else answer[1].floats


@with_whole_cancels
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
    coverage: float | None = None,
) -> str | None:
    """Predict as `predict_row` does; return the class, the number, or JSON of all classes with their values.

    Parameters
    ----------
    form : str
        ``class``, ``number``, ``named``, or one of `classes.HELD_OUT_FORMS`.
    coverage : float or None
        Of an interval or a set of classes.

    Returns
    -------
    str or None
        None after an error, and for a class if all values are NaN.
    """
    answer = _answer(model_table, mst_key, row, row_type, names, encoding, caller_path, version)
    if answer is None:
        return None
    try:
        model, values = answer
        return model.text_of(form, values.widths, classes.OF_ROWS, coverage)(values.floats)
    except Exception as error:
        predict.note_error(error)
        return None


def queries(row: bytes) -> list[str]:
    """Return the queries whose rows `note` takes, and the array of oids for the second one, as PostgreSQL writes it."""
    try:
        oids = sorted({*_oids(row)})
    except CallError:
        oids = []
    return [_NAMES_OF_TYPE, _BASES, "{" + ",".join(map(str, oids)) + "}"]


def note(found: str) -> None:
    """Keep the rows of `queries` and the database's encoding, as JSON, for the call that follows."""
    global _noted
    _noted = json.loads(found)


def has_plain_fields(row: bytes) -> bool:
    """Return whether all fields of a row, as ``record_send`` writes it, are of plain types; False for other bytes."""
    try:
        return _PLAIN.issuperset(_oids(row))
    except CallError:
        return False


def names_of_fetched(portal: str, row: bytes) -> list[str] | None:
    """Return the names of the fields of a row in a cursor.

    Parameters
    ----------
    portal : str
        The name of a cursor over one row with one column, ``input_row``, which is the row.
    row : bytes
        What ``record_send`` gives for it.

    Returns
    -------
    list of str, or None
        None after an error (`predict.last_error`).
    """
    global _fetched_plan
    predict.note_error(None)
    try:
        if _fetched_plan is None:
            _fetched_plan = plpy.prepare(_FETCHED_ROW, ["text"])
        names = list(plpy.execute(_fetched_plan, [portal])[0]["input_row"])
        if len(names) < len(_oids(row)):  # a dict has each name once
            raise CallError(
                "predict: several fields of input_row have one name, and not all fields are of built-in types."
                f" Received names: {', '.join(names)}",
                "22023",
                hint="Name each field once in your query.",
            )
        return names
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
) -> tuple[FoundModel, RowValues] | None:
    predict.note_error(None)
    try:
        session = predict.session(version)
        if predict.is_planned(model_table):
            if encoding == "SQL_ASCII":
                encoding = _noted["encoding"]
            names = _names_in(_noted["names"] or [], row_type) if names is None else names
            fields = _fields_of(_noted["types"] or [], names, _oids(row))
            planned_request: Header = {"op": "predict_row", "fields": fields, "encoding": encoding}

            def values_of_plan(model: FoundModel, ask: Ask) -> tuple[FoundModel, RowValues]:
                _refuse_rows(model, predict.name_of(model_table))
                return model, _values(model, ask, row, planned_request)

            return session.use((model_table, mst_key, caller_path), values_of_plan, ChallengedCall([row], _outputs_of))
        if encoding == "SQL_ASCII":  # texts are sent as the database has them
            encoding = plpy.execute("SELECT pg_catalog.getdatabaseencoding() AS name")[0]["name"]
        moment = rights.check_roles(plpy)
        of_table = names is None
        if names is None:
            names = _names_of(row_type, moment)

        def values(model: FoundModel, ask: Ask) -> tuple[FoundModel, RowValues]:
            _refuse_rows(model, model_table)
            if model.found.get("images") or not (of_table and model.found["keeps_order"]):
                return model, _values(model, ask, row, _request(_fields(row, names), encoding))
            place = (model_table, mst_key, caller_path)
            # defence: version-read-ahead = (*place, row_type, encoding, moment.role, moment.login, None)
            key = (*place, row_type, encoding, moment.role, moment.login, model.version)
            context = _contexts.get(moment, key, names)
            found = context.find(row)
            if found is None:
                request = _request(_fields_of_type(row, row_type, names, moment), encoding)
                context.read(row, row_type, request, ask)
                found = context.find(row) or context.timed(lambda: _alone(ask, row, request))
            return model, found

        return session.use((model_table, mst_key, caller_path), values, ChallengedCall([row], _outputs_of), moment)
    except Exception as error:
        predict.note_error(error)
        return None


def record_for(
    model: FoundModel,
    row: bytes,
    row_type: int,
    names: Sequence[str] | None,
    encoding: str,
    moment: rights.Moment,
) -> tuple[bytes, Header]:
    """Return a row as the trainer takes it, and ``fields`` and ``encoding`` of a request for it.

    Parameters as those of `predict_row`; the model takes rows. Raises CallError.
    """
    if encoding == "SQL_ASCII":
        encoding = plpy.execute("SELECT pg_catalog.getdatabaseencoding() AS name")[0]["name"]
    fields = _fields(row, _names_of(row_type, moment) if names is None else names)
    if images := model.found.get("images"):
        row = row_images.with_pixels(row, fields, images, model.found["start"].get("idle_s"))
    return row, {"fields": fields, "encoding": encoding}


def _outputs_of(result: tuple[FoundModel, RowValues]) -> Rows:
    return [result[1].floats]


def _refuse_rows(model: FoundModel, name: str) -> None:
    if not model.found.get("preprocessor"):
        raise CallError(
            f"predict: {name} was not trained on a table of pack_columns, so it takes no rows",
            "22023",
            hint="Pass the inputs as arrays: madlib_mop.predict(model_table, mst_key, x).",
        )


def _values(model: FoundModel, ask: Ask, row: bytes, request: Header) -> RowValues:
    if images := model.found.get("images"):
        fields: list[Field] = request["fields"]
        row = row_images.with_pixels(row, fields, images, model.found["start"].get("idle_s"))
    return _alone(ask, row, request)


def _request(fields: list[Field], encoding: str) -> Header:
    return {"op": "predict_row", "fields": fields, "encoding": encoding}


def _alone(ask: Ask, row: bytes, request: Header) -> RowValues:
    answer, values = ask(lambda key: _header(key, request), [row])
    return RowValues(answer["widths"], memoryview(values).cast("d").tolist())


def _header(key: str, request: Header) -> bytes:
    """Return the header of a request with a model's key as bytes; it is the same for row after row."""
    place = key, request["encoding"]
    fields, header = _headers.get(place, (None, b""))
    if fields is not request["fields"]:
        if len(_headers) >= _MAX_HEADERS:
            _headers.clear()
        header = encoded({**request, "key": key})
        _headers[place] = request["fields"], header
    return header


def _names_of(row_type: int, moment: rights.Moment) -> Sequence[str]:
    """Return the names of the fields of a row type.

    They are looked up anew each time, since columns can be renamed in a session, unless nothing can have changed.
    """
    global _names_plan, _names
    what = (row_type, moment.seen)
    if moment.snapshot is not None and what == _names[0]:
        return _names[1]
    if _names_plan is None:
        _names_plan = plpy.prepare(_NAMES_OF_TYPE, ["int8"])
    names = _names_in(plpy.execute(_names_plan, [row_type]), row_type)
    _names = (what, names)
    return names


def _names_in(rows: Iterable[Mapping[str, Any]], row_type: int) -> Sequence[str]:
    """Return the names in the rows of `_NAMES_OF_TYPE`."""
    for row in rows:
        if not row["is_row"]:
            raise _no_row(f"it is of type {row['type_sql']}")
        names: Sequence[str] = row["names"]
        return names
    raise _no_row(f"there is no type with oid {row_type}")


def _fields_of_type(row: bytes, row_type: int, names: Sequence[str], moment: rights.Moment) -> list[Field]:
    """Return the fields of a row of a table's type; those of its type, unless they can have changed.

    The trainer refuses a row with other types.
    """
    global _of_type
    what = (row_type, moment.seen)
    if moment.snapshot is None or what != _of_type[0]:
        _of_type = what, _fields(row, names)
    return _of_type[1]


def _fields(row: bytes, names: Sequence[str]) -> list[Field]:
    """Return the fields of a row."""
    oids = _oids(row)
    key = (tuple(names), oids)  # defence: names-of-columns = ((), oids)
    fields = _known_fields.get(key)
    if fields is None:
        rows = plpy.execute(plpy.prepare(_BASES, ["int8[]"]), [list(set(oids))])
        fields = _fields_of(rows, names, oids)
        if len(_known_fields) >= _MAX_ROW_TYPES:
            _known_fields.clear()
        _known_fields[key] = fields
    return fields


def _fields_of(rows: Iterable[Mapping[str, Any]], names: Sequence[str], oids: tuple[int, ...]) -> list[Field]:
    """Return the fields by the rows of `_BASES`."""
    if len(names) != len(oids) or None in names:
        raise _no_row(f"it has {len(oids)} fields and {len(names)} names")
    types = {one["oid"]: (one["type_sql"], one["base"]) for one in rows}
    if missing := set(oids) - types.keys():  # defence: missing-types
        raise _no_row(f"there is no type with oid {min(missing)}")
    return [[name, types[oid][0], oid, types[oid][1]] for name, oid in zip(names, oids, strict=True)]


def _oids(row: bytes) -> tuple[int, ...]:
    """Return the types of a record's fields."""
    oids = []
    position = _COUNT_BYTES
    while position + _FIELD.size <= len(row):
        oid, length = _FIELD.unpack_from(row, position)
        oids.append(oid)
        if length < -1:
            break
        position += _FIELD.size + max(length, 0)
    if position != len(row):
        raise _no_row("its fields do not end where it does")
    return tuple(oids)


def _no_row(problem: str) -> CallError:
    return CallError(f"predict: input_row is no row of a table: {problem}", "22023")
