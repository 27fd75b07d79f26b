"""The function madlib_mop.explain_prediction: Shapley values of the prediction of one row, by column.

A trainer of the session's own computes them, because that takes long. The rows of the background come from a table
that a driver reads once a statement, with the caller's rights. No role needs a right to the training rows to predict,
so none gets an explanation by rows that it could not read itself.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import plpy

from mop_backend import call, predict, predict_row, rights
from mop_backend.frames import Header
from mop_backend.predict_model import FoundModel, VersionModel, are_plain
from mop_backend.registered_names import with_newest

_FUNCTION = "explain_prediction"

_SNAPSHOT = """
SELECT CASE WHEN NOT pg_catalog.pg_is_in_recovery()
            THEN pg_catalog.txid_current_snapshot()::pg_catalog.text END AS snapshot
"""

_newest: tuple[object, Header] | None = None  # the newest background, and what it is of


class Options(NamedTuple):
    """How a prediction is explained; as the arguments of the SQL function."""

    of_class: str | None
    background: str | None
    n_background: int | None
    n_permutations: int | None
    seed: int | None


def explain(
    model_table: str,
    mst_key: int | None,
    row: bytes,
    row_type: int,
    names: Sequence[str] | None,
    encoding: str,
    caller_path: str,
    options: Options,
    version: str,
) -> str | None:
    """Explain the prediction of one row.

    Parameters
    ----------
    model_table, mst_key, row, row_type, names, encoding, caller_path, version
        As of `predict_row.predict_row`; a name alone is that of a registered model.
    options : Options

    Returns
    -------
    str or None
        A JSON array of objects, one for each column of each output, as the columns of the SQL function. None after an
        error (`predict.last_error`).
    """
    predict.note_error(None)
    try:
        session = predict.session(version)
        moment = rights.check_roles(plpy)
        table = with_newest(model_table, mst_key)

        def work(model: FoundModel, values: predict.Values) -> str:
            if not model.found.get("preprocessor"):
                raise _no_columns(table)
            record, of_record = predict_row.record_for(model, row, row_type, names, encoding, moment)
            name, key = (model.name, None) if isinstance(model, VersionModel) else (table, mst_key)
            drawn = _background(name, key, caller_path, options, moment, model)
            request = {
                "op": "explain_row",
                **of_record,
                "shapes": drawn["shapes"],
                "index_inputs": drawn["index_inputs"],
                "of_class": options.of_class,
                "n_orders": options.n_permutations,
                "seed": options.seed,
            }
            session.share_nothing()  # a shared trainer would refuse it
            answer, found = values(lambda key: {**request, "key": key}, [record, *drawn["tensors"]])
            return json.dumps(_rows(answer, memoryview(found).cast("d")))

        return session.use((table, mst_key, caller_path), work, None, moment)
    except Exception as error:
        predict.note_error(error, _FUNCTION)
        return None


def _background(
    name: str, mst_key: int | None, caller_path: str, options: Options, moment: rights.Moment, model: FoundModel
) -> Header:
    """Return encoded rows of the background: ``shapes``, ``index_inputs`` and ``tensors``.

    They are used again in the same statement only, because the table and the caller's rights may change. They are read
    again if the transaction itself has changed something since. They are read for each row on a standby, and if a view,
    a row policy or partitions could make them depend on something else, such as a setting.
    """
    global _newest
    drawing, seen = options._replace(of_class=None), _seen(moment)  # the same rows explain each class
    # defence: background-of-a-statement = (name, mst_key, caller_path, drawing, moment.statement)
    place = (name, mst_key, caller_path, drawing, moment, model.version, seen)
    if seen is not None and _newest is not None and _newest[0] == place:
        return _newest[1]
    arguments = {"model_table": name, "mst_key": mst_key, **drawing._asdict()}
    _newest = None
    drawn: Header = call.ask_driver(_FUNCTION, arguments, caller_path)
    if are_plain(drawn["oids"]):  # defence: background-of-a-setting = True
        _newest = (place, drawn)
    return drawn


def _seen(moment: rights.Moment) -> object:
    """Return what stands for all that a query sees now; None if nothing does, as on a standby."""
    if moment.snapshot is not None:
        return moment.snapshot
    snapshot = plpy.execute(_SNAPSHOT)[0]["snapshot"]
    if snapshot is None:
        return None
    # PostgreSQL counts the commands of a transaction that have changed something (access/xact.h); a savepoint that is
    # rolled back does not count
    server = ctypes.PyDLL(None)
    return snapshot, server.GetCurrentCommandId(0), server.GetCurrentSubTransactionId()


def _rows(answer: Header, values: Iterable[float]) -> list[dict[str, Any]]:
    """Return the rows of the SQL function; of each output those with the largest contributions first."""
    columns, found, values_left = answer["columns"], [], iter(values)
    for output, of_class in answer["outputs"]:
        pairs = [tuple(itertools.islice(values_left, 2)) for _ in range(len(columns) + 1)]
        base, prediction = pairs.pop()
        rows = sorted(zip(columns, pairs, strict=True), key=lambda row: (-abs(row[1][0]), row[0]))
        found += [
            {
                "output": output,
                "class": of_class,
                "feature": column,
                "contribution": _as_json(contribution),
                "standard_error": None if math.isnan(error) else _as_json(error),
                "base": _as_json(base),
                "prediction": _as_json(prediction),
            }
            for column, (contribution, error) in rows
        ]
    return found


def _as_json(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _no_columns(table: str) -> call.CallError:
    return call.CallError(
        f"{_FUNCTION}: model_table: {table} was not trained on a table of pack_columns, so its inputs have no columns",
        "0A000",
        hint="Pack ordinary columns with madlib_mop.pack_columns, and train on them.",
    )
