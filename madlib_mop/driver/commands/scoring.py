"""The command predict: finds a model for the scalar function madlib_mop.predict, whose session then uses it itself."""

from mop_backend.frames import Header

from madlib_mop.catalog.names import Relation, quote, split_name, statement
from madlib_mop.driver.data.engine import engine_of_table
from madlib_mop.driver.inference.model import TrainedModel, read_model
from madlib_mop.driver.inference.output import Output
from madlib_mop.driver.inference.trainer import FixedSettings
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.settings import read_settings
from madlib_mop.errors import MopError


def predict(call: Call) -> Header:
    """Return how to use a model.

    Returns
    -------
    dict
        ``version_query``, to be asked before each prediction: one row with the column ``version``, which changes when
        the model does; no row when it is gone. ``weights_query``, whose column ``weights`` has the weights. ``params``
        and ``types`` for both. ``oid`` of the table, and ``name``, quoted, where it is to be looked up again because it
        was given without a schema; else None. ``model`` and ``normalizing_const``: for the trainer's request
        predict_load. ``start``: for its request start. ``outputs``: what each is called, and its classes
        (mop_backend/classes.py).
    """
    session, name = call.session, call.arguments["model_table"]
    model = read_model(session, name, call.arguments.get("mst_key"))
    schema, base = split_name(name, "model_table")
    relation = model.place.relation
    summary = session.relation(relation.with_suffix("_summary").sql)
    return {
        "version_query": _version_query(session, model, summary),
        "weights_query": model.place.weights_query,
        "params": model.place.params,
        "types": model.place.types,
        "oid": relation.oid,
        "name": None if schema else quote(base),
        "model": model.request(compiled=False),
        "normalizing_const": model.normalizing_const,
        "outputs": _outputs(model),
        "start": read_settings(FixedSettings(session), session, 1, use_caching=False).session_trainer_start(),
    }


def _outputs(model: TrainedModel) -> list[Header]:
    units = [*model.shape.output_units, *[None] * len(model.outputs)]
    return [_output(output, n_units) for output, n_units in zip(model.outputs, units, strict=False)]


def _output(output: Output, n_units: int | None) -> Header:
    labels, problem = None, None
    if n_units is None or (n_units == 1 and len(output.values or ()) == 2):
        n_units = len(output.values or "1")
    try:
        labels = None if output.is_number(n_units) else output.labels(n_units)
    except MopError as error:
        problem = error.message
    return {"name": output.name, "labels": labels, "problem": problem}


def _version_query(session: CallerSession, model: TrainedModel, summary: Relation) -> str:
    """Write the query of a model's version; it reads weights only where rows have no versions of their own."""
    own = _version(
        session,
        model.place.relation,
        "pg_catalog.encode(pg_catalog.sha256(m.model_weights), 'hex'), m.model_arch::pg_catalog.text",
    )
    beside = _version(session, summary, "m.normalizing_const::pg_catalog.text")
    query = statement(
        f"SELECT pg_catalog.concat_ws(' ', {own}, (SELECT pg_catalog.concat_ws(' ', {beside}) FROM {{s}} m)) AS version"
        " FROM {m} m",
        m=model.place.relation,
        s=summary,
    )
    return query + model.place.condition


def _version(session: CallerSession, relation: Relation, content: str) -> str:
    """Return what tells versions of a relation's rows apart: system columns, or the content where these do not."""
    columns = engine_of_table(session, relation).version_columns(session, relation)
    return ", ".join(f"m.{column}" for column in columns) or content
